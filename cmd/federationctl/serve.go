package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"strings"
	"sync"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/ownreport"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/publisher"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/telemetry"
	"github.com/hamlet-federation/coredns-federation/federation/catalogfile"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/ownerconfig"
	"github.com/hamlet-federation/coredns-federation/federation/regularfile"
	"github.com/hamlet-federation/coredns-federation/federation/statuspage"
	"github.com/hamlet-federation/coredns-federation/federation/tracing"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// ownerExample is a short configuration, for the help.
const ownerExample = `listen: ":8008"
metrics: "localhost:9153"          # metrics, health and the status page
status: "localhost:9154"           # for people: what is published, to whom, and why
identity:
  files: {cert: owner.pem, key: owner-key.pem, ca: ca.pem}
allow:                             # who may subscribe
  ids: ["spiffe://consumer.example/coredns"]
  file: consumers.txt              # more of them, one a line
catalogs:
- sources:                         # the default; the first source wins
  - file: {path: catalog.yaml}
  - kubernetes: {cluster: west, zone: west.fed.example, kubeconfig: west.conf, publish: {labels: [tier]}}
  - registration:                  # programs register, as the rules say
      listen: ":8009"              # without it on the port above
      rules: registrations.yaml
      store: {file: {path: registrations.journal}}
  exports:                         # the first rule that fits; none: not told
  - match: {fqdn: ["*.west.fed.example"], labels: {tier: public}}
    to: ["spiffe://consumer.example/*"]
- server_name: b.owner.example     # for consumers that ask for this name
  sources:
  - file: {path: b.yaml, lifetime: forever}
- server_name: c.owner.example     # the catalog of another owner, while that is there
  relay: {addresses: ["c.example:8008"], owner_ids: ["spiffe://c.example/owner"], persist: c.catalog}
`

// indented returns a text with two blanks before each line.
func indented(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n  ") + "\n"
}

// serveOptions are the flags of serve.
type serveOptions struct {
	config    string
	listen    string
	catalog   string
	max       size
	origin    mtls.Origin
	allow     []string
	allowFile string
	ranges    []string
	window    int
	metrics   string
	logFormat logFormat
	status    string
}

