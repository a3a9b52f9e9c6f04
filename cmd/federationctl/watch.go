package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/mirror"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

const (
	// settleTime is how long an owner that does not mark the end of its catalog must
	// be silent for it to count as complete. It is the default of the plugin.
	settleTime = 5 * time.Second

	// emptyTime is how long --once waits for the first service, or the end, of a
	// catalog. When nothing comes, it is not known whether the catalog is empty.
	emptyTime = 30 * time.Second

	// maxRefusals bounds the refusals that are named: an owner may send any number.
	maxRefusals = 100
)

// watchOptions are the flags of watch.
type watchOptions struct {
	origin   mtls.Origin
	ownerIDs []string
	api      string
	ranges   []string
	output   string
	once     bool
	imports  []string
	labels   []string
}

func watchCommand(ctx context.Context) *cobra.Command {
	var o watchOptions
	command := &cobra.Command{
		Use:   "watch ADDRESS {--cert FILE --key FILE --ca FILE | --spiffe SOCKET --owner-id ID}",
		Short: "Show what an owner publishes",
		Long: `watch subscribes to an owner, as CoreDNS would, and shows what it publishes until
it is interrupted. ADDRESS is host:port or https://host:port.

On a terminal it is a table that is updated in place: services are sorted by
fqdn, and for some seconds + marks new ones, * changed ones and - those that are
gone. NO_COLOR=1 leaves the colours out. Anywhere else, and on a terminal that
cannot move its cursor (TERM=dumb), it is one line for each service, one when the
catalog is complete, and one for each change; 'federationctl watch ... | cat' gives
lines on a terminal too.

The owner's certificate must be valid for the host of ADDRESS, or carry one of
the identities in --owner-id. With --spiffe a SPIFFE agent issues the certificate
of this consumer, and --owner-id must name the SPIFFE ID of the owner.

An owner that cannot be reached, or is lost, is tried until it answers. The watch
ends when the owner refuses this consumer, or turns out to be another one at the
first attempt.

With --once the watch ends when the catalog is complete, by the rules of CoreDNS:
when the owner says so or, where it does not mark the end, when no further service
has come for ` + settleTime.String() + `. The owner is tried only once then. It is a failure when it cannot
be reached, or when it publishes nothing for ` + emptyTime.String() + ` and does not say that this
is all.

A service that breaks a rule is refused, as CoreDNS would do, and named on
standard error.

With --import and --import-label, what they leave out is acknowledged and not
kept, as with import_names and import_labels in a Corefile. The first ` + strconv.Itoa(maxSkips) + ` such services
have a line of their own, with the operation skip; on a terminal they are
counted.

Of a catalog that comes through relays, the end says through how many owners, and
of a stream that resumed, that it did.`,
		Example: `  federationctl watch owner.example.org:8008 --cert consumer.pem --key consumer-key.pem --ca ca.pem

  # The names of all services.
  federationctl watch https://owner.example.org:8008 --cert consumer.pem --key consumer-key.pem --ca ca.pem \
      --owner-id spiffe://federation.example/owner --once -o json | jq -r 'select(.op == "upsert").service.fqdn'`,
		Args:              one("ADDRESS"),
		ValidArgsFunction: cobra.NoFileCompletions,
		PreRunE:           func(command *cobra.Command, _ []string) error { return checkOrigin(command.Flags()) },
		RunE: func(command *cobra.Command, args []string) error {
			return o.run(ctx, args[0], command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags := command.Flags()
	originFlags(command, &o.origin, "consumer", "owners")
	require(command, "cert", "key", "ca")
	flags.StringArrayVar(&o.ownerIDs, "owner-id", nil, "`identity` that the owner must have, spiffe://... or a DNS name; repeatable; none: the host of ADDRESS")
	flags.StringVar(&o.api, "api", wire.V1Alpha2.String(), "`version` of the protocol: "+strings.Join(apis, " or "))
	rangesFlag(command, &o.ranges)
	flags.StringArrayVar(&o.imports, "import", nil, "`pattern` of the fqdns to keep: NAME, *.ZONE or *; repeatable, one has to match")
	flags.StringArrayVar(&o.labels, "import-label", nil, "`key=value` that a service must have to be kept; repeatable, all have to match")
	flags.StringVarP(&o.output, "output", "o", "table", "`format`: table, or json for one object a line")
	flags.BoolVar(&o.once, "once", false, "end when the catalog is complete")
	completeValues(command, "api", apis)
	completeValues(command, "output", formats)
	return command
}

func (o *watchOptions) run(ctx context.Context, target string, stdout, stderr io.Writer) error {
	address, err := parseTarget(target)
	if err != nil {
		return err
	}
	ids, err := parseIDs("owner-id", o.ownerIDs)
	if err != nil {
		return err
	}
	if err := checkIDs("owner-id", ids, o.origin); err != nil {
		return err
	}
	if o.origin.SPIFFE.Socket != "" && len(ids) == 0 {
		return errors.New("--spiffe needs --owner-id: the host of ADDRESS is no SPIFFE ID")
	}
	policy, err := parsePolicy(o.ranges)
	if err != nil {
		return err
	}
	filter, err := parseFilter(o.imports, o.labels)
	if err != nil {
		return err
	}
	if !slices.Contains(formats, o.output) {
		return fmt.Errorf("-o: %q is neither table nor json", o.output)
	}
	version, err := wire.ParseVersion(o.api)
	if err != nil {
		return fmt.Errorf("--api: %w", err)
	}
	view, stderr, draw := o.view(address, stdout, stderr)
	certificates, err := openOrigin(o.origin, slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return err
	}
	if o.once { // as the owner is tried only once
		if err := awaitCertificate(ctx, certificates); err != nil {
			return err
		}
	}
	w := &watcher{address: address, once: o.once, view: view, stderr: stderr, importer: importer{filter: filter}}
	return w.run(ctx, mirror.Config{
		Subscription: mirror.Subscription{
			Addresses: []string{address},
			Identity:  mtls.Consumer{Source: certificates, IDs: ids},
			Version:   version,
		},
		Rules: catalog.Config{Settle: settleTime, Admit: w.importer.admit(policy)},
	}, draw, func(ctx context.Context) error { return awaitUnread(ctx, stdout) })
}

// awaitCertificate returns nil when there is a certificate, and a failure when a SPIFFE
// agent has issued none for emptyTime.
func awaitCertificate(ctx context.Context, certificates *mtls.Source) error {
	issued := certificates.Changed()
	if certificates.Missing() == nil {
		return nil
	}
	var following sync.WaitGroup
	defer following.Wait()
	ctx, cancel := context.WithTimeout(ctx, emptyTime)
	defer cancel()
	following.Go(func() { _ = certificates.Run(ctx) })
	select {
	case <-issued:
		return nil
	case <-ctx.Done():
		return failed("%w; check --spiffe, and that the agent knows this process", certificates.Missing())
	}
}

// view returns what shows the changes, where messages go meanwhile, and what draws
// it, which must run beside the watch.
func (o *watchOptions) view(address string, stdout, stderr io.Writer) (view, io.Writer, helper) {
	if o.output == "table" && !o.once && canUpdate(stdout) {
		table := newLive(address, stdout.(*os.File), stderr)
		return table, table, table.run
	}
	l := newLines(address, stdout, stderr)
	if o.output == "json" {
		l.format = jsonLine
	} else {
		l.format = table
		l.header = fmt.Sprintf(row, "OP", "NAME", "FQDN", "INSTANCES", "ENDPOINTS") + "\n"
	}
	if o.once && canUpdate(stderr) && !isTerminal(stdout) {
		p := newProgress(address, stderr.(*os.File), l)
		l.stderr = p
		return p, p, p.run
	}
	return l, stderr, func(context.Context) error { return nil }
}

// awaitUnread returns errUnread when stdout is a pipe that nobody reads any more,
// and nil when ctx ends or stdout is something else.
func awaitUnread(ctx context.Context, stdout io.Writer) error {
	pipe, ok := stdout.(*os.File)
	if !ok {
		return nil
	}
	if info, err := pipe.Stat(); err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
		return nil // a write returns what is wrong with it
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if unread(pipe) {
			return errUnread
		}
	}
}

// formats are those of the output.
var formats = []string{"table", "json"}

// apis are the versions of the protocol that watch speaks.
var apis = []string{wire.V1Alpha2.String(), wire.V1Alpha1.String()}

// parseTarget returns the host:port of an owner.
func parseTarget(target string) (address string, err error) {
	address = target
	if strings.Contains(target, "://") {
		u, err := url.Parse(target)
		if err != nil || u.Scheme != "https" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
			return "", fmt.Errorf("ADDRESS %q is neither host:port nor https://host:port", target)
		}
		address = u.Host
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" {
		return "", fmt.Errorf("ADDRESS %q is neither host:port nor https://host:port", target)
	}
	return address, nil
}

// The ends of a watch that are no failures.
var (
	errComplete = errors.New("catalog is complete")
	errUnread   = errors.New("nobody reads the output")
)

// view shows what a mirror publishes. Its methods may be called from several
// goroutines.
type view interface {
	show(c mirror.Changes) error // an error ends the watch
	responded()                  // the owner has sent a response that was accepted
	refused()                    // a response was refused; the watcher says why

	// skipped shows a service that is not imported. An error ends the watch.
	skipped(s *federation.Service) error
}

// helper runs beside a watch until ctx ends. Its error ends the watch.
type helper func(ctx context.Context) error

// watcher decides when a watch ends, and passes on what a mirror reports. It
// implements mirror.Observer.
type watcher struct {
	mirror.NoObserver

	// Read-only once run has begun.
	address string
	once    bool
	view    view
	stderr  io.Writer               // for the services that are refused
	finish  context.CancelCauseFunc // ends the watch
	empty   *time.Timer             // ends it when nothing comes

	importer importer

	// Owned by publish.
	opened bool // the only stream of once is open

	// Atomic.
	refusals atomic.Int64
}

// run mirrors the owner until the watch or ctx ends. It returns nil for an end that
// is no failure.
func (w *watcher) run(ctx context.Context, config mirror.Config, helpers ...helper) error {
	var running sync.WaitGroup
	defer running.Wait()
	watching, finish := context.WithCancelCause(ctx)
	defer finish(nil)
	w.finish = finish
	w.empty = time.AfterFunc(emptyTime, func() {
		finish(failed("owner %s: no service within %v, nor the end of the catalog: whether it is empty is not known; "+
			"check that the owner has loaded its services", w.address, emptyTime))
	})
	w.empty.Stop() // until a stream is open
	defer w.empty.Stop()
	config.Observer = w
	config.Publish = func(c mirror.Changes) {
		if watching.Err() == nil { // that the mirror ends as well is not shown
			w.publish(c)
		}
	}
	m, err := mirror.New(config)
	if err != nil {
		return failure{err}
	}
	for _, help := range helpers {
		running.Go(func() {
			if err := help(watching); err != nil {
				finish(err)
			}
		})
	}
	if err := m.Run(watching); err != nil {
		return failure{err}
	}
	switch cause := context.Cause(watching); {
	case errors.Is(cause, errComplete), errors.Is(cause, errUnread):
		return nil
	case ctx.Err() == nil:
		return cause
	case w.once:
		return failed("interrupted before the catalog of %s was complete", w.address)
	}
	return nil
}

// publish shows what has changed, and ends the watch when it is over.
func (w *watcher) publish(c mirror.Changes) {
	s := &c.Status
	if s.Failure != nil && (s.Parked || w.once || s.Generation == 0 && refusedHandshake(s.Failure)) {
		w.finish(failed("owner %s: %w; %s", w.address, s.Failure, remedy(s.Failure)))
		return
	}
	if w.once && !w.opened && s.Generation > 0 {
		w.opened = true
		w.empty.Reset(emptyTime)
	}
	w.skip()
	if err := w.view.show(c); err != nil {
		w.unwritten(err)
		return
	}
	if w.once && s.State == catalog.Synced {
		w.finish(errComplete)
	}
}

// skip shows the services that were not imported since the last call.
func (w *watcher) skip() {
	services, more := w.importer.take()
	for _, s := range services {
		if err := w.view.skipped(s.Unpack()); err != nil {
			w.unwritten(err)
			return
		}
	}
	if more {
		fmt.Fprintln(w.stderr, "federationctl: not imported: more services, which are not named")
	}
}

// unwritten ends the watch, as what there is to see cannot be written.
func (w *watcher) unwritten(err error) {
	if errors.Is(err, syscall.EPIPE) {
		w.finish(errUnread)
	}
	w.finish(failure{err})
}

// Responded implements mirror.Observer. Once a service has come or gone, silence
// completes the catalog, and nobody has to ask whether it is empty.
func (w *watcher) Responded(op federation.Operation, _ string) {
	if op == federation.Upsert || op == federation.Delete {
		w.empty.Stop()
	}
	w.skip() // also where that is all, and nothing is to be published
	w.view.responded()
}

// Refused implements mirror.Observer. It names the service.
func (w *watcher) Refused(reason *federation.InvalidError) {
	switch n := w.refusals.Add(1); {
	case n <= maxRefusals:
		fmt.Fprintf(w.stderr, "federationctl: refused: %v\n", reason)
	case n == maxRefusals+1:
		fmt.Fprintln(w.stderr, "federationctl: refused: more services, which are not named")
	}
	w.view.refused()
}

// refusedHandshake reports whether the peer is not the owner, or does not accept
// the certificate of this consumer. At the first attempt that is mostly a mistake in
// the flags.
func refusedHandshake(err error) bool {
	_, identity := errors.AsType[*tls.CertificateVerificationError](err)
	_, plain := errors.AsType[tls.RecordHeaderError](err)
	network, ok := errors.AsType[*net.OpError](err)
	return identity || plain || ok && network.Op == "remote error" // an alert of TLS
}

// remedy returns what can be done about a failure.
func remedy(err error) string {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "check --ca and --owner-id, or the host in ADDRESS"
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "check ADDRESS: what answers there does not speak TLS"
	}
	if network, ok := errors.AsType[*net.OpError](err); ok && network.Op == "remote error" { // an alert of TLS
		return "check --cert: the owner's CA file must have its authority"
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return "check the host in ADDRESS"
	}
	code := status.Code(err)
	if code == codes.Unauthenticated {
		return "check --cert, or have the owner allow it with --allow-id"
	}
	if code == codes.InvalidArgument || code == codes.Unimplemented {
		return "check --api: the owner may speak another version"
	}
	return "check ADDRESS, and that the owner is up"
}

// lossKind returns the same text for losses that are the same to a reader. It leaves
// out what changes from one attempt to the next, such as a port.
func lossKind(err error) string {
	if network, ok := errors.AsType[*net.OpError](err); ok {
		err = network.Err
	}
	if lookup, ok := errors.AsType[*net.DNSError](err); ok {
		return lookup.Err
	}
	return err.Error()
}
