package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/inspect"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/source/file/catalogfile"
	"github.com/hamlet-federation/coredns-federation/internal/status"
)

// statusOptions are the flags by which a process is asked what it knows.
type statusOptions struct {
	at      string
	files   mtls.Files
	timeout time.Duration
	output  string
}

// runOnEndpoint makes a command one that asks a process.
func (o *statusOptions) runOnEndpoint(
	command *cobra.Command, ask func(e *inspect.Endpoint, args []string, out io.Writer) error,
) *cobra.Command {
	flags := command.Flags()
	o.timeout = 30 * time.Second
	positiveFlag(command, &o.timeout, "timeout", "`duration` that an answer may take")
	flags.StringVar(&o.files.Cert, "cert", "", "PEM `file`: your certificate, for https")
	flags.StringVar(&o.files.Key, "key", "", "PEM `file`: the key of that certificate")
	flags.StringVar(&o.files.CA, "ca", "", "PEM `file`: the authorities of the endpoint")
	flags.StringVar(&o.at, "at", "", "`URL` of the status endpoint, or host[:port]; none: "+inspect.ConsumerAt+" of a CoreDNS or, where nothing listens there, "+inspect.OwnerAt+" of an owner or "+inspect.ImporterAt+" of an importer")
	command.RunE = func(command *cobra.Command, args []string) error {
		endpoint, err := inspect.NewEndpoint(o.at, o.files, o.timeout)
		if err != nil {
			return err //nolint:wrapcheck // it names the flag
		}
		return ask(endpoint, args, command.OutOrStdout())
	}
	return command
}

// writeAnswer writes an answer: as it was sent, or as text for people.
func (o *statusOptions) writeAnswer(out io.Writer, sent string, err error, text func() string) error {
	if err != nil {
		return failureOf(err)
	}
	if printable.IsTable(o.output) {
		sent = text()
	}
	_, err = io.WriteString(out, sent)
	return failureOf(err)
}

func whyCommand(ctx context.Context) *cobra.Command {
	var o statusOptions
	command := o.runOnEndpoint(&cobra.Command{
		Use:   "why NAME [TYPE]",
		Short: "Explain what a running CoreDNS, owner or importer makes of a name",
		Long: `why asks a CoreDNS with the plugin why it answers NAME as it does, since when and until
when, and what to do. An owner explains which of its catalogs have NAME, and which
consumers are told of it; an importer, which objects it has of NAME. TYPE is A by default.

The exit code is 0 when the answer is explained, whatever it is, and 1 when it is not.`,
		Example: `  federationctl why shop.fed.example
  federationctl why shop.fed.example SRV -o json`,
		Args: argsBetween("a NAME and perhaps a TYPE", 1, 2),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (types []string, _ cobra.ShellCompDirective) {
			if len(args) == 1 {
				types = []string{"A", "AAAA", "SRV", "TXT", "SOA", "NS"}
			}
			return types, cobra.ShellCompDirectiveNoFileComp
		},
	}, func(e *inspect.Endpoint, args []string, out io.Writer) error {
		if ip, err := netip.ParseAddr(args[0]); err == nil {
			return fmt.Errorf("%s is an IP address; 'federationctl services %s' lists what has it", ip, ip)
		}
		name, qtype := dns.Fqdn(args[0]), "A"
		if len(args) > 1 {
			qtype = strings.ToUpper(args[1])
		}
		if _, ok := dns.IsDomainName(name); !ok || args[0] == "" {
			return fmt.Errorf("%q is not a domain name", args[0])
		}
		if _, ok := dns.StringToType[qtype]; !ok {
			return fmt.Errorf("%q is not a type such as A, AAAA, SRV or TXT", qtype)
		}
		why, sent, err := e.ExplainName(ctx, name, qtype)
		return o.writeAnswer(out, sent, err, func() string { return strings.Join(why.Lines(), "\n") + "\n" })
	})
	outputFlag(command, &o.output)
	return command
}

