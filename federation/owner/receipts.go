package owner

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner/internal/receipts"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/receipt"
)

// declared is what the consumer of a session has said of what it may hold. Without one it has
// said nothing.
type declared struct {
	mu      sync.Mutex // guards the fields below
	said    receipt.Receipt
	unknown string                          // why a relay cannot know what its consumers hold
	settled watermark                       // of the consumers of a relay
	first   uint64                          // the responses before it are settled
	refused map[string]federation.Operation // the services of which the consumer has refused the last update
	more    bool                            // whether it has refused more than maxRefused
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
	r := &declared{said: said, first: 1}
	if said.Relay {
		if version != wire.V1Alpha2 {
			return nil, fmt.Errorf("a relay reports in %s only", wire.V1Alpha2)
		}
		r.unknown = notYetReported
	}
	return r, nil
}

// reached returns how far the consumer has come, while the subscription is open.
func (s *session) reached() reached {
	done := s.window.acknowledged()
	if r := s.receipt; r != nil && r.said.Relay {
		r.mu.Lock()
		done = r.settled
		r.mu.Unlock()
	}
	if done.version == 0 {
		return reached{} // there may be no subscription yet
	}
	return reached{s.subscription.Reached(done.version), done.at}
}

// finished ends the subscription.
func (s *session) finished() {
	s.last = s.reached()
	s.subscription.Close()
}

// copied returns the copy of the catalog that the consumer has.
func (s *session) copied() *receipts.Copy {
	c := &receipts.Copy{Catalog: s.catalog.name, Consumer: s.consumer, IDs: s.ids}
	if r := s.receipt; r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		c.Receipt, c.Unknown = r.said, r.unknown
	}
	return c
}

// hold remembers that the consumer has a copy, before it is told anything.
func (s *Server) hold(session *session) {
	c := session.copied()
	session.key = c.Key()
	s.mu.Lock()
	s.holders[session.key]++
	s.mu.Unlock()
	s.copies.Opened(c)
}

// loseLocked remembers what the consumer of a session may hold that has ended, if it has no
// other one. The caller holds the lock.
func (s *Server) loseLocked(session *session) {
	if session.key == "" {
		return // it was told nothing
	}
	if s.holders[session.key]--; s.holders[session.key] > 0 {
		return
	}
	delete(s.holders, session.key)
	c := session.copied()
	c.Lost = time.Now()
	if r := session.receipt; r != nil && len(r.refused) == 0 { // nobody else uses it any more
		c.Of, c.Version, c.At = session.registry, session.last.version, session.last.at
	}
	s.copies.Lost(c)
}

// reach notes what the consumer has been told, once that is all of the catalog.
func (s *session) reach() {
	if !s.complete {
		return
	}
	m := mark{version: s.subscription.Taken()}
	m.end = s.window.told(m.version)
	if r := s.receipt; r != nil && r.said.Relay { // which does not change
		r.mu.Lock()
		defer r.mu.Unlock()
		r.settled.note(m, r.first)
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
	r.mu.Lock()
	if err == nil && settled < s.window.acknowledgedBefore() {
		r.first = max(r.first, settled+1)
		r.settled.advance(r.first)
	}
	changed := r.said.Hold != said.Hold || r.unknown != said.Unknown
	r.said.Hold, r.unknown = said.Hold, said.Unknown
	r.mu.Unlock()
	if changed {
		s.server.copies.Changed(s.copied())
	}
}

// refuses notes whether the consumer refuses the update of a service.
func (r *declared) refuses(answered flight, refused bool) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !refused:
		delete(r.refused, answered.name)
	case len(r.refused) == maxRefused:
		r.more = true
	default:
		if r.refused == nil {
			r.refused = make(map[string]federation.Operation)
		}
		r.refused[answered.name] = answered.operation
	}
}
