package consumer

import (
	"cmp"
	"context"
	"errors"
	"net"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/stream"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// Subscription says how the owner is reached, and where its catalog is kept.
type Subscription struct {
	Addresses []string        // host:port of the owner's replicas, at least one; tried in turn
	Identity  stream.Identity // mostly an mtls.Consumer
	Version   wire.APIVersion // of the API; default v1alpha2

	// Dial opens a connection to an address; default: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)

	// File is the path of the file in which the catalog outlives the process;
	// empty: none.
	File string

	// FileLock is the lock of File, a semaphore of 1: mirrors with the same lock write the file one after the
	// other. In a reload, the mirror of the new configuration waits until that of the old one has ended. Other
	// processes do not see the lock. It may be nil where no other mirror uses the file.
	FileLock *semaphore.Weighted
}

// subscriptionRun is one Subscription that Run follows or will follow.
type subscriptionRun struct {
	consumer *stream.Consumer
	file     string
	lock     *semaphore.Weighted // of file
	cancel   context.CancelFunc  // ends the run; nil until Run follows it
}

// newSubscriptionRun returns a run of the subscription, or an error that names a field of it.
func (m *Mirror) newSubscriptionRun(s Subscription) (*subscriptionRun, error) {
	c, err := stream.New(stream.Config{
		Addresses: s.Addresses,
		Identity:  s.Identity,
		Version:   s.Version,
		Dial:      s.Dial,
		Sink:      mirrorSink{m},
		Await:     m.config.Await,
		Logger:    m.logger,
	})
	if err != nil {
		return nil, err
	}
	return &subscriptionRun{consumer: c, file: s.File, lock: cmp.Or(s.FileLock, m.fileLock)}, nil
}

// Resubscribe replaces the subscription and, as Configure does, the rules. The stream, if there is
// one, ends, and the services that it brought are live for the grace. Services that were refused
// before and would be accepted now come with the next stream. A parked owner is tried again. An
// error names the field, and then nothing has changed.
func (m *Mirror) Resubscribe(s Subscription, rules catalog.Rules) error {
	next, err := m.newSubscriptionRun(s)
	if err != nil {
		return err
	}
	m.changeAndPublish(func(now time.Time) {
		m.catalog.SetRules(rules, now)
		m.next = next
		if m.current != nil {
			m.current.cancel()
		}
	})
	m.announceStatus()
	return nil
}

// takeNext returns the next subscription, and clears it. There is one when Run begins, and whenever
// a subscription has ended although the context of Run has not.
func (m *Mirror) takeNext() *subscriptionRun {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.next
	m.next = nil
	return s
}

// followSubscription runs one subscription until ctx ends or another subscription replaces it.
func (m *Mirror) followSubscription(ctx context.Context, s *subscriptionRun) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.mu.Lock()
	s.cancel = cancel
	if m.next != nil {
		cancel() // it came when there was nothing to cancel yet
	}
	m.current = s
	m.mu.Unlock()

	var k *snapshotKeeper
	if s.file != "" {
		k = m.newSnapshotKeeper(s.file, s.lock)
		// The catalog is restored before the owner can say anything of it, unless
		// the disk hangs.
		k.restoreCatalog(ctx)
		m.keeper.Store(k)     // not before, or what was restored would be saved again
		go k.saveChanges(ctx) // awaited by Run, as long as a disk is waited for
	}
	_ = s.consumer.Run(ctx) // it returns nil when ctx ends, and not before

	m.nextAttempt.Store(0)
	m.changeAndPublish(func(now time.Time) {
		m.current = nil
		m.setFailure(nil, false)
		m.catalog.EndStream(now, now)
		if k != nil {
			m.keeper.Store(nil)
			k.last <- m.snapshotLocked(now)
		}
	})
	m.announceStatus()
}

// setFailure records why there is no stream. A nil err says that there is one, or that none is
// wanted. The caller holds m.mu.
func (m *Mirror) setFailure(err error, parked bool) {
	m.own.Failure, m.own.Parked, m.outdated = err, parked, true
}

// mirrorSink is the stream.Sink of a mirror: it applies what the owner sends.
type mirrorSink struct{ *Mirror }

// AttemptStarted implements stream.Sink.
func (m mirrorSink) AttemptStarted() { m.lastAttempt.Store(time.Now().UnixNano()) }

// StreamOpened implements stream.Sink.
func (m mirrorSink) StreamOpened() {
	m.changeAndPublish(func(now time.Time) {
		m.setFailure(nil, false)
		m.own.Resumed = false
		m.catalog.OpenStream(now)
	})
	m.announceStatus()
}

// ApplyUpdates implements stream.Sink.
func (m mirrorSink) ApplyUpdates(updates []stream.Update) {
	m.began = time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.currentTime()
	for i := range updates {
		u := &updates[i]
		if u.Invalid != nil {
			m.catalog.NoteRefusal(u.Name, u.ID, now)
			continue
		}
		u.Invalid, _ = errors.AsType[*federation.InvalidError](m.catalog.ApplyEvent(u.Event, now)) // a stream is open, so there is no other error
	}
	m.publishChanges()
	m.rescheduleWake(now)
	m.visible = time.Now()
}

// checkPath returns why the mirror does not want services that come by this path, or nil.
func (m *Mirror) checkPath(path wire.OwnerPath, malformed error) error {
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

// UpdatesAnswered implements stream.Sink. The Observer learns of published updates only here,
// because keepTime may announce a status while the acknowledgements are still under way.
func (m mirrorSink) UpdatesAnswered(updates []stream.Update) {
	m.announceStatus()
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

// StreamLost implements stream.Sink.
func (m mirrorSink) StreamLost(l stream.Loss) {
	m.config.Observer.Ended(l.Code)
	m.changeAndPublish(func(now time.Time) {
		m.setFailure(l.Err, l.Parked)
		m.catalog.EndStream(now.Add(-l.Already), now)
	})
	m.announceStatus()
}

// IsComplete implements stream.Sink.
func (m mirrorSink) IsComplete() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.catalog.IsComplete()
}

// AttemptScheduled implements stream.Sink.
func (m mirrorSink) AttemptScheduled(until time.Time) {
	if until.IsZero() {
		m.nextAttempt.Store(0)
		return
	}
	m.nextAttempt.Store(until.UnixNano())
}
