package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/register"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/register/child"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve/health"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/provider"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/node"
)

// target are the flags for the owners that a provider talks to.
type target struct {
	origin     mtls.Origin
	servers    []string
	serverName string
	ownerIDs   []federation.ID
}

// targetFlags adds them; party is who talks.
func targetFlags(command *cobra.Command, t *target, party string) {
	flags := command.Flags()
	originFlags(command, &t.origin, party, "owners")
	flags.StringVar(&t.serverName, "server-name", "", "`name` that the owner's certificate must be valid for; none: the host of --server")
	idsFlag(command, &t.ownerIDs, "owner-id", "`identity` that the owner must have, spiffe://... or a DNS name; repeatable; none: --server-name or the host of --server")
}

// open returns the identity of the party towards the owners.
func (t *target) open(stderr io.Writer) (mtls.Consumer, error) {
	for i, text := range t.servers {
		address, ok := ownerAddress(text)
		if !ok {
			return mtls.Consumer{}, fmt.Errorf("--server: %q is neither host nor host:port", text)
		}
		t.servers[i] = address
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
	target

	node   provider.Node
	health health.Config
	drain  time.Duration
}

func registerCommand(ctx context.Context) *cobra.Command {
	o := registerOptions{health: health.Config{Interval: 5 * time.Second, Timeout: 2 * time.Second}}
	command := &cobra.Command{
		Use:   "register --server ADDRESS[,...] --service FQDN --node URI {--cert FILE --key FILE --ca FILE | --spiffe SOCKET --owner-id ID} [-- COMMAND ARGUMENT...]",
		Short: "Register a program with an owner while it runs",
		Long: `register tells an owner that a program provides a service, for as long as it does.
The program need not know of it. The owner publishes the node, and its rules for
the identity in the certificate decide what may be registered.

--node is scheme://host:port, where the scheme is the protocol: http, https, grpc,
http2, mongo, tcp, tls or mtls. Without a host, as in https://:8443, it is the
address from which register connects to the owner.

With several addresses in --server, of owners that share what is registered, one
is used at a time: a random one first, and the next one when it fails. What is
registered stays for its ttl when nothing is heard of it, so an owner that is
restarted, or another one that takes its place, makes no gap.

With --check the program is registered only while it is healthy:

  http://HOST:PORT/PATH      a GET is answered with a status from 200 to 399;
                             https:// as well, without a look at the certificate
  tcp://HOST:PORT            a connection is accepted
  grpc://HOST:PORT[/SERVICE] the health service of gRPC says SERVING, without TLS
  exec:COMMAND               a command line of sh ends with exit code 0

After --check-failures in a row it is withdrawn, and after --check-successes in a
row it is registered.

With a COMMAND register is its parent. The command has the standard streams and the
environment. At SIGTERM or SIGINT the program is withdrawn first; after --drain,
when clients have forgotten it, the signal is passed on. A second one is passed on
at once, and so are SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH and SIGCONT. When
the command ends it is withdrawn at once, and its exit code is that of register:
128 and the number of the signal if one has ended it, 127 if there is no such
command, 126 if it cannot be run. That it is not registered, whatever the reason,
does not end it. The command is in a process group of its own: it gets Ctrl-C by
way of register, and cannot read from a terminal. As the first process of a
container (PID 1) register also reaps processes that have lost their parent.

Without a COMMAND register stands beside the program, until SIGTERM or SIGINT. It
ends when --drain is over, or at once with a second signal.

What happens is said on standard error, in a line for each change: registered,
refused, with the rule and the reason, lost, and registered again. An owner that
refuses is asked again now and then, as its rules may change.`,
		Example: `  # Run a program, and register it while it is healthy.
  federationctl register --server owner.example.org:8009 --cert provider.pem --key provider-key.pem --ca ca.pem \
      --service shop.fed.example --node http://:8080 --check http://127.0.0.1:8080/healthz -- shop --listen :8080

  # Stand beside a database that runs already, and talk to either of two owners.
  federationctl register --server owner.example.org:8009,owner-b.example.org:8009 \
      --cert provider.pem --key provider-key.pem --ca ca.pem --service db.fed.example --node tcp://:5432 \
      --check 'exec:pg_isready --quiet' --ttl 10s --metadata tier=gold`,
		Args: func(command *cobra.Command, args []string) error {
			if dash := command.ArgsLenAtDash(); len(args) > 0 && dash != 0 {
				return fmt.Errorf("register takes no argument, not %q; put -- before the command", args[0])
			} else if dash == 0 && len(args) == 0 {
				return errors.New("there is no command after --")
			}
			return nil
		},
		PreRunE: func(command *cobra.Command, _ []string) error {
			return checkOrigin(command.Flags(), "server", "service", "node")
		},
		RunE: func(command *cobra.Command, args []string) error {
			return o.run(ctx, command.Flags(), args, command.ErrOrStderr())
		},
	}
	flags := command.Flags()
	targetFlags(command, &o.target, "provider")
	flags.StringSliceVar(&o.servers, "server", nil, "`address` of an owner, host or host:port (8008 by default); repeatable, or separated by commas")
	flags.StringVar(&o.node.Service, "service", "", "`fqdn` of the service")
	flags.StringVar(&o.node.URI, "node", "", "`URI` at which the program provides it, scheme://[host]:port")
	require(command, "cert", "key", "ca", "server", "service", "node")
	positiveFlag(command, &o.node.TTL, "ttl", "for how `long` it stays registered when nothing is heard of it; none: what the owner's rule has")
	flags.Var(&flagValue{kind: repeatable, set: o.addMetadata}, "metadata", "`key=value` for clients of the service; repeatable")
	flags.StringVar(&o.node.Instance, "instance", "", "`ID` of the instance, such as a version: nodes with the same ID are one; none: one of its own")
	flags.StringVar(&o.node.Description, "description", "", "`text` for people")
	flags.Var(&flagValue{kind: "string", set: func(text string) (err error) {
		o.health.Check, err = health.Parse(text)
		return err
	}}, "check", "`URL` or exec:COMMAND by which the program is checked; none: it counts as healthy")
	positiveFlag(command, &o.health.Interval, "check-interval", "`time` from one check to the next")
	positiveFlag(command, &o.health.Timeout, "check-timeout", "`time` that a check may take")
	flags.IntVar(&o.health.Failures, "check-failures", 3, "`number` of failures in a row after which the program is withdrawn")
	flags.IntVar(&o.health.Successes, "check-successes", 1, "`number` of successes in a row after which it is registered")
	flags.DurationVar(&o.drain, "drain", 5*time.Second, "`time` for which clients may have the program in their caches after it is withdrawn")
	return command
}

// run registers until ctx ends, or the command in args.
func (o *registerOptions) run(ctx context.Context, flags *pflag.FlagSet, args []string, stderr io.Writer) error {
	if err := o.parse(flags); err != nil {
		return err
	}
	if own, ok := ctx.Value(endsItself{}).(*atomic.Bool); ok {
		own.Store(true) // the program, or its clients, may need longer
	}
	if len(args) > 0 && os.Getpid() == 1 {
		code, err := child.Init()
		if err != nil {
			return failure(err)
		}
		return ended(code)
	}
	identity, err := o.open(stderr)
	if err != nil {
		return err
	}
	if len(args) > 0 {
		ctx = context.WithoutCancel(ctx) // signals are for the command
	}
	code, err := register.Run(ctx, register.Config{
		Provider: provider.Config{Addresses: o.servers, Identity: identity},
		Node:     o.node, Health: o.health, Drain: o.drain, Command: args, Stderr: stderr,
	})
	if err != nil {
		fmt.Fprintf(stderr, "federationctl: %v\n", err)
		return ended(max(code, exitFailed))
	}
	return ended(code)
}

// parse checks the values of the flags.
func (o *registerOptions) parse(flags *pflag.FlagSet) error {
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