func retryCommand(ctx context.Context) *cobra.Command {
	var o statusOptions
	var of string
	command := o.runOnEndpoint(&cobra.Command{
		Use:   "retry",
		Short: "Have a running CoreDNS, relay or importer try an owner that is lost now",
		Long: `retry has a process connect at once to an owner that is lost or parked, so that nobody has
to wait for the next attempt after a repair. 'federationctl status' shows whether the
attempt succeeded. There is at most one attempt in a second.`,
		Example: `  federationctl retry
  federationctl retry --of owner.example:8008`,
		Args: noArgs("name the endpoint with --at, and the owner with --of"),
	}, func(e *inspect.Endpoint, _ []string, out io.Writer) error {
		u, sent, err := e.RetryOwner(ctx, of)
		return o.writeAnswer(out, sent, err, func() string {
			if u.State == "synced" || u.State == "syncing" {
				return fmt.Sprintf("%s is %s: there is nothing to try\n", safetext.Printable(u.ID), safetext.Printable(u.State))
			}
			return fmt.Sprintf("%s was %s and is tried now; see 'federationctl status'\n", safetext.Printable(u.ID), safetext.Printable(u.State))
		})
	})
	outputFlag(command, &o.output)
	command.Flags().StringVar(&of, "of", "", "`owner`, or server name of the catalog of a relay; none: the only one")
	return command
}

func confirmCommand(ctx context.Context) *cobra.Command {
	var o statusOptions
	var of, source string
	command := o.runOnEndpoint(&cobra.Command{
		Use:   "confirm",
		Short: "Have a running owner withdraw services whose withdrawal is paused",
		Long: `confirm has an owner withdraw services that one of its sources has lost. If a source loses
more at once than its 'max_withdraw', the owner pauses their withdrawal, because a store
that is empty or was restored from a backup looks the same as a decision. 'federationctl
status' says how many services of which source are paused.`,
		Example: `  federationctl confirm
  federationctl confirm --of mesh-b.owner.example --source kubernetes:west`,
		Args: noArgs("name the endpoint with --at, the catalog with --of and the source with --source"),
	}, func(e *inspect.Endpoint, _ []string, out io.Writer) error {
		s, sent, err := e.ConfirmWithdrawal(ctx, of, source)
		return o.writeAnswer(out, sent, err, func() string {
			if s.Paused == 0 {
				return "no withdrawal is paused: there is nothing to confirm\n"
			}
			return fmt.Sprintf("withdrawn: %s of %s\n", status.CountNoun(s.Paused, "paused service"), safetext.Printable(s.Name))
		})
	})
	outputFlag(command, &o.output)
	command.Flags().StringVar(&of, "of", "", "server name of the `catalog`; none: the default or only one")
	command.Flags().StringVar(&source, "source", "", "`name` of the source; none: the only one with paused withdrawals")
	return command
}

func dumpCommand(ctx context.Context) *cobra.Command {
	var o statusOptions
	var of string
	limit := int64(catalogfile.DefaultLimit)
	command := o.runOnEndpoint(&cobra.Command{
		Use:   "dump",
		Short: "Write a catalog of a running CoreDNS or owner as a catalog file",
		Long: `dump writes a catalog as it is now, in the form that 'federationctl serve --catalog'
reads: JSON with a service on each line, sorted by name, so that equal catalogs are equal
texts. A CoreDNS writes the services as their owner publishes them, before rename, and
stale ones as well. 'federationctl status' lists the catalogs.`,
		Example: `  federationctl dump >saved.json && federationctl check saved.json

  # The catalog of one of several owners.
  federationctl dump --of owner.example:8008 | jq -r '.services[].fqdn'`,
		Args: noArgs("name the endpoint with --at, and the catalog with --of"),
	}, func(e *inspect.Endpoint, _ []string, out io.Writer) error {
		catalog, err := e.DumpCatalog(ctx, of, limit)
		if err == nil {
			_, err = io.WriteString(out, catalog)
		}
		return failureOf(err)
	})
	command.Flags().StringVar(&of, "of", "", "`owner` or server name of the catalog; none: the default or only one")
	maxCatalogFlag(command, &limit)
	return command
}