func serveCommand(ctx context.Context) *cobra.Command {
	o := serveOptions{max: catalogfile.DefaultLimit}
	command := &cobra.Command{
		Use:   "serve {--config FILE | --catalog FILE {--cert FILE --key FILE --ca FILE | --spiffe SOCKET}}",
		Short: "Publish services: of a catalog file, or as a configuration file says",
		Long: `serve publishes the services of a catalog file to consumers or, with --config,
those of any number of catalogs, each filled by files, Kubernetes clusters, programs
that register, registries of the Network Service Mesh, or another owner. A consumer needs a
certificate of an authority in --ca and, if --allow-id or --allow-file is given, one
of the identities named there. Others get Unauthenticated. Both versions of the
API, v1alpha2 and v1alpha1, are served on the same address.

With --spiffe a SPIFFE agent issues the certificate and says which authorities to
trust, in place of the three files. A consumer then is its SPIFFE ID, of the same
trust domain or one that --trust-domain names. Until the agent has issued a
certificate, connections fail; one that is away later is survived until the
certificate expires.

The file of --config says what the flags say, and more:

` + indented(ownerExample) + `
Paths are relative to the directory of the file. With it nobody may subscribe whom
allow does not name. exports says who of them is told of which services; where it
is there, nobody is told what no rule tells them. The file is followed, and applied
as a difference: consumers that stay allowed keep their streams. New values of
listen, metrics, status and window, and another origin of the identity, wait for a restart,
and the log names them; the rest is applied. A file with a mistake changes nothing;
all mistakes are logged, and 'federationctl lint' shows them, too. Until all sources of a catalog have been read once, its consumers
get Unavailable. A source that has been away for its lifetime goes with its services, or,
where all are away, the catalog is Unavailable. docs/owner.md in the source has every key.

A registration takes programs that tell of themselves, on a port of its own or on
that of the owner. The rules say which identity may register what; they are
followed. Without a store what is registered is in memory only.

A relay passes on the catalog of another owner, with exports or as it is. It is
available exactly while its upstream is: what consumers get is then never older
than what they would get there. The certificate of the identity is the one that it
shows there, so it must be valid for clients, too.

A catalog is a YAML or JSON file:

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

There may be 16384 connections, or fewer where the process may not have so many
files open, of which one address may have three quarters. Half of them may be in
their handshakes, a quarter for one address. Further connections are closed. A
connection without a stream is closed after a minute. When an authority leaves
--ca, the connections of the consumers that it has signed end within a minute, and
so does the connection of a consumer whose certificate has expired.

The health service of gRPC (grpc.health.v1) answers on the same address, to
everybody with a certificate of --ca. --metrics has an address of its own, without
TLS. There /healthz answers while the process runs, /readyz once one catalog has
been complete and consumers are served, and says what is waited for otherwise, / is
a page that shows the state of each source, and /metrics is for Prometheus.

--status has another address, for people: a page and JSON that say what is published,
who is told of it, and why a name is there or not. 'federationctl why', 'status',
'dump' and 'diff' ask it. It takes a loopback address, such as localhost:9154; with
the key status of --config, and certificates, any other. The metrics:

  federation_owner_ready                   1 once /readyz says so
  federation_owner_consumers{catalog,version}
                                           open streams
  federation_owner_withheld_services{catalog,version}
                                           that it cannot express, or no message
                                           has room for
  federation_owner_services{catalog}       services in the catalog
  federation_owner_catalog_unavailable{catalog}
                                           1 while its consumers get Unavailable
  federation_owner_unsent_services{catalog}
                                           not sent yet, over all consumers
  federation_owner_in_flight_responses{catalog}
                                           sent and not acknowledged yet
  federation_owner_lag_seconds{catalog}    age of the oldest change that some
                                           consumer has not acknowledged
  federation_owner_acknowledged_total{catalog}
                                           responses that were accepted
  federation_owner_refused_total{catalog,field}
                                           responses that were refused
  federation_owner_streams_ended_total{catalog,code}
  federation_owner_source_complete{catalog,source}
                                           1 once its whole state was known
  federation_owner_source_away_seconds{catalog,source}
                                           for how long it cannot be asked
  federation_owner_source_lifetime_seconds{catalog,source}
                                           for how long it may be: 0 for a relay,
                                           none where that is for ever
  federation_owner_source_services{catalog,source}
  federation_owner_source_hidden_services{catalog,source}
                                           hidden by a source before it
  federation_owner_source_refused_entries{catalog,source,rule}
                                           entries that are not published
  federation_owner_relay_hops{catalog,source}
                                           owners that its services came through;
                                           0: it is not known
  federation_owner_resumed_streams_total{catalog}
                                           whose consumers had a part already
  federation_owner_resume_spared_services_total{catalog}
                                           not sent again therefore
  federation_owner_class_consumers{catalog,class}
                                           open streams, by the rules for them: 1+3
  federation_owner_class_services{catalog,class}
                                           services that each of them is told
  federation_owner_registration_nodes{catalog,source}
                                           nodes that are registered
  federation_owner_registration_providers{catalog,source}
                                           open streams of providers
  federation_owner_registration_old_nodes{catalog,source}
                                           from before the start, and their
                                           providers are not back yet
  federation_owner_registration_convergence_seconds{catalog,source}
                                           for how long these may come back
  federation_owner_registration_pending_changes{catalog,source}
                                           that are not stored yet
  federation_owner_registration_store_away{catalog,source}
                                           1 while the store cannot be asked
  federation_owner_registration_granted_total{catalog,source}
  federation_owner_registration_cleared_total{catalog,source}
  federation_owner_registration_expired_total{catalog,source,cause}
  federation_owner_registration_refused_total{catalog,source,rule}
  federation_owner_connections             open connections
  federation_owner_connections_turned_away_total{limit}
  federation_owner_admission_waiting       streams that wait for their turn to be
                                           sent the catalog
  federation_owner_admission_turned_away_total
                                           that were told to come back later
  federation_owner_file_broken{file}       1 while a file is not used: config,
                                           allow, catalog or rules
  federation_owner_certificate_expiry_timestamp_seconds{file}

The label catalog is the server name, and empty for the default catalog.

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

  # Catalogs and sources as a configuration file says.
  federationctl serve --config owner.yaml

  # Consumers with a round trip of 50 ms: 10,000 services take 1.2 seconds with up to
  # 512 messages ahead of their acknowledgements, and 8 minutes without.
  federationctl serve --catalog catalog.yaml --cert owner.pem --key owner-key.pem --ca ca.pem --window 512`,
		Args: none("name the catalog with --catalog"),
		RunE: func(command *cobra.Command, _ []string) error {
			return o.run(ctx, command.Flags(), command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.config, "config", "", "YAML or JSON configuration `file`, in place of all other flags but --log-format; followed")
	flags.StringVar(&o.listen, "listen", ":8008", "`address` to listen on, host:port; without a host, all addresses of this machine")
	flags.StringVar(&o.catalog, "catalog", "", "YAML or JSON `file` with the services")
	maxCatalogFlag(command, &o.max)
	originFlags(command, &o.origin, "owner", "consumers")
	flags.StringArrayVar(&o.allow, "allow-id", nil, "`identity` that may subscribe, spiffe://... or a DNS name; repeatable; without this flag and --allow-file, every certificate of --ca may")
	flags.StringVar(&o.allowFile, "allow-file", "", "`file` with more identities that may subscribe, one a line; followed")
	rangesFlag(command, &o.ranges)
	flags.IntVar(&o.window, "window", 1, fmt.Sprintf("messages sent ahead of their acknowledgements, 1 to %d; 1 is the rule of the specification, more is faster on a long link", owner.MaxWindow))
	flags.StringVar(&o.status, "status", "", "loopback `address` to serve status and why on, such as localhost:9154; without this flag there are none")
	flags.StringVar(&o.metrics, "metrics", "", "`address` to serve metrics on, host:port; without this flag there are none")
	logFormatFlag(command, &o.logFormat)
	return command
}

// run serves until ctx ends.
func (o *serveOptions) run(ctx context.Context, flags *pflag.FlagSet, stdout, stderr io.Writer) error {
	config := publisher.Config{File: o.config, Logger: slog.New(o.logFormat.handler(stderr))}
	logLibraries(ctx, config.Logger)
	if tracing.Configured() {
		provider, err := tracing.New(ctx, tracing.Config{Service: "federationctl", Version: version(), Logger: config.Logger})
		if err != nil {
			return err
		}
		defer provider.Shutdown(ctx)
		config.Tracer = provider.Tracer
	}
	if err := o.check(flags); err != nil {
		return err
	}
	if o.config == "" {
		var err error
		if config.Owner, err = o.ownerConfig(); err != nil {
			return err
		}
	}
	reporter := ownreport.New(version())
	config.Observe, config.TurnedAway = reporter.Observe, reporter.TurnedAway
	p, err := publisher.New(ctx, config)
	switch {
	case err != nil && ctx.Err() != nil:
		return failed("interrupted before the files were read")
	case err != nil && o.config != "":
		return o.fileFailure(err)
	case err != nil:
		return o.flagFailure(err)
	}
	reporter.For(p)
	status, err := listenStatus(ctx, p.StatusPage(), config.Logger)
	switch {
	case err != nil && o.config != "":
		return o.fileFailure(err)
	case err != nil:
		return o.flagFailure(err)
	}
	switch {
	case !config.Owner.Allow.Everybody:
	case o.origin.SPIFFE.Socket != "":
		config.Logger.Info("every consumer of the own trust domain and of those that are named may subscribe; --allow-id and --allow-file name those that may", "trust_domains", o.origin.SPIFFE.TrustDomains)
	default:
		config.Logger.Info("every consumer with a certificate of the CA file may subscribe; --allow-id and --allow-file name those that may", "file", o.origin.Files.CA)
	}
	announce := func() {
		if o.config == "" {
			fmt.Fprintf(stdout, "serving %d services on %s\n", p.Status().Server.Catalogs[""].Services, p.Addr())
		} else {
			fmt.Fprintf(stdout, "serving %s on %s\n", o.config, p.Addr())
		}
		for _, line := range p.Ports() {
			fmt.Fprintln(stdout, line)
		}
		if p.WebAddr() != nil {
			fmt.Fprintf(stdout, "metrics on http://%s/metrics\n", p.WebAddr())
		}
		if status != nil {
			fmt.Fprintf(stdout, "status on %s\n", status.Addr())
		}
		tellSystemd(config.Logger, daemon.SdNotifyReady)
	}
	ending := make(chan struct{})
	context.AfterFunc(ctx, func() {
		tellSystemd(config.Logger, daemon.SdNotifyStopping)
		close(ending)
	})
	serveCtx, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel()
	if status != nil {
		serving.Go(func() {
			if err := status.Serve(serveCtx, reporter); err != nil {
				config.Logger.Error("status and why are not served any more", "error", err)
			}
		})
	}
	if err := p.Run(ctx, telemetry.Handler(p.Status, reporter.Status), announce); err != nil {
		return failure{err}
	}
	<-ending
	return nil
}

// tellSystemd tells systemd a state, where it has started the process.
func tellSystemd(logger *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		logger.Warn("systemd cannot be told the state of the owner", "state", state, "error", err)
	}
}

// listenStatus takes the port of status and why, if there is to be one.
func listenStatus(ctx context.Context, c statuspage.Config, logger *slog.Logger) (*statuspage.Server, error) {
	if c.Address == "" {
		return nil, nil //nolint:nilnil // off, as by default
	}
	server, err := statuspage.Listen(ctx, c, logger)
	if err != nil {
		return nil, publisher.Error{Key: "status", Err: err}
	}
	return server, nil
}

// check returns what is wrong with the choice of flags: those for one catalog file, or
// --config and no other.
func (o *serveOptions) check(flags *pflag.FlagSet) error {
	var others []string
	flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed && flag.Name != "config" && flag.Name != logFormatName {
			others = append(others, "--"+flag.Name)
		}
	})
	switch {
	case o.config != "" && len(others) > 0:
		return fmt.Errorf("%s cannot be used with --config: the configuration file says all", strings.Join(others, ", "))
	case flags.Changed("config") && o.config == "":
		return errors.New("--config: the name of the file is empty")
	case o.config == "":
		return checkOrigin(flags, "catalog")
	}
	return nil
}

