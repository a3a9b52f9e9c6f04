// Package register registers a program that knows nothing of it: it stands beside the
// program, checks it, and withdraws it before it ends.
//
// Only packages of this module import it: it is not a stable API.
package register

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve/health"
	"github.com/hamlet-federation/coredns-federation/federation/provider"
)

// Config says what to register, and while what.
type Config struct {
	Provider provider.Config // OnChange is that of the session
	Node     provider.Node
	Health   health.Config // without a Check the node is registered always
	Drain    time.Duration // for which clients may have the node in their caches when it is withdrawn
	Stderr   io.Writer     // for what happens
}

// Run registers until ctx ends, and drains then.
func Run(ctx context.Context, c Config) (err error) {
	r := &nodeSession{config: c, progress: newProgress(c.Stderr)}
	c.Provider.OnChange = r.progress.noteStatus
	if r.provider, err = provider.New(c.Provider); err != nil {
		return err
	}
	if err := r.setNode(); err != nil { // so that what can never be registered is an error
		return err
	}
	if c.Health.Check != nil {
		r.provider.Clear(c.Node.Service, c.Node.URI) // until it is known to be healthy
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer r.startRegistering(running)()
	defer cancel()
	<-ctx.Done()
	r.drainNode(running, r.config.Drain)
	return nil
}

type nodeSession struct {
	config   Config
	provider *provider.Provider
	progress *progressLog

	uncheck context.CancelFunc // ends the checks; set by startRegistering
}

func (r *nodeSession) setNode() error { return r.provider.Set(r.config.Node) }

// startRegistering starts to register, and returns what waits for its end.
func (r *nodeSession) startRegistering(ctx context.Context) (wait func()) {
	var running sync.WaitGroup
	running.Go(func() { _ = r.provider.Run(ctx) }) // it runs once, and has no other error
	var checking context.Context
	checking, r.uncheck = context.WithCancel(ctx)
	if r.config.Health.Check != nil {
		running.Go(func() { health.RepeatCheck(checking, r.config.Health, r.applyHealth) })
	}
	return running.Wait
}

// applyHealth applies a change of the program's health.
func (r *nodeSession) applyHealth(failure error) {
	if failure != nil {
		r.provider.Clear(r.config.Node.Service, r.config.Node.URI)
		r.progress.noteUnhealthy(failure)
		return
	}
	r.progress.noteHealthy()
	_ = r.setNode() // which fails only at the end
}

// drainNode withdraws the node for good, and waits until clients have it no more in their
// caches or ctx ends.
func (r *nodeSession) drainNode(ctx context.Context, d time.Duration) {
	r.uncheck()
	_ = r.provider.Drain(ctx, r.progress.noteWithdrawal(r.config.Node.Service, d)) // its only error is that of ctx
}
