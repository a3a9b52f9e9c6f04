package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/watch"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// watchOptions are the flags of watch.
type watchOptions struct {
	origin   mtls.Origin
	ownerIDs []federation.ID
	watch.Config
}

func watchCommand(ctx context.Context) *cobra.Command {
	o := watchOptions{Config: watch.Config{Version: wire.V1Alpha2}}
	command := &cobra.Command{
		Use:   "watch ADDRESS {--cert FILE --key FILE --ca FILE | --spiffe SOCKET --owner-id ID}",
		Short: "Show what an owner publishes",
		Long: `watch subscribes to an owner as CoreDNS would, and prints a line for each service, one
when the catalog is complete, and one for each change. The port of ADDRESS is 8008 by
default. An owner that is away is tried until it answers. Services that break a rule are
refused and named on standard error.

With --once the watch ends when the catalog is complete: when the owner says so or,
without an end marker, after ` + watch.SettleTime.String() + ` of silence. It fails when the owner cannot be reached
at once, or says nothing for ` + watch.EmptyTime.String() + `.`,
		Example: `  federationctl watch owner.example.org:8008 --cert consumer.pem \
      --key consumer-key.pem --ca ca.pem

  # The names of all services.
  federationctl watch https://owner.example.org:8008 --cert consumer.pem \
      --key consumer-key.pem --ca ca.pem \
      --owner-id spiffe://federation.example/owner --once -o json \
      | jq -r 'select(.op == "upsert").service.fqdn'`,
		Args:              argsBetween("one ADDRESS", 1, 1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(command *cobra.Command, args []string) error {
			return o.watchOwner(ctx, args[0], command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags := command.Flags()
	originFlags(command, &o.origin, "consumer", "owners")
	idsFlag(command, &o.ownerIDs, "owner-id", "`identity` of the owner, if not its host; repeatable")
	flags.Var(&flagValue{kind: "string", text: apis[0], set: func(text string) (err error) {
		o.Version, err = wire.ParseVersion(text)
		return err
	}}, "api", "`version` of the protocol: "+strings.Join(apis, " or "))
	completeValues(command, "api", apis)
	rangesFlag(command, &o.Policy.AllowAddresses)
	outputFlag(command, &o.Output)
	flags.BoolVar(&o.Once, "once", false, "end when the catalog is complete")
	return command
}

func (o *watchOptions) watchOwner(ctx context.Context, target string, stdout, stderr io.Writer) error {
	var err error
	if o.Address, err = parseOwnerAddress(target); err != nil {
		return fmt.Errorf("ADDRESS: %w; it is such as owner.example, owner.example:8008 or https://owner.example:8008", err)
	}
	if err := checkOwner(o.ownerIDs, o.origin, "ADDRESS"); err != nil {
		return err
	}
	o.Stdout, o.Stderr = stdout, stderr
	w := watch.New(o.Config)
	certificates, err := openOrigin(o.origin, slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return err
	}
	if o.Once { // as the owner is tried only once
		if err := awaitCertificate(ctx, certificates); err != nil {
			return err
		}
	}
	return failureOf(w.Run(ctx, mtls.Consumer{Source: certificates, IDs: o.ownerIDs}))
}

// awaitCertificate returns nil when there is a certificate, and a failure when a SPIFFE
// agent has issued none for watch.EmptyTime.
func awaitCertificate(ctx context.Context, certificates *mtls.Source) error {
	issued := certificates.Changed()
	if certificates.Missing() == nil {
		return nil
	}
	var following sync.WaitGroup
	defer following.Wait()
	ctx, cancel := context.WithTimeout(ctx, watch.EmptyTime)
	defer cancel()
	following.Go(func() { _ = certificates.Run(ctx) })
	select {
	case <-issued:
		return nil
	case <-ctx.Done():
		return newFailuref("%w; check --spiffe, and that the agent knows this process", certificates.Missing())
	}
}

// apis are the versions of the protocol that watch speaks.
var apis = []string{wire.V1Alpha2.String(), wire.V1Alpha1.String()}
