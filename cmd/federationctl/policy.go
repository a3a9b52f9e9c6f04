package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config/ownerfiles"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/policy"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/watch/tty"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/file/catalogfile"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
)

func policyCommand(ctx context.Context) *cobra.Command {
	command := &cobra.Command{
		Use:   "policy",
		Short: "Explain who is told of which services, and compare configurations",
		Long: `policy explains the exports of a configuration file, the rules by which an owner
decides who is told of which services. It asks no owner: it reads the file, the
allow file and the catalog files that it names, with paths relative to the
directory of the file. Services of other sources, such as clusters, come from
files that --catalog names.

test says what one consumer is told of services, who-can which consumers are told of
one, and diff what an edit of the file would change, before it is made. The exit codes
0 and 1 are answers, for scripts, and 2 says that there is none.`,
		Example: policyExamples[0] + "\n" + policyExamples[1] + "\n" + policyExamples[2],
		Args:    cobra.NoArgs,
		RunE:    help,
	}
	command.AddCommand(policyTestCommand(ctx), whoCanCommand(ctx), policyDiffCommand(ctx))
	return command
}

// policyExamples has an example of each command.
var policyExamples = []string{
	`  # Is this consumer told of the shop?
  federationctl policy test owner.yaml \
      --as spiffe://federation.example/consumer shop.fed.example
`,
	`  # Who is told of it?
  federationctl policy who-can owner.yaml shop.fed.example
  federationctl policy who-can owner.yaml shop.fed.example -o json
`,
	`  # What would an edit change, and for whom?
  federationctl policy diff owner.yaml new-owner.yaml || test $? = 1
  federationctl policy diff owner.yaml new-owner.yaml -o json || test $? = 1
`,
}

// policyOptions are the flags of the commands.
type policyOptions struct {
	as         []federation.ID
	serverName string
	catalogs   []string
	max        int64
	output     string
	objects    printable.Objects
}

// add adds the flags to a command. As is the usage of --as, if there is one.
func (o *policyOptions) add(command *cobra.Command, as, serverName string) {
	o.max = catalogfile.DefaultLimit
	flags := command.Flags()
	if as != "" {
		idsFlag(command, &o.as, "as", as)
		insist(command.RegisterFlagCompletionFunc("as", completeFrom(func(owner *ownerfiles.Owner) []string {
			var ids []string
			for _, id := range owner.Allowed() {
				ids = append(ids, id.String())
			}
			return ids
		})))
	}
	flags.StringVar(&o.serverName, "server-name", "", serverName)
	insist(command.RegisterFlagCompletionFunc("server-name", completeFrom((*ownerfiles.Owner).ServerNames)))
	flags.StringArrayVar(&o.catalogs, "catalog", nil,
		"YAML or JSON `file` with services of sources that cannot be read here: a catalog, or what 'watch --once -o json' prints; repeatable")
	maxCatalogFlag(command, &o.max)
	outputFlag(command, &o.output)
}

// open reads configuration files. It prints all mistakes in them, and in the allow files.
func (o *policyOptions) open(ctx context.Context, stderr io.Writer, files ...string) ([]*ownerfiles.Owner, error) {
	var mistakes ownerfiles.MistakesError
	extra, err := ownerfiles.ReadExtra(o.catalogs, o.max)
	mistakes.Take(err)
	var owners []*ownerfiles.Owner
	for _, file := range files {
		owner, err := ownerfiles.Open(ctx, file, extra)
		mistakes.Take(err)
		owners = append(owners, owner)
	}
	return owners, explained(stderr, mistakes.Err())
}

