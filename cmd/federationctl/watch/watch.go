// Package watch shows what an owner publishes: a mirror of its catalog, as lines of text
// or of JSON, until the catalog is complete or for ever.
//
// Only packages of this module import it: it is not a stable API.
package watch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/stream"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

const (
	// SettleTime is how long an owner that does not mark the end of its catalog must
	// be silent for it to count as complete. It is the default of the plugin.
	SettleTime = 5 * time.Second

	// EmptyTime is how long a watch that ends with the catalog waits for the first service,
	// or the end, of it. When nothing comes, it is not known whether the catalog is empty.
	EmptyTime = 30 * time.Second

	// maxRefusals bounds the refusals that are named: an owner may send any number.
	maxRefusals = 100
)

// Config is a watch.
type Config struct {
	Address string // of the owner, host:port
	Version wire.APIVersion
	Policy  wire.AddressPolicy // which addresses the owner may publish

	Once   bool   // it ends when the catalog is complete, and the owner is tried only once
	Output string // json for an object for each change, else lines for people

	Stdout, Stderr io.Writer
}

// Watch decides when it ends, and passes on what a mirror reports. It implements
// consumer.Observer.
type Watch struct {
	consumer.NoObserver

	// Read-only once Run has begun.
	config Config
	view   *linePrinter
	finish context.CancelCauseFunc // ends the watch
	empty  *time.Timer             // ends it when nothing comes

	// Owned by showChanges.
	opened bool // the only stream of once is open

	// Atomic.
	refusals atomic.Int64
}

// New returns a watch that is about to begin.
func New(c Config) *Watch {
	w := &Watch{config: c, view: newLines(c.Address, c.Stdout, c.Stderr)}
	if c.Output == "json" {
		w.view.format = jsonLine
	}
	return w
}

// Run shows what the owner publishes until the watch or ctx ends. It returns nil for an end
// that is no failure.
func (w *Watch) Run(ctx context.Context, identity stream.Identity) error {
	c := &w.config
	return w.mirrorOwner(ctx, consumer.Config{
		Subscription: consumer.Subscription{Addresses: []string{c.Address}, Identity: identity, Version: c.Version},
		Rules:        catalog.Rules{Settle: SettleTime, Retention: catalog.Forever, Admit: c.Policy.Check},
	})
}

// The ends of a watch that are no failure.
var (
	errComplete = errors.New("catalog is complete")
	errUnread   = errors.New("nobody reads the output")
)

// mirrorOwner mirrors the owner until the watch or ctx ends. It returns nil for an end that
// is no failure.
func (w *Watch) mirrorOwner(ctx context.Context, config consumer.Config) error {
	watching, finish := context.WithCancelCause(ctx)
	defer finish(nil)
	w.finish = finish
	w.empty = time.AfterFunc(EmptyTime, func() {
		finish(fmt.Errorf("owner %s: neither a service nor the end of the catalog came within %v, so the catalog is empty or not loaded yet; "+
			"check that the owner has loaded its services", w.config.Address, EmptyTime))
	})
	w.empty.Stop() // until a stream is open
	defer w.empty.Stop()
	config.Observer = w
	config.Publish = func(c consumer.Changes) {
		if watching.Err() == nil { // that the mirror ends as well is not shown
			w.showChanges(c)
		}
	}
	m, err := consumer.New(config)
	if err != nil {
		return err
	}
	if err := m.Run(watching); err != nil {
		return err
	}
	switch cause := context.Cause(watching); {
	case errors.Is(cause, errComplete), errors.Is(cause, errUnread):
		return nil
	case ctx.Err() == nil:
		return cause
	case w.config.Once:
		return fmt.Errorf("interrupted before the catalog of %s was complete", w.config.Address)
	}
	return nil
}

// showChanges shows what has changed, and ends the watch when it is over.
func (w *Watch) showChanges(c consumer.Changes) {
	s := &c.Status
	if s.Failure != nil && (s.Parked || w.config.Once || s.Generation == 0 && isRefusal(s.Failure)) {
		err := fmt.Errorf("owner %s: %w", w.config.Address, s.Failure)
		if todo := stream.RemedyOf(s.Failure); todo != "" {
			err = fmt.Errorf("%w; %s", err, todo)
		}
		w.finish(err)
		return
	}
	if w.config.Once && !w.opened && s.Generation > 0 {
		w.opened = true
		w.empty.Reset(EmptyTime)
	}
	if err := w.view.printChanges(c); err != nil {
		w.endUnwritten(err)
		return
	}
	if w.config.Once && s.State == catalog.Synced {
		w.finish(errComplete)
	}
}

// isRefusal reports whether an attempt failed as the peer is not the owner, or does not accept the
// certificate of this consumer: at the first attempt that is mostly a mistake in the flags.
func isRefusal(err error) bool {
	_, refused := mtls.RefusalOf(err)
	_, plain := errors.AsType[tls.RecordHeaderError](err)
	network, _ := errors.AsType[*net.OpError](err)
	return refused || plain || network != nil && network.Op == "remote error" // an alert of TLS
}

// endUnwritten ends the watch, as what there is to see cannot be written.
func (w *Watch) endUnwritten(err error) {
	if errors.Is(err, syscall.EPIPE) {
		w.finish(errUnread)
	}
	w.finish(err)
}

// Responded implements consumer.Observer. Once a service has come or gone, silence
// completes the catalog, and nobody has to ask whether it is empty.
func (w *Watch) Responded(op wire.Operation, _ string) {
	if op == wire.Upsert || op == wire.Delete {
		w.empty.Stop()
	}
	w.view.noteResponse()
}

// Refused implements consumer.Observer. It names the service.
func (w *Watch) Refused(reason *federation.InvalidError) {
	switch n := w.refusals.Add(1); {
	case n <= maxRefusals:
		fmt.Fprintf(w.view.stderr, "federationctl: refused: %v\n", reason)
	case n == maxRefusals+1:
		fmt.Fprintln(w.view.stderr, "federationctl: refused: more services, which are not named")
	}
}