// ownerConfig returns what the flags say.
func (o *serveOptions) ownerConfig() (ownerconfig.Config, error) {
	allow, err := parseIDs("allow-id", o.allow)
	if err != nil {
		return ownerconfig.Config{}, err
	}
	if err := checkIDs("allow-id", allow, o.origin); err != nil {
		return ownerconfig.Config{}, err
	}
	policy, err := parsePolicy(o.ranges)
	if err != nil {
		return ownerconfig.Config{}, err
	}
	if o.window < 1 || o.window > owner.MaxWindow {
		return ownerconfig.Config{}, fmt.Errorf("--window: %d is not in 1 to %d", o.window, owner.MaxWindow)
	}
	page := statuspage.Config{Address: o.status}
	if o.status != "" {
		if err := page.Validate(); err != nil {
			return ownerconfig.Config{}, fmt.Errorf("--status: %w", err)
		}
	}
	return ownerconfig.Config{
		Listen: o.listen, Metrics: o.metrics, Status: page, Window: o.window, AllowAddresses: policy.AllowAddresses,
		Identity: o.origin, Grace: mtls.DefaultGrace,
		Allow: ownerconfig.Allow{IDs: allow, File: o.allowFile, Everybody: len(allow) == 0 && o.allowFile == ""},
		Catalogs: []ownerconfig.Catalog{{Sources: []ownerconfig.Source{
			{Name: "file:" + o.catalog, File: &ownerconfig.File{Path: o.catalog, MaxSize: int64(o.max)}},
		}}},
	}, nil
}

