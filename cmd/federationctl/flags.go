package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/removed"
	"github.com/hamlet-federation/coredns-federation/internal/setting"
)

// flagValue is a flag whose text is parsed when it is given, so that a command begins with
// what its flags mean.
type flagValue struct {
	kind string // repeatable is one that may be given several times
	text string // that is in effect: the default, at first
	set  func(text string) error
}

// repeatable is the kind of flags that a shell completes again after they were given.
const repeatable = "stringArray"

// String implements pflag.Value.
func (v *flagValue) String() string { return v.text }

// Type implements pflag.Value.
func (v *flagValue) Type() string { return v.kind }

// Set implements pflag.Value.
func (v *flagValue) Set(text string) error {
	if err := v.set(text); err != nil {
		return err
	}
	v.text = text
	return nil
}

// flagError names the flag whose text cannot be parsed. It is for all commands.
func flagError(_ *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		return fmt.Errorf("%w%s", err, removed.Flags.RemedyFor(unknown.GetSpecifiedName()))
	}
	wrong, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	flag := wrong.GetFlag()
	if _, own := flag.Value.(*flagValue); !own {
		return err
	}
	if flag.Shorthand != "" {
		return fmt.Errorf("-%s: %w", flag.Shorthand, wrong.Unwrap())
	}
	return fmt.Errorf("--%s: %w", flag.Name, wrong.Unwrap())
}

// listFlag adds a flag that may be given several times, each with a text that is parsed.
func listFlag[T any](command *cobra.Command, to *[]T, name string, parse func(text string) (T, error), usage string) {
	command.Flags().Var(&flagValue{kind: repeatable, set: func(text string) error {
		value, err := parse(text)
		*to = append(*to, value)
		return err
	}}, name, usage)
}

// choiceFlag adds a flag with a few values. The default is what stands in to, or else the
// first value.
func choiceFlag(command *cobra.Command, to *string, name, shorthand, usage string, values ...string) {
	*to = cmp.Or(*to, values[0])
	command.Flags().VarP(&flagValue{kind: "string", text: *to, set: func(text string) error {
		if *to = text; !slices.Contains(values, text) {
			return fmt.Errorf("%q is not one of %s", text, strings.Join(values, ", "))
		}
		return nil
	}}, name, shorthand, usage)
	completeValues(command, name, values)
}

// completeValues sets the values with which a shell completes a flag.
func completeValues(command *cobra.Command, flag string, values []string) {
	mustSucceed(command.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
}

// formats are what -o means for every command.
var formats = []string{"table", "json"}

// outputFlag adds the flag -o of commands that print what they find.
func outputFlag(command *cobra.Command, to *string) {
	choiceFlag(command, to, "output", "o", "`format`: table for people, or json for programs (JSON lines if there are several)", formats...)
}

// positiveFlag adds a flag for a time above 0. Its default is what stands in to.
func positiveFlag(command *cobra.Command, to *time.Duration, name, usage string) {
	v := &flagValue{kind: "duration", set: func(text string) (err error) {
		if *to, err = time.ParseDuration(text); err == nil && *to <= 0 {
			err = fmt.Errorf("%v is not positive", *to)
		}
		return err
	}}
	if *to != 0 {
		v.text = to.String()
	}
	command.Flags().Var(v, name, usage)
}

// idsFlag adds a flag for identities.
func idsFlag(command *cobra.Command, to *[]federation.ID, name, usage string) {
	listFlag(command, to, name, federation.ParseID, usage)
}

// maxCatalogFlag adds the flag that bounds a catalog file, in bytes.
func maxCatalogFlag(command *cobra.Command, limit *int64) {
	command.Flags().Var(&flagValue{kind: "size", text: setting.FormatSize(*limit), set: func(text string) (err error) {
		*limit, err = setting.ParseSize(text)
		return err
	}}, "max-catalog", "`size` that a catalog file may have, in bytes or with KiB, MiB or GiB")
}

// rangesFlag adds the flag for addresses that are allowed.
func rangesFlag(command *cobra.Command, ranges *[]netip.Prefix) {
	listFlag(command, ranges, "allow-addresses", setting.ParsePrefix,
		"`CIDR` of endpoint addresses to allow that consumers refuse by default, such as 127.0.0.0/8; repeatable")
}
