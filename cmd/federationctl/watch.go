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
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

const (
	// settleTime is the silence that ends the catalog of an owner that does not
	// mark its end.
	settleTime = 5 * time.Second

	// emptyTime is how long --once waits for the first service, or the end, of a
	// catalog. What comes to nothing until then is not known to be empty.
	emptyTime = 30 * time.Second

	// maxRefusals bounds the refusals that are named: an owner may make up new
	// ones for ever.
	maxRefusals = 100
)

// watchOptions are the flags of watch.
type watchOptions struct {
	files    mtls.Files
	ownerIDs []string
	api      string
	ranges   []string
	output   string
	once     bool
}

func watchCommand(ctx context.Context) *cobra.Command {
	var o watchOptions
	command := &cobra.Command{
		Use:   "watch ADDRESS --cert FILE --key FILE --ca FILE",
		Short: "Show what an owner publishes",
		Long: `watch subscribes to an owner, as CoreDNS would, and shows what it publishes until
it is interrupted. ADDRESS is host:port or https://host:port.

On a terminal it is a table that is updated in place: services are sorted by
fqdn, and for some seconds + marks new ones, * changed ones and - those that are
gone. NO_COLOR=1 leaves the colours out. Anywhere else, and on a terminal that
cannot move its cursor (TERM=dumb), it is one line for each service and then for
each change; 'federationctl watch ... | cat' gives lines on a terminal too.

The owner's certificate must be valid for the host of ADDRESS, or carry one of
the identities in --owner-id.

An owner that cannot be reached, or is lost, is tried until it answers. One that
refuses this consumer, or is not who it should be at first, ends the watch.

With --once the watch ends when the catalog is complete: when the owner says so,
or after ` + settleTime.String() + ` of silence behind a service where it does not. It is tried only once
then: an owner that cannot be reached is a failure, and so is one that publishes
nothing for ` + emptyTime.String() + ` and does not say that this is all.

A service that breaks a rule is refused, as CoreDNS would do, and named on
standard error.`,
		Example: `  federationctl watch owner.example.org:8008 --cert consumer.pem --key consumer-key.pem --ca ca.pem

  # The names of all services.
  federationctl watch https://owner.example.org:8008 --cert consumer.pem --key consumer-key.pem --ca ca.pem \
      --owner-id spiffe://federation.example/owner --once -o json | jq -r 'select(.op == "upsert").service.fqdn'`,
		Args:              one("ADDRESS"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(command *cobra.Command, args []string) error {
			return o.run(ctx, args[0], command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags := command.Flags()
	filesFlags(command, &o.files, "consumer", "owners")
	flags.StringArrayVar(&o.ownerIDs, "owner-id", nil, "`identity` that the owner must have, spiffe://... or a DNS name; repeatable; none: the host of ADDRESS")
	flags.StringVar(&o.api, "api", wire.V1Alpha2.String(), "`version` of the protocol: "+strings.Join(apis, " or "))
	rangesFlag(command, &o.ranges)
	flags.StringVarP(&o.output, "output", "o", "table", "`format`: table, or json for one object a line")
	flags.BoolVar(&o.once, "once", false, "end when the catalog is complete")
	completeValues(command, "api", apis)
	completeValues(command, "output", formats)
	return command
}

func (o *watchOptions) run(ctx context.Context, target string, stdout, stderr io.Writer) error {
	address, host, err := parseTarget(target)
	if err != nil {
		return err
	}
	ids, err := parseIDs("owner-id", o.ownerIDs)
	if err != nil {
		return err
	}
	policy, err := parsePolicy(o.ranges)
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
	watching, finish := context.WithCancelCause(ctx)
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer finish(nil)
	help := func(run func(context.Context) error) {
		helpers.Go(func() {
			if err := run(watching); err != nil {
				finish(err)
			}
		})
	}
	view, stderr, draw := o.view(address, stdout, stderr)
	certificates, err := loadFiles(o.files, slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return err
	}
	subscription, err := consumer.New(consumer.Config{
		Addresses:   []string{address},
		Credentials: func(string) credentials.TransportCredentials { return certificates.Client(host, ids) },
		Version:     version,
		Policy:      policy,
		Sink:        sink{&watcher{address: address, once: o.once, view: view, stderr: stderr, finish: finish}},
	})
	if err != nil {
		return failure{err}
	}
	help(certificates.Run)
	help(func(ctx context.Context) error { return awaitUnread(ctx, stdout) })
	if draw != nil {
		help(draw)
	}
	// The watcher or a helper ends it, or a signal does.
	if err := subscription.Run(watching); err != nil {
		return failure{err}
	}
	switch cause := context.Cause(watching); {
	case errors.Is(cause, errComplete), errors.Is(cause, errUnread):
		return nil
	case ctx.Err() == nil:
		return cause
	case o.once:
		return failed("interrupted before the catalog of %s was complete", address)
	}
	return nil
}

// view returns what shows the events, where messages go meanwhile, and what has
// to run beside it, if anything.
func (o *watchOptions) view(address string, stdout, stderr io.Writer) (eventSink, io.Writer, func(context.Context) error) {
	if o.output == "table" && !o.once && canUpdate(stdout) {
		table := newLive(address, stdout.(*os.File), stderr)
		return table, table, table.run
	}
	l := &lines{address: address, stdout: stdout, stderr: stderr}
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
	return l, stderr, nil
}

// awaitUnread returns an error when stdout is a pipe that nobody reads any more,
// and nil when ctx ends.
func awaitUnread(ctx context.Context, stdout io.Writer) error {
	pipe, ok := stdout.(*os.File)
	if !ok {
		return nil
	}
	if info, err := pipe.Stat(); err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
		return nil // a write will tell what is wrong with it
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

// parseTarget returns the host:port of an owner, and the host by itself.
func parseTarget(target string) (address, host string, err error) {
	address = target
	if strings.Contains(target, "://") {
		u, err := url.Parse(target)
		if err != nil || u.Scheme != "https" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
			return "", "", fmt.Errorf("ADDRESS %q is neither host:port nor https://host:port", target)
		}
		address = u.Host
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" {
		return "", "", fmt.Errorf("ADDRESS %q is neither host:port nor https://host:port", target)
	}
	return address, host, nil
}

// The ends of a watch that are no failures.
var (
	errComplete = errors.New("catalog is complete")
	errUnread   = errors.New("nobody reads the output")
)

// watcher decides when a watch ends, and passes on what the owner says. It is an
// eventSink.
type watcher struct {
	// read-only
	address string
	once    bool
	view    eventSink               // shows it; its errors end the watch
	stderr  io.Writer               // is told which services are refused
	finish  context.CancelCauseFunc // ends the watch

	// owned by the consumer
	opened   bool        // there was a stream
	marked   bool        // its owner marks the end of the catalog
	empty    *time.Timer // ends the watch while no service has come; nil unless once
	settled  *time.Timer // ends the watch when nothing else comes; nil before a service came
	refusals int
}

// Opened notes that there is a stream.
func (w *watcher) Opened(ctx context.Context) error {
	w.opened = true
	if w.once {
		w.empty = time.AfterFunc(emptyTime, func() {
			w.finish(failed("owner %s: no service within %v, nor the end of the catalog: whether it is empty is not known; "+
				"check that the owner has loaded its services", w.address, emptyTime))
		})
	}
	return w.view.Opened(ctx)
}

// Marked notes that the end of the catalog will be marked.
func (w *watcher) Marked(ctx context.Context) error {
	w.marked = true
	return w.view.Marked(ctx)
}

// Refused names a service that the consumer refused. As in the catalog of CoreDNS,
// it is no silence, and no service.
func (w *watcher) Refused(ctx context.Context, refusal *federation.InvalidError) error {
	if w.settled != nil {
		w.settled.Reset(settleTime)
	}
	switch w.refusals++; {
	case w.refusals <= maxRefusals:
		fmt.Fprintf(w.stderr, "federationctl: refused: %v\n", refusal)
	case w.refusals == maxRefusals+1:
		fmt.Fprintln(w.stderr, "federationctl: refused: more services, which are not named")
	}
	return w.view.Refused(ctx, refusal)
}

// published notes that a service came, or went, after which silence is the end of
// the catalog unless that is marked.
func (w *watcher) published() {
	switch {
	case w.empty == nil:
	case w.settled != nil:
		w.settled.Reset(settleTime)
	default:
		w.empty.Stop()
		if !w.marked {
			w.settled = time.AfterFunc(settleTime, func() { w.finish(errComplete) })
		}
	}
}

// Apply shows an event.
func (w *watcher) Apply(ctx context.Context, event federation.Event) error {
	if event.Operation == federation.Upsert || event.Operation == federation.Delete {
		w.published()
	}
	if err := w.view.Apply(ctx, event); err != nil {
		if errors.Is(err, syscall.EPIPE) {
			w.finish(errUnread)
		}
		w.finish(failure{err})
		return err
	}
	if w.once && event.Operation == federation.End {
		w.finish(errComplete)
	}
	return nil
}

// Lost tells why there is no stream, and ends the watch when it cannot go on.
func (w *watcher) Lost(ctx context.Context, err error, parked bool) {
	for _, timer := range []*time.Timer{w.empty, w.settled} {
		if timer != nil {
			timer.Stop()
		}
	}
	if parked || w.once || !w.opened && refusedHandshake(err) {
		w.finish(failed("owner %s: %w; %s", w.address, err, remedy(err)))
		return
	}
	w.view.Lost(ctx, err, parked)
}

// refusedHandshake reports whether what answers is not the owner, or does not take
// this consumer. Who begins to watch has made a mistake in the flags.
func refusedHandshake(err error) bool {
	_, identity := errors.AsType[*tls.CertificateVerificationError](err)
	_, plain := errors.AsType[tls.RecordHeaderError](err)
	network, ok := errors.AsType[*net.OpError](err)
	return identity || plain || ok && network.Op == "remote error" // an alert of TLS
}

// remedy says what can be done when an owner cannot be watched.
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

// lossKind is the same for losses that are the same to a reader. Unlike the text
// it has nothing that changes from one attempt to the next, such as a port.
func lossKind(err error) string {
	if network, ok := errors.AsType[*net.OpError](err); ok {
		err = network.Err
	}
	if lookup, ok := errors.AsType[*net.DNSError](err); ok {
		return lookup.Err
	}
	return err.Error()
}
