package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/policy"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/source/file/catalogfile"
	"github.com/hamlet-federation/coredns-federation/internal/status"
)

func policyCommand(ctx context.Context) *cobra.Command {
	command := &cobra.Command{
		Use:   "policy",
		Short: "Explain who is told of which services",
		Long: `policy explains the exports of a configuration file, the rules by which an owner decides
who is told of which services. It asks no owner: it reads the files. Scripts can rely on
the exit code: 0 and 1 are answers, and 2 means that there is none.`,
		Example: policyExamples[0] + "\n" + policyExamples[1],
		Args:    cobra.NoArgs,
		RunE:    showHelp,
	}
	command.AddCommand(policyTestCommand(ctx), whoCanCommand(ctx))
	return command
}

// policyExamples has an example of each command.
var policyExamples = []string{
	`  # Is this consumer told of the shop?
  federationctl policy test owner.yaml --catalog catalog.yaml \
      --as spiffe://federation.example/consumer shop.fed.example

  federationctl policy test owner.yaml --catalog catalog.yaml -o json \
      --as spiffe://federation.example/consumer shop api
`,
	`  # Who is told of it?
  federationctl policy who-can owner.yaml --catalog catalog.yaml shop

  federationctl policy who-can owner.yaml --catalog catalog.yaml shop -o json
`,
}

// policyOptions are the flags of the commands.
type policyOptions struct {
	files  policy.InputFiles
	output string
}

// addFlags adds the flags to a command.
func (o *policyOptions) addFlags(command *cobra.Command) {
	o.files.Limit = catalogfile.DefaultLimit
	flags := command.Flags()
	flags.StringVar(&o.files.ServerName, "server-name", "", "`name` of the catalog, as in its server_name; none: the default catalog")
	flags.StringVar(&o.files.Services, "catalog", "", "YAML or JSON `file` with the services: a catalog, or what 'federationctl dump' writes")
	maxCatalogFlag(command, &o.files.Limit)
	outputFlag(command, &o.output)
	requireFlags(command, "catalog")
}

// runOnCatalog makes a command one that answers with yes or no, and prints what it finds. Its first
// argument is a configuration file.
func (o *policyOptions) runOnCatalog(
	ctx context.Context, command *cobra.Command, answer func(c *policy.Catalog, args []string, show func(fmt.Stringer) error) (bool, error),
) *cobra.Command {
	command.RunE = func(command *cobra.Command, args []string) error {
		o.files.Config = args[0]
		c, err := policy.OpenCatalog(ctx, o.files)
		if err != nil {
			return noAnswer(err)
		}
		yes, err := answer(c, args[1:], func(what fmt.Stringer) error { return o.printAnswer(command.OutOrStdout(), what) })
		if err != nil || yes {
			return err
		}
		return exitResult(exitFailed)
	}
	return command
}

// printAnswer prints an answer in the format that was asked for.
func (o *policyOptions) printAnswer(stdout io.Writer, answer fmt.Stringer) error {
	text, err := answer.String(), error(nil)
	if !printable.IsTable(o.output) {
		text, err = printable.JSON(answer)
	}
	if err == nil {
		_, err = io.WriteString(stdout, text)
	}
	if err != nil {
		return noAnswer(err)
	}
	return nil
}

func policyTestCommand(ctx context.Context) *cobra.Command {
	var o policyOptions
	var as []federation.ID
	command := o.runOnCatalog(ctx, &cobra.Command{
		Use:   "test CONFIG --catalog FILE --as ID NAME...",
		Short: "Say whether a consumer is told of services, and why",
		Long: `test says whether a consumer is told of services, which rule decides that, and in what
form it is told. A NAME is the name of a service, its fqdn, or the fqdn under which the
consumer knows it. A certificate with several identities is one --as for each of them.

The exit code is 0 when the consumer is told of every NAME, 1 when it is not, and 2 when
that is not known, because a file has a mistake or no service has a NAME.`,
		Example: policyExamples[0],
		Args:    argsBetween("CONFIG and a NAME, or several", 2, -1),
	}, func(c *policy.Catalog, names []string, show func(fmt.Stringer) error) (bool, error) {
		answers, told, err := c.ExplainServices(as, names)
		return told, showAll(answers, err, show)
	})
	o.addFlags(command)
	idsFlag(command, &as, "as", "`identity` in the consumer's certificate, spiffe://... or a DNS name; repeatable")
	requireFlags(command, "as")
	return command
}

// showAll shows answers, if there is no error.
func showAll[T fmt.Stringer](answers []T, err error, show func(fmt.Stringer) error) error {
	for _, answer := range answers {
		if err == nil {
			err = show(answer)
		}
	}
	return err
}

func whoCanCommand(ctx context.Context) *cobra.Command {
	var o policyOptions
	command := o.runOnCatalog(ctx, &cobra.Command{
		Use:   "who-can CONFIG --catalog FILE NAME",
		Short: "Say who is told of a service",
		Long: `who-can says which of the consumers that allow names are told of a service, by which rule
and in what form, and why the others are not. A NAME is as in 'federationctl policy test'.

The exit code is 0 when somebody is told, 1 when nobody is, and 2 when it is not known.`,
		Example: policyExamples[1],
		Args:    argsBetween("CONFIG and a NAME", 2, 2),
	}, func(c *policy.Catalog, names []string, show func(fmt.Stringer) error) (bool, error) {
		audiences, told, err := c.WhoCan(names[0])
		return told, showAll(audiences, err, show)
	})
	o.addFlags(command)
	return command
}

// argsBetween requires so many arguments of a command, at least and at most; -1 is any number.
func argsBetween(what string, least, most int) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if len(args) < least || most >= 0 && len(args) > most {
			return fmt.Errorf("%s takes %s, not %s", command.Name(), what, status.CountNoun(len(args), "argument"))
		}
		return nil
	}
}
