// Package register registers a program that knows nothing of it: it stands beside the
// program or is its parent, checks it, and withdraws it before it ends.
//
// Only packages of this module import it: it is not a stable API.
package register

import (
	"context"
	"io"
	"os"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/register/child"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve/health"
	"github.com/hamlet-federation/coredns-federation/federation/provider"
)

// Config says what to register, and while what.
type Config struct {
	Provider provider.Config // OnChange is that of the session
	Node     provider.Node
	Health   health.Config // without a Check the node is registered always
	Drain    Drain
	Command  []string  // to be run; none: the program runs already
	Stderr   io.Writer // for what happens
}

// Drain says how long the program stays after its node is withdrawn.
type Drain struct {
	Wait     time.Duration // for which clients may have the node in their caches
	Receipts bool          // whether it ends earlier, when the owner knows that they do not
}

// Run registers until ctx ends or, with a command, until that does. It returns the exit
// code of the command, or 0. A command that cannot be started has the exit code of a shell,
// and an error. With a command ctx must not end: Run takes the signals of the process, and
// passes them on.
func Run(ctx context.Context, c Config) (code int, err error) {
	r := &session{config: c, progress: newProgress(c.Stderr)}
	c.Provider.OnChange = r.progress.changed
	if r.provider, err = provider.New(c.Provider); err != nil {
		return 0, err
	}
	if err := r.set(); err != nil { // so that what can never be registered is an error
		return 0, err
	}
	if c.Health.Check != nil {
		r.provider.Clear(c.Node.Service, c.Node.URI) // until it is known to be healthy
	}
	if len(c.Command) == 0 {
		r.beside(ctx)
		return 0, nil
	}
	return r.parent(ctx)
}

type session struct {
	config   Config
	provider *provider.Provider
	progress *progress

	uncheck context.CancelFunc // ends the checks; set by start
}

func (r *session) set() error { return r.provider.Set(r.config.Node) }

// start starts to register, and returns what waits for its end.
func (r *session) start(ctx context.Context) (wait func()) {
	var running sync.WaitGroup
	running.Go(func() { _ = r.provider.Run(ctx) }) // it runs once, and has no other error
	var checking context.Context
	checking, r.uncheck = context.WithCancel(ctx)
	if r.config.Health.Check != nil {
		running.Go(func() { health.Follow(checking, r.config.Health, r.checked) })
	}
	return running.Wait
}

// checked applies a change of the program's health.
func (r *session) checked(failure error) {
	if failure != nil {
		r.provider.Clear(r.config.Node.Service, r.config.Node.URI)
		r.progress.unhealthy(failure)
		return
	}
	r.progress.healthy()
	_ = r.set() // which fails only at the end
}

// drain withdraws the node for good, and waits until clients have it no more in their
// caches or ctx ends.
func (r *session) drain(ctx context.Context, d Drain) {
	r.uncheck()
	if d = r.progress.withdraws(r.config.Node.Service, d); !d.Receipts {
		_ = r.provider.Drain(ctx, d.Wait) // its only error is that of ctx
		return
	}
	begun := time.Now()
	unsettled := r.provider.Settle(ctx, d.Wait)
	if ctx.Err() == nil {
		r.progress.settled(r.config.Node.Service, time.Since(begun), unsettled)
	}
}

// beside registers until ctx ends.
func (r *session) beside(ctx context.Context) {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer r.start(running)()
	defer cancel()
	<-ctx.Done()
	r.drain(running, r.config.Drain)
}

// parent runs the command and registers until it has ended.
func (r *session) parent(ctx context.Context) (code int, err error) {
	signals, stop := child.Signals()
	defer stop()
	command, err := child.Start(r.config.Command)
	if err != nil {
		return child.Code(err), err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer r.start(ctx)()
	defer cancel()

	var draining sync.WaitGroup
	waiting, cut := context.WithCancel(ctx) // for the caches of clients
	defer cut()
	ending := false // a signal has asked for the end
	for {
		var s os.Signal
		select {
		case s = <-signals:
		case <-command.Done():
			cancel()
			draining.Wait()
			r.drain(context.WithoutCancel(ctx), Drain{})
			return command.Wait(), nil
		}
		switch {
		case child.Stops(s):
			command.Signal(s)
			child.Stop()
		case child.Ends(s) && !ending:
			ending = true
			draining.Go(func() {
				r.drain(waiting, r.config.Drain)
				if waiting.Err() == nil {
					command.Signal(s)
				}
			})
		case child.Ends(s):
			cut()
			command.Signal(s)
		default:
			command.Signal(s)
		}
	}
}
