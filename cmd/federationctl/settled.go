package main

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/inspect"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation/status"
)

// settledOptions are the flags of the commands that ask an owner what is settled.
type settledOptions struct {
	statusOptions

	what, address, catalog string
	ignore                 []string
}

func settledCommand(ctx context.Context, what, short, long, example string) *cobra.Command {
	o := settledOptions{what: what}
	command := &cobra.Command{
		Use:   what + " NAME",
		Short: short,
		Long: long + `

NAME is the fqdn or the name of a service, or a name below an fqdn. The consumers that
the policy tells the service of count, and those that are lost, until they answer
nothing any more. Progress goes to standard error.

The exit code is 0 when it is so, 3 when it is not in time, 4 when it cannot be known,
1 when the owner does not answer, and 2 when the command is called in a wrong way or
its output cannot be written. The owner must have the status endpoint, 'status' in its
configuration.`,
		Example: example,
		Args:    configFile(what, "a NAME", 1, 1),
		RunE: func(command *cobra.Command, args []string) error {
			return o.run(ctx, command, args[0])
		},
	}
	o.add(command)
	flags := command.Flags()
	flags.Lookup("timeout").Usage = "`time` to wait at most"
	flags.StringVar(&o.at, "at", inspect.OwnerAt, "`URL` of the status endpoint of the owner, or host:port")
	flags.StringVar(&o.address, "address", "", "`IP` address: only the endpoints with it count")
	flags.StringVar(&o.catalog, "catalog", "", "`server name` of the only catalog that counts; none: all")
	flags.StringArrayVar(&o.ignore, "ignore", nil, "`ID` of a consumer that does not count; repeatable")
	outputFlag(command, &o.output)
	return command
}

func (o *settledOptions) run(ctx context.Context, command *cobra.Command, name string) error {
	query := url.Values{"name": {name}, "for": {o.what}, "ignore": o.ignore}
	if o.address != "" {
		ip, err := netip.ParseAddr(o.address)
		if err != nil {
			return fmt.Errorf("--address: %q is no IP address", o.address)
		}
		query.Set("address", ip.String())
	}
	if command.Flags().Changed("catalog") {
		query.Set("catalog", o.catalog)
	}
	endpoint, err := o.endpoint(command.Flags(), o.at)
	if err != nil {
		return err
	}
	last := ""
	s, err := endpoint.Settled(ctx, query, o.timeout, func(s *status.Settlement, away error) {
		text := "the owner does not answer, and is asked again"
		if away == nil {
			text = s.Lines()[0]
		}
		if text != last {
			fmt.Fprintln(command.ErrOrStderr(), text)
		}
		last = text
	})
	if err != nil {
		return failure(err)
	}
	sent, err := printable.JSON(s)
	err = o.write(command.OutOrStdout(), sent, err, func() string {
		var text strings.Builder
		for _, line := range s.Lines() {
			text.WriteString(printable.Wrap(line, printable.LineWidth, "    ") + "\n")
		}
		return text.String()
	}, s.Name)
	if err != nil {
		return trouble(err) // and not done, as nobody has read that it is so
	}
	return ended(s.Code())
}

// settledCommands returns the commands of wait that ask an owner.
func settledCommands(ctx context.Context) []*cobra.Command {
	return []*cobra.Command{
		settledCommand(ctx, "gone", "Wait until nobody resolves a name of an owner any more", `gone waits until an owner has withdrawn a service, or an endpoint of it, and nobody has
it any more: each consumer has acknowledged that, and the TTL of what it answered
before is over. So it is safe to stop what is behind it.`,
			`  federationctl wait gone web.fed.example --address 192.0.2.1
  federationctl wait gone web.fed.example --timeout 10m -o json`),
		settledCommand(ctx, "there", "Wait until everybody resolves a name of an owner", `there waits until an owner publishes a service, or an endpoint of it, and everybody can
have it: each consumer has acknowledged it, and the TTL of what it answered before is
over.`,
			`  federationctl wait there web.fed.example
  federationctl wait there web.fed.example --address 192.0.2.1`),
	}
}
