package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/register/providers"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/watch/tty"
	"github.com/hamlet-federation/coredns-federation/federation"
)

// providersOptions are the flags of providers.
type providersOptions struct {
	target

	server  string
	service string
	watch   bool
	output  string
}

func providersCommand(ctx context.Context) *cobra.Command {
	var o providersOptions
	command := &cobra.Command{
		Use:   "providers --server ADDRESS {--cert FILE --key FILE --ca FILE | --spiffe SOCKET --owner-id ID}",
		Short: "Show which programs are registered with an owner",
		Long: `providers asks an owner which nodes are registered, and shows them sorted by
service: the instance that the provider has named, the provider's identity, since
when, and when it expires if nothing is heard of it. The state is

  connected   its provider has a stream to this owner
  lost        its provider's stream to this owner is gone, and it expires soon
  old         it was known before the owner's start; its provider is not back
  on OWNER    its provider is connected to another owner, which knows more

With --watch it goes on with a line for each change, until it is interrupted; an
owner that is lost is asked again. -o json has one object a line with the times in
UTC; the state of 'on OWNER' is elsewhere there. 'federationctl watch' shows what
is published of all this.

The owner tells this only to those whom its rules name as observers.`,
		Example: `  federationctl providers --server owner.example.org:8008 \
      --cert observer.pem --key observer-key.pem --ca ca.pem

  # The nodes of a service whose providers are not connected.
  federationctl providers --server owner.example.org:8008 \
      --cert observer.pem --key observer-key.pem --ca ca.pem \
      --service shop.fed.example -o json \
      | jq -r 'select(.state != "connected").node'`,
		Args:    none("name the owner with --server"),
		PreRunE: func(command *cobra.Command, _ []string) error { return checkOrigin(command.Flags(), "server") },
		RunE: func(command *cobra.Command, _ []string) error {
			return showing(command, func(p *tty.Progress) error {
				if !o.watch {
					p.Sayf("asking %s", federation.Printable(o.server))
				}
				return o.run(ctx, command.OutOrStdout(), command.ErrOrStderr())
			})
		},
	}
	flags := command.Flags()
	targetFlags(command, &o.target, "observer")
	flags.StringVar(&o.server, "server", "", "`address` of the owner, host or host:port (8008 by default)")
	require(command, "cert", "key", "ca", "server")
	flags.StringVar(&o.service, "service", "", "`fqdn` of the service; none: all")
	flags.BoolVar(&o.watch, "watch", false, "go on with what changes")
	outputFlag(command, &o.output)
	return command
}

func (o *providersOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	if o.service != "" {
		if _, err := federation.ParseFQDN(o.service); err != nil {
			return fmt.Errorf("--service: %w", err)
		}
	}
	o.servers = []string{o.server}
	identity, err := o.open(stderr)
	if err != nil {
		return err
	}
	o.server = o.servers[0]
	if err := awaitCertificate(ctx, identity.Source); err != nil {
		return err
	}
	var beside sync.WaitGroup
	defer beside.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	beside.Go(func() { _ = identity.Run(ctx) })
	beside.Go(func() {
		if err := tty.AwaitUnread(ctx, stdout); err != nil {
			cancel(err)
		}
	})
	err = providers.Show(ctx, providers.Config{
		Address: o.server, Credentials: identity.Credentials(o.server), Service: o.service,
		Watch: o.watch, Output: o.output, Stdout: stdout, Stderr: stderr,
	})
	switch {
	case errors.Is(context.Cause(ctx), tty.ErrUnread):
		return nil
	case err != nil:
		return failed("owner %s: %w", o.server, err)
	}
	return nil
}
