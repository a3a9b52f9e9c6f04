package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve/metrics"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/file"
	"github.com/hamlet-federation/coredns-federation/internal/owner"
	"github.com/hamlet-federation/coredns-federation/internal/source/file/catalogfile"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/status/page"
)

// serveOptions are the flags of serve.
type serveOptions struct {
	config    string
	listen    string
	catalog   string
	max       int64
	origin    mtls.Origin
	allow     []federation.ID
	allowFile string
	allowAny  bool
	ranges    []netip.Prefix
	window    int
	metrics   string
	logFormat string
	status    string
}

func serveCommand(ctx context.Context) *cobra.Command {
	o := serveOptions{max: catalogfile.DefaultLimit}
	command := &cobra.Command{
		Use:   "serve {--config FILE | --catalog FILE {--cert FILE --key FILE --ca FILE | --spiffe SOCKET} {--allow-id ID | --allow-file FILE | --allow-any}}",
		Short: "Publish the services of a catalog file, or of what a configuration file names",
		Long: `serve publishes a catalog file (docs/catalog.md) to consumers or, with --config, any
number of catalogs from files, clusters, registries, programs and other owners
(docs/owner.md). It follows its files: a broken, empty or missing one changes nothing, and
'services: []' withdraws everything. 'federationctl check' finds mistakes.`,
		Example: `  federationctl serve --catalog catalog.yaml --cert owner.pem \
      --key owner-key.pem --ca ca.pem --allow-file consumers.txt

  # Catalogs and sources as a configuration file says.
  federationctl serve --config owner.yaml`,
		Args: noArgs("name the catalog with --catalog"),
		RunE: func(command *cobra.Command, _ []string) error {
			return o.serveCatalogs(ctx, command.Flags(), command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.config, "config", "", "YAML or JSON configuration `file`, in place of all other flags but --log-format; changes are followed")
	flags.StringVar(&o.listen, "listen", ":8008", "`address` to listen on, host:port; without a host, all addresses of this machine")
	flags.StringVar(&o.catalog, "catalog", "", "YAML or JSON `file` with the services")
	maxCatalogFlag(command, &o.max)
	originFlags(command, &o.origin, "owner", "consumers", "config")
	idsFlag(command, &o.allow, "allow-id", "`identity` that may subscribe, spiffe://... or a DNS name; repeatable")
	flags.StringVar(&o.allowFile, "allow-file", "", "`file` with more identities that may subscribe, one a line; changes are followed")
	flags.BoolVar(&o.allowAny, "allow-any", false, "let every consumer with a valid certificate subscribe")
	rangesFlag(command, &o.ranges)
	flags.IntVar(&o.window, "window", owner.DefaultWindow, fmt.Sprintf("`number` of messages that may wait for their ACKs on a stream, 1 to %d; a consumer that does not say that it takes more gets one at a time", owner.MaxWindow))
	flags.StringVar(&o.status, "status", "", "loopback `address` for status and why, such as localhost:9156")
	flags.StringVar(&o.metrics, "metrics", "", "`address` to serve metrics on, host:port; without this flag there are none")
	command.MarkFlagsOneRequired("config", "catalog")
	flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Name != "config" { // which says all that the others do
			command.MarkFlagsMutuallyExclusive("config", flag.Name)
		}
	})
	command.MarkFlagsMutuallyExclusive("allow-any", "allow-id")
	command.MarkFlagsMutuallyExclusive("allow-any", "allow-file")
	logFormatFlag(command, &o.logFormat)
	return command
}

// serveCatalogs serves until ctx ends.
func (o *serveOptions) serveCatalogs(ctx context.Context, flags *pflag.FlagSet, stdout, stderr io.Writer) error {
	config := serve.Config{File: o.config, Logger: slog.New(logHandler(stderr, o.logFormat)), Version: buildVersion()}
	logAll(ctx, config.Logger)
	if flags.Changed("config") && o.config == "" {
		return errors.New("--config: the name of the file is empty")
	}
	if o.config == "" {
		var err error
		if config.Owner, err = o.ownerConfig(); err != nil {
			return err
		}
	}
	explained := o.flagFailure
	if o.config != "" {
		explained = func(err error) error { return configFailure(o.config, err) }
	}
	p, err := serve.New(ctx, config)
	switch {
	case err != nil && ctx.Err() != nil:
		return newFailuref("interrupted before the files were read")
	case err != nil:
		return explained(err)
	}
	d := daemonProcess{
		logger: config.Logger, stdout: stdout, source: p, metrics: metrics.Handler(p.Status, metrics.NewCollector(p.Report)),
		farewell: "the owner stops; consumers keep what they hold",
	}
	if err := d.listen(ctx, p.ProcessConfig()); err != nil {
		return explained(err)
	}
	return d.run(ctx, func() error {
		return p.Run(ctx, func() {
			what := o.config
			if what == "" {
				what = status.CountNoun(p.Status().Catalogs[0].Services, "service")
			}
			d.announce(append([]string{fmt.Sprintf("serving %s on %s", what, p.Addr())}, p.PortLines()...)...)
		})
	})
}

// ownerConfig returns what the flags say.
func (o *serveOptions) ownerConfig() (config.Config, error) {
	if err := checkIDs("allow-id", o.allow, o.origin); err != nil {
		return config.Config{}, err
	}
	if o.window < 1 || o.window > owner.MaxWindow {
		return config.Config{}, fmt.Errorf("--window: %d is not in 1 to %d", o.window, owner.MaxWindow)
	}
	page := page.Config{Address: o.status}
	if o.status != "" {
		if err := page.Validate(); err != nil {
			return config.Config{}, fmt.Errorf("--status: %w", err)
		}
	}
	if len(o.allow) == 0 && o.allowFile == "" && !o.allowAny {
		return config.Config{}, errors.New("nobody may subscribe yet: name consumers with --allow-id ID or --allow-file FILE, or add --allow-any")
	}
	return config.Config{
		ProcessConfig: config.ProcessConfig{Identity: o.origin, Status: page, Metrics: o.metrics},
		Listen:        o.listen, Window: o.window, AllowAddresses: o.ranges,
		Allow: config.Allow{IDs: o.allow, File: o.allowFile, Everybody: o.allowAny},
		Catalogs: []config.Catalog{{Sources: []config.Source{
			{Name: "file:" + o.catalog, File: &config.File{Path: o.catalog, MaxSize: o.max}},
		}}},
	}, nil
}

// flagFailure returns why the owner cannot start, and which flag to change.
func (o *serveOptions) flagFailure(err error) error {
	key := ""
	if e, ok := errors.AsType[serve.Error](err); ok {
		key = e.Key
	}
	_, pathError := errors.AsType[*fs.PathError](err)
	switch {
	case key == "identity.files", key == "identity.spiffe":
		return originFailure(o.origin, err)
	case key == "allow.file":
		return newFailuref("%w; it needs one identity a line, spiffe://... or a DNS name", err)
	case key == "listen" || key == "metrics" || key == "status":
		return newFailuref("%w; choose another address with --%s", err, key)
	case key == "catalogs" && errors.Is(err, file.ErrTooLarge):
		return newFailuref("%w; --max-catalog raises it", err)
	case key == "catalogs" && !pathError && !errors.Is(err, file.ErrNotRegular):
		return newFailuref("%w; find all mistakes with 'federationctl check %s'", err, o.catalog)
	}
	return failureOf(err)
}
