package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/register"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve/health"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/provider"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
)

// ownerTarget are the flags for the owners that a provider talks to.
type ownerTarget struct {
	origin     mtls.Origin
	servers    []string
	serverName string
	ownerIDs   []federation.ID
}

// targetFlags adds them; party is who talks.
func targetFlags(command *cobra.Command, t *ownerTarget, party string) {
	flags := command.Flags()
	originFlags(command, &t.origin, party, "owners")
	flags.StringVar(&t.serverName, "server-name", "", "`name` in the owner's certificate, if not the host of --server")
	idsFlag(command, &t.ownerIDs, "owner-id", "`identity` of the owner, if not its host; repeatable")
}

// openIdentity returns the identity of the party towards the owners.
func (t *ownerTarget) openIdentity(stderr io.Writer) (mtls.Consumer, error) {
	for i, text := range t.servers {
		var err error
		if t.servers[i], err = parseOwnerAddress(text); err != nil {
			return mtls.Consumer{}, fmt.Errorf("--server: %w", err)
		}
	}
	if err := checkOwner(t.ownerIDs, t.origin, "--server"); err != nil {
		return mtls.Consumer{}, err
	}
	source, err := openOrigin(t.origin, slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return mtls.Consumer{}, err
	}
	return mtls.Consumer{Source: source, ServerName: t.serverName, IDs: t.ownerIDs}, nil
}

// registerOptions are the flags of register.
type registerOptions struct {
	ownerTarget

	node   provider.Node
	health health.Config
	drain  time.Duration
}

func registerCommand(ctx context.Context) *cobra.Command {
	o := registerOptions{health: health.Config{Interval: 5 * time.Second, Timeout: 2 * time.Second}}
	command := &cobra.Command{
		Use:   "register --server ADDRESS[,...] --service FQDN --node URI {--cert FILE --key FILE --ca FILE | --spiffe SOCKET --owner-id ID}",
		Short: "Register a program with an owner",
		Long: `register runs beside a program, and keeps it registered with an owner while its --check
succeeds: http://HOST:PORT/PATH or https for a status from 200 to 399, or tcp://HOST:PORT.
At SIGTERM it withdraws the program, and ends after --drain: stop the program then, as the
unit of systemd in docs/owner.md does. --node is scheme://host:port with http, https,
grpc, http2, mongo, tcp, tls or mtls; without a host it is the address of register.`,
		Example: `  # Register a program while it is healthy.
  federationctl register --server owner.example.org:8008 --cert provider.pem \
      --key provider-key.pem --ca ca.pem --service shop.fed.example \
      --node http://:8080 --check http://127.0.0.1:8080/healthz

  # Register a database with either of two owners.
  federationctl register \
      --server owner.example.org:8008,owner-b.example.org:8008 \
      --cert provider.pem --key provider-key.pem --ca ca.pem \
      --service db.fed.example --node tcp://:5432 --check tcp://127.0.0.1:5432`,
		Args: noArgs("systemd, or a container beside this one, runs the program"),
		RunE: func(command *cobra.Command, _ []string) error {
			return o.registerNode(ctx, command.Flags(), command.ErrOrStderr())
		},
	}
	flags := command.Flags()
	targetFlags(command, &o.ownerTarget, "provider")
	flags.StringSliceVar(&o.servers, "server", nil, "`address` of an owner, host[:port]; repeatable")
	flags.StringVar(&o.node.Service, "service", "", "`fqdn` of the service")
	flags.StringVar(&o.node.URI, "node", "", "`URI` of the program")
	requireFlags(command, "server", "service", "node")
	positiveFlag(command, &o.node.TTL, "ttl", "`duration` for which the owner keeps the program registered without hearing of it; default: the owner's")
	flags.Var(&flagValue{kind: repeatable, set: o.addMetadata}, "metadata", "`key=value` for clients of the service; repeatable")
	flags.StringVar(&o.node.Instance, "instance", "", "`ID` of the instance, which nodes may share")
	flags.StringVar(&o.node.Description, "description", "", "`text` for people")
	flags.Var(&flagValue{kind: "string", set: func(text string) (err error) {
		o.health.Check, err = health.ParseCheck(text)
		return err
	}}, "check", "`URL` that checks the program")
	positiveFlag(command, &o.health.Interval, "check-interval", "`time` between two checks")
	positiveFlag(command, &o.health.Timeout, "check-timeout", "`time` that a check may take")
	flags.IntVar(&o.health.Failures, "check-failures", 3, "`number` of failed checks until the program is withdrawn")
	flags.IntVar(&o.health.Successes, "check-successes", 1, "`number` of successful checks until the program is registered")
	flags.DurationVar(&o.drain, "drain", 5*time.Second, "`time` between the withdrawal and the end of register, so that caches of clients expire")
	return command
}

// registerNode registers until ctx ends.
func (o *registerOptions) registerNode(ctx context.Context, flags *pflag.FlagSet, stderr io.Writer) error {
	if err := o.checkFlags(flags); err != nil {
		return err
	}
	if own, ok := ctx.Value(endsItself{}).(*atomic.Bool); ok {
		own.Store(true) // clients may need longer
	}
	identity, err := o.openIdentity(stderr)
	if err != nil {
		return err
	}
	return failureOf(register.Run(ctx, register.Config{
		Provider: provider.Config{Addresses: o.servers, Identity: identity},
		Node:     o.node, Health: o.health, Drain: o.drain, Stderr: stderr,
	}))
}

// checkFlags checks the values of the flags.
func (o *registerOptions) checkFlags(flags *pflag.FlagSet) error {
	if _, err := federation.ParseFQDN(o.node.Service); err != nil {
		return fmt.Errorf("--service: %w", err)
	}
	if _, err := node.ParseURI(o.node.URI, netip.IPv6Loopback()); err != nil {
		return fmt.Errorf("--%w", err)
	}
	for _, name := range []string{"check-failures", "check-successes"} {
		if n, err := flags.GetInt(name); err != nil || n < 1 {
			return fmt.Errorf("--%s: %d is less than 1", name, n)
		}
	}
	if o.drain < 0 {
		return fmt.Errorf("--drain: %v is negative", o.drain)
	}
	return nil
}

// addMetadata takes a value of --metadata.
func (o *registerOptions) addMetadata(text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return fmt.Errorf("%q is not key=value", text)
	}
	if _, twice := o.node.Metadata[name]; twice {
		return fmt.Errorf("%q is there twice", name)
	}
	if o.node.Metadata == nil {
		o.node.Metadata = make(map[string]string)
	}
	o.node.Metadata[name] = value
	return nil
}
