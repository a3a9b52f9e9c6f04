package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// extensions has the extensions of the files that a flag takes, by the words with
// which its usage begins.
var extensions = map[string][]string{
	"PEM":          {"pem", "crt", "cer", "key"},
	"YAML or JSON": catalogExtensions,
}

// catalogExtensions has the extensions of catalog files.
var catalogExtensions = []string{"yaml", "yml", "json", "jsonl"}

// completeFlags sets how a shell completes the flags of the command and of those
// below it: with files of the right kind where a flag takes a file, and with nothing
// otherwise. It leaves flags alone that have a completion of their own.
func completeFlags(command *cobra.Command) {
	command.Flags().VisitAll(func(flag *pflag.Flag) {
		value, usage := pflag.UnquoteUsage(flag)
		complete := cobra.NoFileCompletions
		if value == "file" {
			complete = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
			for words, names := range extensions {
				if strings.HasPrefix(usage, words) {
					complete = cobra.FixedCompletions(names, cobra.ShellCompDirectiveFilterFileExt)
				}
			}
		}
		if _, own := command.GetFlagCompletionFunc(flag.Name); !own && flag.Value.Type() != "bool" {
			insist(command.RegisterFlagCompletionFunc(flag.Name, complete))
		}
	})
	for _, child := range command.Commands() {
		completeFlags(child)
	}
}

// completeValues sets the values with which a shell completes a flag.
func completeValues(command *cobra.Command, flag string, values []string) {
	insist(command.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
}
