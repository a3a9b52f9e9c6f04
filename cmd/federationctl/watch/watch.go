// Package watch shows what an owner publishes: a mirror of its catalog, as lines of a table
// or of JSON, until the catalog is complete or for ever.
//
// Only packages of this module import it: it is not a stable API.
package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/watch/tty"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/stream"
	"github.com/hamlet-federation/coredns-federation/federation/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/receipt"
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
	Version wire.Version
	Policy  wire.Policy    // which addresses the owner may publish
	Imports pattern.Filter // which services are kept

	Once   bool   // it ends when the catalog is complete, and the owner is tried only once
	Output string // table, or a format of printable.Objects: an object for each change

	Stdout, Stderr io.Writer
}

// Watch decides when it ends, and passes on what a mirror reports. It implements
// consumer.Observer.
type Watch struct {
	consumer.NoObserver

	// Read-only once Run has begun.
	config   Config
	view     *lines
	progress *tty.Progress
	finish   context.CancelCauseFunc // ends the watch
	empty    *time.Timer             // ends it when nothing comes

	importer importer

	// Owned by publish.
	opened   bool // the only stream of once is open
	complete bool // the catalog was, once

	// Atomic.
	refusals atomic.Int64
}

// New returns a watch that is about to begin.
func New(c Config) *Watch {
	w := &Watch{config: c, importer: importer{filter: c.Imports}}
	stdout, stderr := c.Stdout, c.Stderr
	w.progress = tty.NewProgress(stderr)
	w.progress.Sayf("connecting to %s", printable.Text(c.Address))
	stderr = w.progress.Beside(stderr)
	if tty.Is(stdout) {
		stdout = w.progress.Beside(stdout)
	}
	w.view = newLines(c.Address, stdout, stderr)
	if !printable.IsTable(c.Output) {
		w.view.format = objects(&printable.Objects{Format: c.Output})
	} else {
		w.view.header = fmt.Sprintf(row, "OP", "NAME", "FQDN", "INSTANCES", "ENDPOINTS") + "\n"
	}
	return w
}

// Messages returns where messages go from now on: there may be progress on the same terminal.
func (w *Watch) Messages() io.Writer { return w.view.stderr }

// Run shows what the owner publishes until the watch or ctx ends. It returns nil for an end
// that is no failure.
func (w *Watch) Run(ctx context.Context, identity stream.Identity) error {
	c := &w.config
	awaitUnread := func(ctx context.Context) error { return tty.AwaitUnread(ctx, c.Stdout) }
	showProgress := func(ctx context.Context) error {
		w.progress.Run(ctx.Done())
		return nil
	}
	return w.run(ctx, consumer.Config{
		Receipt:      func() receipt.Receipt { return receipt.Receipt{} }, // nobody is answered from it
		Subscription: consumer.Subscription{Addresses: []string{c.Address}, Identity: identity, Version: c.Version},
		Rules:        catalog.Rules{Settle: SettleTime, Retention: catalog.Forever, Admit: w.importer.admit(c.Policy)},
	}, awaitUnread, showProgress)
}

// errComplete is the end of a watch that is no failure, as tty.ErrUnread is.
var errComplete = errors.New("catalog is complete")

// helper runs beside a watch until ctx ends. Its error ends the watch.
type helper func(ctx context.Context) error

// run mirrors the owner until the watch or ctx ends. It returns nil for an end that
// is no failure.
func (w *Watch) run(ctx context.Context, config consumer.Config, helpers ...helper) error {
	var running sync.WaitGroup
	defer running.Wait()
	watching, finish := context.WithCancelCause(ctx)
	defer finish(nil)
	w.finish = finish
	w.empty = time.AfterFunc(EmptyTime, func() {
		finish(fmt.Errorf("owner %s: no service within %v, nor the end of the catalog: whether it is empty is not known; "+
			"check that the owner has loaded its services", w.config.Address, EmptyTime))
	})
	w.empty.Stop() // until a stream is open
	defer w.empty.Stop()
	config.Observer = w
	config.Publish = func(c consumer.Changes) {
		if watching.Err() == nil { // that the mirror ends as well is not shown
			w.publish(c)
		}
	}
	m, err := consumer.New(config)
	if err != nil {
		return err
	}
	for _, help := range helpers {
		running.Go(func() {
			if err := help(watching); err != nil {
				finish(err)
			}
		})
	}
	if err := m.Run(watching); err != nil {
		return err
	}
	switch cause := context.Cause(watching); {
	case errors.Is(cause, errComplete), errors.Is(cause, tty.ErrUnread):
		return nil
	case ctx.Err() == nil:
		return cause
	case w.config.Once:
		return fmt.Errorf("interrupted before the catalog of %s was complete", w.config.Address)
	}
	return nil
}

// publish shows what has changed, and ends the watch when it is over.
func (w *Watch) publish(c consumer.Changes) {
	s := &c.Status
	if s.Failure != nil {
		if todo, refused := remedy(s.Failure); s.Parked || w.config.Once || s.Generation == 0 && refused {
			w.finish(fmt.Errorf("owner %s: %w; %s", w.config.Address, s.Failure, todo))
			return
		}
	}
	if w.config.Once && !w.opened && s.Generation > 0 {
		w.opened = true
		w.empty.Reset(EmptyTime)
	}
	switch {
	case s.State == catalog.Synced:
		w.complete = true
		w.progress.Sayf("")
	case s.Services > 0 && !w.complete:
		w.progress.Sayf("%s from %s", status.Count(s.Services, "service"), printable.Text(w.config.Address))
	}
	w.skip()
	if err := w.view.show(c); err != nil {
		w.unwritten(err)
		return
	}
	if w.config.Once && s.State == catalog.Synced {
		w.finish(errComplete)
	}
}

// skip shows the services that were not imported since the last call.
func (w *Watch) skip() {
	services, more := w.importer.take()
	for _, s := range services {
		if err := w.view.skipped(s.Unpack()); err != nil {
			w.unwritten(err)
			return
		}
	}
	if more {
		fmt.Fprintln(w.view.stderr, "federationctl: not imported: more services, which are not named")
	}
}

// unwritten ends the watch, as what there is to see cannot be written.
func (w *Watch) unwritten(err error) {
	if errors.Is(err, syscall.EPIPE) {
		w.finish(tty.ErrUnread)
	}
	w.finish(err)
}

// Responded implements consumer.Observer. Once a service has come or gone, silence
// completes the catalog, and nobody has to ask whether it is empty.
func (w *Watch) Responded(op federation.Operation, _ string) {
	if op == federation.Upsert || op == federation.Delete {
		w.empty.Stop()
	}
	w.skip() // also where that is all, and nothing is to be published
	w.view.responded()
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
