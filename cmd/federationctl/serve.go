package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/hamlet-federation/coredns-federation/federation/catalogfile"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/ownerfile"
	"github.com/hamlet-federation/coredns-federation/federation/regularfile"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// serveOptions are the flags of serve.
type serveOptions struct {
	listen    string
	catalog   string
	max       size
	files     mtls.Files
	allow     []string
	allowFile string
	ranges    []string
	window    int
	metrics   string
}

func serveCommand(ctx context.Context) *cobra.Command {
	o := serveOptions{max: catalogfile.DefaultLimit}
	command := &cobra.Command{
		Use:   "serve --catalog FILE --cert FILE --key FILE --ca FILE",
		Short: "Publish the services of a catalog file",
		Long: `serve publishes the services of a catalog file to consumers. A consumer needs a
certificate of an authority in --ca and, if --allow-id or --allow-file is given,
one of the identities named there. Others get Unauthenticated. Both versions of
the API, v1alpha2 and v1alpha1, are served on the same address.

The catalog is a YAML or JSON file:

  services:
  - name: shop                       # unique, the ID of the service
    fqdn: shop.fed.example           # what clients look up
    endpoints:
    - {address: 192.0.2.10, port: 443, labels: [stable]}
    instances:
    - {id: v1, protocol: HTTPS, endpointSelector: [stable]}

The allow file has one identity a line, spiffe://... or a DNS name. A # begins a
comment:

  spiffe://consumer.example/coredns  # the edge
  dns.partner.example

The catalog, the allow file and the certificates are followed. When the catalog
changes, the difference is published at once. Consumers that the allow file does
not name any more lose their streams. A new certificate is used from the next
connection on.

A file that is broken, empty or gone is reported and changes nothing: no service
is withdrawn, and the same consumers are allowed. To withdraw every service write
'services: []'; to allow no consumer write the line [] into the allow file.
'federationctl lint' finds all that is wrong with a catalog.

Replace files with a rename, as most editors and Kubernetes do. A file that is
written in place is read when it has not changed for a tenth of a second, and the
first half of a list may look like a shorter list.

Files must be regular files, or symbolic links to regular files: a FIFO or a
device counts as broken. A catalog may have the size --max-catalog, an allow file
and each certificate file 1 MiB. A catalog of more than 8 MiB must be JSON, or the
line 'services:' and a list in which the '-' of each service is in the same
column; it is read service by service, and after an edit only the services that
have changed. It needs memory of seven times its size.

A consumer gets each service that has changed once, in its last state, however far
it is behind. A service that a consumer refuses is logged with the reason, and
sent again when it changes.

There may be 8192 connections, or fewer where the process may not have so many
files open, of which one address may have three quarters. Half of them may be in
their handshakes, a quarter for one address. Further connections are closed. A
connection without a stream is closed after a minute. When an authority leaves
--ca, the connections of the consumers that it has signed end within a minute.

The health service of gRPC (grpc.health.v1) answers on the same address, to
everybody with a certificate of --ca. --metrics serves metrics for Prometheus on
an address of its own, under /metrics and without TLS:

  federation_owner_consumers{version}      open streams
  federation_owner_services                services in the catalog
  federation_owner_unsent_services         not sent yet, over all consumers
  federation_owner_in_flight_responses     sent and not acknowledged yet
  federation_owner_lag_seconds             age of the oldest change that some
                                           consumer has not acknowledged
  federation_owner_acknowledged_total      responses that were accepted
  federation_owner_refused_total{field}    responses that were refused
  federation_owner_streams_ended_total{code}
  federation_owner_connections             open connections
  federation_owner_connections_turned_away_total{limit}
  federation_owner_file_broken{file}       1 while a file is not used
  federation_owner_certificate_expiry_timestamp_seconds{file}

SIGINT or SIGTERM ends the owner: its consumers are told to try again later, and
keep what they have. A second signal ends it at once. It ends with exit code 1 if
it could not shut down within ten seconds, for example because nobody reads its log.

Consumers may send up to one ping a second.`,
		Example: `  # Publish to one consumer only.
  federationctl serve --catalog catalog.yaml --cert owner.pem --key owner-key.pem --ca ca.pem \
      --allow-id spiffe://consumer.example/coredns

  # Allow other consumers without a restart: edit consumers.txt.
  federationctl serve --catalog catalog.yaml --cert owner.pem --key owner-key.pem --ca ca.pem \
      --allow-file consumers.txt --metrics localhost:9153

  # Consumers with a round trip of 50 ms: 10,000 services take 1.2 seconds with up to
  # 512 messages ahead of their acknowledgements, and 8 minutes without.
  federationctl serve --catalog catalog.yaml --cert owner.pem --key owner-key.pem --ca ca.pem --window 512`,
		Args: none("name the catalog with --catalog"),
		RunE: func(command *cobra.Command, _ []string) error {
			return o.run(ctx, command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.listen, "listen", ":8008", "`address` to listen on, host:port; without a host, all addresses of this machine")
	flags.StringVar(&o.catalog, "catalog", "", "YAML or JSON `file` with the services")
	maxCatalogFlag(command, &o.max)
	filesFlags(command, &o.files, "owner", "consumers")
	flags.StringArrayVar(&o.allow, "allow-id", nil, "`identity` that may subscribe, spiffe://... or a DNS name; repeatable; without this flag and --allow-file, every certificate of --ca may")
	flags.StringVar(&o.allowFile, "allow-file", "", "`file` with more identities that may subscribe, one a line; followed")
	rangesFlag(command, &o.ranges)
	flags.IntVar(&o.window, "window", 1, fmt.Sprintf("messages sent ahead of their acknowledgements, 1 to %d; 1 is the rule of the specification, more is faster on a long link", owner.MaxWindow))
	flags.StringVar(&o.metrics, "metrics", "", "`address` to serve metrics on, host:port; without this flag there are none")
	require(command, "catalog")
	return command
}

// run serves until ctx ends.
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
	catalog, err := ownerfile.OpenCatalog(ctx, ownerfile.CatalogConfig{
		Path: o.catalog, Registry: registry, Policy: policy, MaxBytes: int64(o.max), Logger: logger,
	})
	switch _, pathError := errors.AsType[*fs.PathError](err); {
	case errors.Is(err, regularfile.ErrTooLarge):
		return failed("%w; --max-catalog raises it", err)
	case pathError, errors.Is(err, regularfile.ErrNotRegular):
		return failure{err}
	case ctx.Err() != nil:
		return failed("interrupted before the catalog was read")
	case err != nil:
		return failed("%w; find all mistakes with 'federationctl lint %s'", err, o.catalog)
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
	var allowed *ownerfile.File
	switch {
	case o.allowFile != "":
		set := func(ids []mtls.ID) { server.SetAllow(slices.Concat(allow, ids)) }
		if allowed, err = ownerfile.OpenAllow(ctx, ownerfile.AllowConfig{Path: o.allowFile, Set: set, Logger: logger}); err != nil {
			return failed("%w; it needs one identity a line, spiffe://... or a DNS name", err)
		}
	case len(allow) == 0:
		logger.Info("every consumer with a certificate of the CA file may subscribe; --allow-id and --allow-file name those that may", "file", o.files.CA)
	}
	listener, err := listen(ctx, "listen", o.listen)
	if err != nil {
		return err
	}
	var metrics net.Listener
	if o.metrics != "" {
		if metrics, err = listen(ctx, "metrics", o.metrics); err != nil {
			return errors.Join(err, listener.Close())
		}
	}
	fmt.Fprintf(stdout, "serving %d services on %s\n", registry.Len(), listener.Addr())

	ctx, cancel := context.WithCancel(ctx)
	var followers sync.WaitGroup
	defer followers.Wait()
	defer cancel()
	if metrics != nil {
		fmt.Fprintf(stdout, "metrics on http://%s/metrics\n", metrics.Addr())
		scraped := metricsServer(ownerMetrics{server, catalog, allowed, certificates})
		defer scraped.Close() // after the owner has ended, so that its end can be watched
		followers.Go(func() {
			if err := scraped.Serve(metrics); !errors.Is(err, http.ErrServerClosed) {
				logger.Error("metrics are not served any more", "error", err)
			}
		})
	}
	// Each of these returns nil when ctx ends.
	followers.Go(func() { _ = catalog.Run(ctx) })
	followers.Go(func() { _ = certificates.Run(ctx) })
	if allowed != nil {
		followers.Go(func() { _ = allowed.Run(ctx) })
	}
	if err := server.Serve(ctx, listener); err != nil {
		return failure{err}
	}
	return nil
}

// size is a number of bytes as the value of a flag, such as 512MiB.
type size int64

// units has the units of a size, each 1024 times the one before.
var units = []string{"B", "KiB", "MiB", "GiB"}

// String implements pflag.Value.
func (s *size) String() string {
	number, unit := *s, 0
	for number != 0 && number%1024 == 0 && unit < len(units)-1 {
		number, unit = number/1024, unit+1
	}
	return strconv.FormatInt(int64(number), 10) + units[unit]
}

// Set implements pflag.Value.
func (s *size) Set(text string) error {
	digits := strings.TrimRight(text, "BKMGi")
	unit := max(slices.Index(units, text[len(digits):]), 0)
	number, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || number < 1 || digits+units[unit] != text && digits != text {
		return errors.New("not a size such as 512MiB")
	}
	*s = size(number << (10 * unit))
	return nil
}

// Type implements pflag.Value.
func (*size) Type() string { return "size" }

// maxCatalogFlag adds the flag that bounds a catalog file.
func maxCatalogFlag(command *cobra.Command, limit *size) {
	command.Flags().Var(limit, "max-catalog", "`size` that a catalog file may have, in bytes or with KiB, MiB or GiB")
}

// listen listens on the address that is the value of a flag.
func listen(ctx context.Context, flag, address string) (net.Listener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, failed("%w; choose another address with --%s", err, flag)
	}
	return listener, nil
}

// rangesFlag adds the flag whose values parsePolicy takes.
func rangesFlag(command *cobra.Command, ranges *[]string) {
	command.Flags().StringArrayVar(ranges, "allow-addresses", nil,
		"`CIDR` of endpoint addresses to allow that consumers refuse by default, such as 127.0.0.0/8; repeatable")
}

// parsePolicy returns the policy that allows these ranges of addresses.
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
