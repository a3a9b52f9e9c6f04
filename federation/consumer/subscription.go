package consumer

import (
	"cmp"
	"context"
	"errors"
	"net"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/stream"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// Subscription is how the owner is reached, and where its catalog is kept.
type Subscription struct {
	Addresses []string        // host:port of the owner's replicas, at least one; tried in turn
	Identity  stream.Identity // mostly an mtls.Consumer
	Version   wire.Version    // of the API; default v1alpha2

	// Dial opens a connection to an address; default: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	// File is the path of the file in which the catalog outlives the process;
	// empty: none.
	File string

	// FileLock is that of File, which mirrors with one lock write one after the other. It may be
	// nil where no other one has the file.
	FileLock *FileLock
}

// subscription is one Subscription on its way through Run.
type subscription struct {
	consumer *stream.Consumer
	file     string
	lock     *FileLock          // of file
	cancel   context.CancelFunc // ends it; nil until Run follows it
}

func (m *Mirror) subscription(s Subscription) (*subscription, error) {
	c, err := stream.New(stream.Config{
		Addresses: s.Addresses,
		Identity:  s.Identity,
		Version:   s.Version,
		Dial:      s.Dial,
		Sink:      sink{m},
		Logger:    m.logger,
	})
	if err != nil {
		return nil, err
	}
	return &subscription{consumer: c, file: s.File, lock: cmp.Or(s.FileLock, &m.fileLock)}, nil
}

// Resubscribe replaces the subscription and, as Configure does, the rules. The stream, if there is one,
// ends; what it brought is live for the grace. What was refused before and would be accepted now comes with
// the next one. A parked owner is tried again. An error names the field, and changes nothing.
func (m *Mirror) Resubscribe(s Subscription, rules catalog.Rules) error {
	next, err := m.subscription(s)
	if err != nil {
		return err
	}
	m.change(func(now time.Time) {
		m.catalog.SetRules(withDefaults(rules), now)
		m.next = next
		if m.current != nil {
			m.current.cancel()
		}
	})
	m.announce()
	return nil
}

// take returns the next subscription. There is one when Run begins, and whenever
// one has ended although the context of Run has not.
func (m *Mirror) take() *subscription {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.next
	m.next = nil
	return s
}

// follow keeps one subscription until ctx ends or another one takes its place.
func (m *Mirror) follow(ctx context.Context, s *subscription) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.mu.Lock()
	s.cancel = cancel
	if m.next != nil {
		cancel() // it came when there was nothing to cancel yet
	}
	m.current = s
	m.mu.Unlock()

	var k *keeper
	if s.file != "" {
		k = m.newKeeper(s.file, s.lock)
		// The catalog is restored before the owner can say anything of it, unless
		// the disk hangs.
		k.load(ctx)
		m.keeper.Store(k) // not before, or what was restored would be saved again
		go k.run(ctx)     // awaited by Run, as long as a disk is waited for
	}
	_ = s.consumer.Run(ctx) // it returns nil when ctx ends, and not before

	m.nextAttempt.Store(0)
	m.change(func(now time.Time) {
		m.current = nil
		m.setFailure(nil, false)
		m.catalog.EndStream(now, now)
		if k != nil {
			m.keeper.Store(nil)
			k.last <- m.snapshot(now)
		}
	})
	m.announce()
}

// setFailure notes why there is no stream; nil: there is one, or none is wanted.
// m.mu is held.
func (m *Mirror) setFailure(err error, parked bool) {
	m.own.Failure, m.own.Parked, m.outdated = err, parked, true
}

// sink applies what the owner says.
type sink struct{ *Mirror }

// Attempted implements stream.Sink.
func (m sink) Attempted() { m.lastAttempt.Store(time.Now().UnixNano()) }

// Opened implements stream.Sink.
func (m sink) Opened() {
	m.change(func(now time.Time) {
		m.setFailure(nil, false)
		m.own.Resumed = false
		m.catalog.OpenStream(now)
	})
	m.announce()
}

// Apply implements stream.Sink.
func (m sink) Apply(updates []stream.Update) {
	m.began = time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	for i := range updates {
		u := &updates[i]
		if u.Invalid != nil {
			m.catalog.NoteRefusal(u.Name, u.ID, now)
			continue
		}
		u.Invalid, _ = errors.AsType[*federation.InvalidError](m.catalog.ApplyEvent(u.Event, now)) // a stream is open, so there is no other error
	}
	m.publish()
	m.reschedule(now)
	m.visible = time.Now()
}

// accept returns why services that come by this path are not wanted.
func (m *Mirror) accept(path wire.Path, malformed error) error {
	if m.config.Accept == nil {
		return nil
	}
	err := malformed
	if err == nil {
		err = m.config.Accept(path)
	}
	if err != nil {
		return stream.UnwantedError{Reason: err}
	}
	return nil
}

// Answered implements stream.Sink. Only here is the Observer told of what was
// published: keepTime may announce while the acknowledgements are still under way.
func (m sink) Answered(updates []stream.Update) {
	m.announce()
	for i := range updates {
		if u := &updates[i]; u.Invalid != nil {
			m.config.Observer.Refused(u.Invalid)
		} else {
			m.config.Observer.Responded(u.Operation, u.Name)
			m.config.Observer.Published(m.visible.Sub(u.Received))
		}
	}
	m.config.Pause(time.Since(m.began))
}

// Lost implements stream.Sink.
func (m sink) Lost(l stream.Loss) {
	m.config.Observer.Ended(l.Code)
	m.change(func(now time.Time) {
		m.setFailure(l.Err, l.Parked)
		m.catalog.EndStream(now.Add(-l.Already), now)
	})
	m.announce()
}

// Complete implements stream.Sink.
func (m sink) Complete() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.catalog.IsComplete()
}

// Waiting implements stream.Sink.
func (m sink) Waiting(until time.Time) {
	if until.IsZero() {
		m.nextAttempt.Store(0)
		return
	}
	m.nextAttempt.Store(until.UnixNano())
}
