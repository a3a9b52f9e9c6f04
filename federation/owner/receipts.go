package owner

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/hamlet-federation/coredns-federation/federation/owner/internal/receipts"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/receipt"
)

// declared is what the consumer of a session has said of what it may hold. Without one it has
// said nothing. An owner has one for each stream, so it is small. The mutex of the session's
// window guards it.
type declared struct {
	said  receipt.Receipt
	notes *notes // nil where it makes no reports and has refused nothing
}

// notes are what the consumer of a session has said since.
type notes struct {
	// of one that reports
	unknown string    // why a relay cannot know what its consumers hold
	settled watermark // of what the consumer reports
	first   uint64    // the responses before it are settled

	refused map[string]struct{} // services of which it has refused the last update
	more    bool                // whether it has refused more than maxRefused
	took    time.Time           // when it took something last that it had refused
}

// unknown says why nobody knows what the consumer holds, or "".
func (r *declared) unknown() string {
	if r.notes == nil {
		return ""
	}
	return r.notes.unknown
}

// refusal returns a service that the consumer refuses: it may have what it was told of it before,
// by another program even, and what that was nobody knows.
func (r *declared) refusal() (service string, refuses bool) {
	if r.notes == nil {
		return "", false
	}
	for name := range r.notes.refused {
		return name, true
	}
	return "and others", r.notes.more
}

// since returns when the consumer had a version that it had at a time, if it refused something
// until later.
func (r *declared) since(at time.Time) time.Time {
	if r.notes != nil && at.Before(r.notes.took) {
		return r.notes.took
	}
	return at
}

// maxRefused bounds the services of which it is known that a consumer refuses them.
const maxRefused = 100

// notYetReported is why nothing is known of the consumers of a relay. It is worth to wait for the
// report while there is a stream.
const notYetReported = "the relay has yet to report what its own consumers hold"

// receiptOf returns what a consumer says in the header of its stream of what it may hold.
func receiptOf(ctx context.Context, version wire.Version) (*declared, error) {
	values := metadata.ValueFromIncomingContext(ctx, receipt.Header)
	if len(values) != 1 {
		return nil, nil //nolint:nilnil // it says nothing
	}
	said, err := receipt.Parse(values[0])
	if err != nil {
		return nil, err
	}
	if said.Reports() && version != wire.V1Alpha2 {
		return nil, fmt.Errorf("there are reports in %s only", wire.V1Alpha2)
	}
	r := &declared{said: said}
	if said.Reports() {
		r.notes = &notes{first: 1}
	}
	if said.Relay {
		r.notes.unknown = notYetReported
	}
	return r, nil
}

// reached returns how far the consumer has come, while the subscription is open.
func (s *session) reached() reached {
	s.window.mu.Lock()
	done := s.window.answered
	if r := s.receipt; r != nil && r.said.Reports() {
		done = r.notes.settled
	}
	s.window.mu.Unlock()
	if done.version == 0 {
		return reached{} // there may be no subscription yet
	}
	return reached{s.subscription.Reached(done.version), done.at}
}

// finished ends the subscription.
func (s *session) finished() {
	if last := s.reached(); last.version > 0 {
		s.last = &last
	}
	s.subscription.Close()
}

// copied returns the copy of the catalog that the consumer has.
func (s *session) copied() *receipts.Copy {
	c := &receipts.Copy{Catalog: s.catalog.name, Consumer: s.consumer, IDs: s.ids}
	if r := s.receipt; r != nil {
		s.window.mu.Lock()
		defer s.window.mu.Unlock()
		c.Receipt, c.Unknown = r.said, r.unknown()
	}
	return c
}

// hold remembers that the consumer has a copy, before it is told anything.
func (s *Server) hold(session *session) {
	c := session.copied()
	s.mu.Lock()
	session.holds = true
	s.holders.Add(c.Key())
	s.mu.Unlock()
	s.copies.Opened(c)
}

// loseLocked remembers what the consumer of a session may hold that has ended, if it has no
// other one. The caller holds the lock.
func (s *Server) loseLocked(session *session) {
	if !session.holds {
		return // it was told nothing
	}
	c := session.copied()
	if !s.holders.Remove(c.Key()) {
		return
	}
	c.Lost = time.Now()
	if last := session.last; last != nil {
		r := session.receipt // which nobody else uses any more
		if r == nil {
			r = &declared{}
		}
		if _, refuses := r.refusal(); !refuses {
			c.Of, c.Version, c.At = session.registry, last.version, r.since(last.at)
		}
	}
	s.copies.Lost(c)
}

// reach notes what the consumer has been told, once that is all of the catalog.
func (s *session) reach() {
	if !s.complete {
		return
	}
	version := s.subscription.Taken()
	s.window.mu.Lock()
	defer s.window.mu.Unlock()
	m := s.window.told(version)
	if r := s.receipt; r != nil && r.said.Reports() {
		r.notes.settled.note(m, r.notes.first)
	}
}

// report takes what the consumer says later of what it may hold. A nonce that was not sent yet
// is none.
func (s *session) report(said *receipt.Report) {
	r := s.receipt
	if r == nil {
		return
	}
	settled, err := strconv.ParseUint(said.Settled, 10, 64)
	s.window.mu.Lock()
	changed := r.said.Hold != said.Hold
	if r.said.Hold = said.Hold; r.said.Reports() {
		has := r.notes
		if err == nil && settled < s.window.first {
			has.first = max(has.first, settled+1)
			has.settled.advance(has.first)
		}
		changed = changed || has.unknown != said.Unknown
		has.unknown = said.Unknown
	}
	s.window.mu.Unlock()
	if changed {
		s.server.copies.Changed(s.copied())
	}
}

// refuses notes whether the consumer refuses the update of a service.
func (s *session) refuses(service string, refused bool) {
	r := s.receipt
	if r == nil {
		return
	}
	s.window.mu.Lock()
	defer s.window.mu.Unlock()
	if r.notes == nil {
		if !refused {
			return
		}
		r.notes = new(notes)
	}
	of := r.notes
	_, known := of.refused[service]
	switch {
	case refused && !known && len(of.refused) == maxRefused:
		of.more = true
	case refused && of.refused == nil:
		of.refused = map[string]struct{}{service: {}}
	case refused:
		of.refused[service] = struct{}{}
	case known:
		delete(of.refused, service)
		of.took = time.Now()
	}
}