// answering makes a command one that answers with yes or no, and prints what it finds. The
// first so many arguments are configuration files.
func (o *policyOptions) answering(
	ctx context.Context, command *cobra.Command, configs int, answer func(owners []*ownerfiles.Owner, args []string, show func(found) error) (bool, error),
) *cobra.Command {
	command.RunE = func(command *cobra.Command, args []string) error {
		return showing(command, func(p *tty.Progress) error {
			p.Sayf("reading %s", federation.Printable(strings.Join(args[:configs], " and ")))
			stderr := command.ErrOrStderr()
			owners, err := o.open(ctx, stderr, args[:configs]...)
			if err != nil {
				return err
			}
			yes, err := answer(owners, args, func(what found) error { return o.print(command.OutOrStdout(), what) })
			notes(stderr, owners...)
			if err != nil {
				return explained(stderr, err)
			}
			return isYes(yes)
		})
	}
	return command
}

// explained prints the mistakes that an error is about, if it is about any. It returns the
// error.
func explained(stderr io.Writer, err error) error {
	e, ok := errors.AsType[*ownerfiles.MistakesError](err)
	if !ok {
		return err
	}
	for _, m := range e.Found {
		show(stderr, m.File, "error", []problem.Problem{m.Problem})
	}
	return trouble(err)
}

// notes prints what there is to say of the services of owners.
func notes(stderr io.Writer, owners ...*ownerfiles.Owner) {
	var printed []string
	for _, owner := range owners {
		for _, note := range owner.Notes() {
			if !slices.Contains(printed, note) {
				printed = append(printed, note)
				fmt.Fprintf(stderr, "federationctl: %s\n", note)
			}
		}
	}
}

// found is what a command has found: its text for people, and the names for other commands.
type found interface {
	fmt.Stringer
	Names() []string
}

// print prints an answer in the format that was asked for.
func (o *policyOptions) print(stdout io.Writer, answer found) error {
	text, err := answer.String(), error(nil)
	if !printable.IsTable(o.output) {
		o.objects.Format = o.output
		if text, err = printable.JSON(answer); err == nil {
			text, err = o.objects.Text(text, answer.Names()...)
		}
	}
	if err == nil {
		_, err = io.WriteString(stdout, text)
	}
	if err != nil {
		return trouble(err)
	}
	return nil
}

func policyTestCommand(ctx context.Context) *cobra.Command {
	var o policyOptions
	command := o.answering(ctx, &cobra.Command{
		Use:   "test CONFIG --as ID NAME...",
		Short: "Say whether a consumer is told of services, and why",
		Long: `test says whether a consumer with the identity of --as is told of services, which
rule decides that, and in what form it is told. A NAME is the name of a service, its
fqdn, or the fqdn under which the consumer knows it. Of a name that several services
have, each is shown.

A consumer whose certificate has several identities is one --as for each of them.

The exit code is 0 when the consumer is told of every NAME, 1 when it is not, and 2
when it is not known: a mistake in a file, a NAME that no service has, a source that
cannot be read here.`,
		Example: policyExamples[0] + `
  # Services of a cluster, as the owner publishes them.
  federationctl watch localhost:8008 --cert consumer.pem \
      --key consumer-key.pem --ca ca.pem --once -o json >seen.json
  federationctl policy test owner.yaml --catalog seen.json -o json \
      --as spiffe://federation.example/consumer shop api`,
		Args:              configFile("test", "CONFIG and a NAME, or several", 2, -1),
		ValidArgsFunction: completeNames,
	}, 1, func(owners []*ownerfiles.Owner, args []string, show func(found) error) (bool, error) {
		answers, told, err := policy.Test(owners[0], o.as, o.serverName, args[1:])
		return told, showAll(answers, err, show)
	})
	o.add(command, "`identity` in the consumer's certificate, spiffe://... or a DNS name; repeatable", serverNameUsage)
	require(command, "as")
	return command
}

// showAll shows answers, if there is no error.
func showAll[T found](answers []T, err error, show func(found) error) error {
	for _, answer := range answers {
		if err == nil {
			err = show(answer)
		}
	}
	return err
}

const serverNameUsage = "`name` of the catalog, as in its server_name; none: the default catalog"

