package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/ownerfile"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// serveOptions are the flags of serve.
type serveOptions struct {
	listen  string
	catalog string
	files   mtls.Files
	allow   []string
	ranges  []string
	window  int
}

func serveCommand(ctx context.Context) *cobra.Command {
	var o serveOptions
	command := &cobra.Command{
		Use:   "serve --catalog FILE --cert FILE --key FILE --ca FILE",
		Short: "Publish the services of a catalog file",
		Long: `serve publishes the services of a catalog file to every consumer that
subscribes with a certificate of the authorities in --ca, and with one of the
identities in --allow-id if there are any.

The catalog is a YAML or JSON file:

  services:
  - name: shop                       # unique, the ID of the service
    fqdn: shop.fed.example           # what clients look up
    endpoints:
    - {address: 192.0.2.10, port: 443, labels: [stable]}
    instances:
    - {id: v1, protocol: HTTPS, endpointSelector: [stable]}

It is followed: a change is published as a difference, at once. A file that is
broken is reported and changes nothing; 'federationctl lint' finds all that is
wrong with it. The certificate files are followed too.

A signal (SIGINT, SIGTERM) ends the owner: its consumers are told to try again
later and keep what they have.`,
		Example: `  # Publish to one consumer only.
  federationctl serve --catalog catalog.yaml --cert owner.pem --key owner-key.pem --ca ca.pem \
      --allow-id spiffe://consumer.example/coredns

  # Consumers are 50 ms away: 256 messages ahead of their acknowledgements let
  # 10,000 services arrive in 2 seconds instead of 8 minutes.
  federationctl serve --catalog catalog.yaml --cert owner.pem --key owner-key.pem --ca ca.pem --window 256`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return o.run(ctx, command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.listen, "listen", ":8008", "`address` to listen on, host:port; without a host all of this machine's")
	flags.StringVar(&o.catalog, "catalog", "", "YAML or JSON `file` with the services")
	filesFlags(command, &o.files, "owner", "consumers")
	flags.StringArrayVar(&o.allow, "allow-id", nil, "`identity` that may subscribe, spiffe://... or a DNS name; repeatable; none: every certificate of --ca")
	rangesFlag(command, &o.ranges)
	flags.IntVar(&o.window, "window", 1, fmt.Sprintf("messages sent ahead of their acknowledgements, 1 to %d; the specification's rule is 1, more is faster on a long link", owner.MaxWindow))
	require(command, "catalog")
	return command
}

func (o *serveOptions) run(ctx context.Context, stdout, stderr io.Writer) error {
	allow, err := parseIDs("allow-id", o.allow)
	if err != nil {
		return err
	}
	policy, err := parsePolicy(o.ranges)
	if err != nil {
		return err
	}
	if o.window < 1 || o.window > owner.MaxWindow {
		return fmt.Errorf("--window: %d is not in 1 to %d", o.window, owner.MaxWindow)
	}
	logger := slog.New(slog.NewTextHandler(stderr, nil))
	certificates, err := loadFiles(o.files, logger)
	if err != nil {
		return err
	}
	registry := owner.NewRegistry()
	file, err := ownerfile.OpenCatalog(ownerfile.CatalogConfig{Path: o.catalog, Registry: registry, Policy: policy, Logger: logger})
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return failure{err}
	}
	if err != nil {
		return failed("%w; mend it with the help of 'federationctl lint %s'", err, o.catalog)
	}
	server, err := owner.New(owner.Config{
		Registry:    registry,
		Credentials: certificates.Server(),
		Allow:       allow,
		Window:      o.window,
		Logger:      logger,
	})
	if err != nil {
		return failure{err}
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return failed("%w; choose another address with --listen", err)
	}
	if len(allow) == 0 {
		logger.Info("every consumer with a certificate of the CA file may subscribe; --allow-id names those that may", "file", o.files.CA)
	}
	fmt.Fprintf(stdout, "serving %d services on %s\n", registry.Len(), listener.Addr())

	ctx, cancel := context.WithCancel(ctx)
	var followers sync.WaitGroup
	defer followers.Wait()
	defer cancel()
	followers.Go(func() { _ = file.Run(ctx) }) // it returns nil when ctx ends, and so does the next one
	followers.Go(func() { _ = certificates.Run(ctx) })
	if err := server.Serve(ctx, listener); err != nil {
		return failure{err}
	}
	return nil
}

// rangesFlag adds the flag that makes the parameter of parsePolicy.
func rangesFlag(command *cobra.Command, ranges *[]string) {
	command.Flags().StringArrayVar(ranges, "allow-addresses", nil,
		"`CIDR` of endpoint addresses that consumers refuse unless they are told otherwise, such as 127.0.0.0/8; repeatable")
}

// parsePolicy returns the policy that opens these ranges of addresses.
func parsePolicy(ranges []string) (wire.Policy, error) {
	var policy wire.Policy
	for _, text := range ranges {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return wire.Policy{}, fmt.Errorf("--allow-addresses: %q is not a CIDR such as 127.0.0.0/8", text)
		}
		policy.AllowAddresses = append(policy.AllowAddresses, prefix)
	}
	return policy, nil
}