// flagFailure returns why the owner cannot start, and which flag to change.
func (o *serveOptions) flagFailure(err error) error {
	key := ""
	if e, ok := errors.AsType[publisher.Error](err); ok {
		key = e.Key
	}
	_, pathError := errors.AsType[*fs.PathError](err)
	switch {
	case key == "identity.files", key == "identity.spiffe":
		return originFailure(o.origin, err)
	case key == "allow.file":
		return failed("%w; it needs one identity a line, spiffe://... or a DNS name", err)
	case key == "listen" || key == "metrics" || key == "status":
		return failed("%w; choose another address with --%s", err, key)
	case key == "catalogs" && errors.Is(err, regularfile.ErrTooLarge):
		return failed("%w; --max-catalog raises it", err)
	case key == "catalogs" && !pathError && !errors.Is(err, regularfile.ErrNotRegular):
		return failed("%w; find all mistakes with 'federationctl lint %s'", err, o.catalog)
	}
	return failure{err}
}

// fileFailure returns why the owner cannot start, and what to change in the
// configuration file.
func (o *serveOptions) fileFailure(err error) error {
	e, ok := errors.AsType[publisher.Error](err)
	_, pathError := errors.AsType[*fs.PathError](err)
	switch {
	case ok && e.Key != "":
		return failed("%w; see %s in %s", err, e.Key, o.config)
	case pathError, errors.Is(err, regularfile.ErrNotRegular), errors.Is(err, regularfile.ErrTooLarge):
		return failure{err}
	}
	return failed("%w; 'federationctl lint %s' shows each mistake in a line", err, o.config)
}

// size is a number of bytes as the value of a flag, such as 512MiB.
type size int64

// String implements pflag.Value.
func (s *size) String() string { return ownerconfig.FormatSize(int64(*s)) }

// Set implements pflag.Value.
func (s *size) Set(text string) error {
	number, err := ownerconfig.ParseSize(text)
	if err != nil {
		return errors.New("not a size such as 512MiB")
	}
	*s = size(number)
	return nil
}

// Type implements pflag.Value.
func (*size) Type() string { return "size" }

// maxCatalogFlag adds the flag that bounds a catalog file.
func maxCatalogFlag(command *cobra.Command, limit *size) {
	command.Flags().Var(limit, "max-catalog", "`size` that a catalog file may have, in bytes or with KiB, MiB or GiB")
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