func whoCanCommand(ctx context.Context) *cobra.Command {
	var o policyOptions
	command := o.answering(ctx, &cobra.Command{
		Use:   "who-can CONFIG NAME",
		Short: "Say who is told of a service",
		Long: `who-can says which of the consumers that allow names, in CONFIG or in the allow
file, are told of a service, by which rule and in what form, and why the others are
not. A NAME is as in 'federationctl policy test'. Patterns of the rules that match
further consumers are listed as well: these are told once allow names them.

The exit code is 0 when somebody is told, 1 when nobody is, and 2 when it is not
known.`,
		Example:           policyExamples[1],
		Args:              configFile("who-can", "CONFIG and a NAME", 2, 2),
		ValidArgsFunction: completeNames,
	}, 1, func(owners []*ownerfiles.Owner, args []string, show func(found) error) (bool, error) {
		audiences, told, err := policy.WhoCan(owners[0], o.serverName, args[1])
		return told, showAll(audiences, err, show)
	})
	o.add(command, "", serverNameUsage)
	return command
}

func policyDiffCommand(ctx context.Context) *cobra.Command {
	var o policyOptions
	var command *cobra.Command
	command = o.answering(ctx, &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Say what an edit of a configuration would change, and for whom",
		Long: `diff compares what consumers are told by two configuration files: + is a service
that they would be told, - one that they would not be told any more, and ~ one in
another form, with the fields that differ. The consumers are those that the allow of
either file names, and those of --as. Consumers for whom the same changes are listed
together. The catalog files of each are relative to its directory, and a service that
differs there counts as well: put OLD beside NEW to compare the configurations alone.

The exit code is 0 when nothing would change, 1 when something would, and 2 when it is
not known.`,
		Example:           policyExamples[2],
		Args:              configFile("diff", "OLD and NEW", 2, 2),
		ValidArgsFunction: cobra.FixedCompletions(catalogExtensions, cobra.ShellCompDirectiveFilterFileExt),
	}, 2, func(owners []*ownerfiles.Owner, args []string, show func(found) error) (bool, error) {
		for _, id := range o.as {
			_, before := owners[0].Admit([]federation.ID{id})
			_, after := owners[1].Admit([]federation.ID{id})
			if !before && !after {
				fmt.Fprintf(command.ErrOrStderr(), "federationctl: %s may subscribe by neither %s nor %s\n", id, args[0], args[1])
			}
		}
		all := !command.Flags().Changed("server-name")
		differ, err := policy.Diff(owners[0], owners[1], o.serverName, all, o.as, func(g *policy.Group) error { return show(g) })
		return !differ, err
	})
	o.add(command, "further consumer with this `identity`, spiffe://... or a DNS name; repeatable",
		"`name` of the only catalog to compare, as in its server_name; none: all catalogs")
	return command
}

// configFile requires so many arguments of a command, at least and at most; -1 is any number.
func configFile(name, what string, least, most int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < least || most >= 0 && len(args) > most {
			return fmt.Errorf("%s takes %s, not %s", name, what, status.Count(len(args), "argument"))
		}
		return nil
	}
}

// completeFrom completes with words of the configuration that the first argument names.
func completeFrom(words func(*ownerfiles.Owner) []string) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, _ string) (found []string, _ cobra.ShellCompDirective) {
		if len(args) > 0 {
			if owner, err := ownerfiles.Open(command.Context(), args[0], nil); err == nil {
				found = slices.DeleteFunc(words(owner), func(word string) bool { return word == "" })
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeNames completes CONFIG with files, and a NAME with the fqdns of services.
func completeNames(command *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return catalogExtensions, cobra.ShellCompDirectiveFilterFileExt
	}
	return completeFrom(func(owner *ownerfiles.Owner) []string {
		serverName, _ := command.Flags().GetString("server-name")
		return owner.FQDNs(serverName)
	})(command, args, word)
}
