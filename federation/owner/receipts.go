package owner

import (
	"context"
	"fmt"
	"hash/maphash"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/hamlet-federation/coredns-federation/federation/owner/internal/receipts"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/receipt"
)

// declared is what the consumer of a session has said of what it may hold. Without one it has
// said nothing.
type declared struct {
	mu      sync.Mutex // guards the fields below
	said    receipt.Receipt
	reports *reports  // nil where it makes none
	refuses *refusals // nil where it has refused nothing
}

// reports are what the consumer of a session reports.
type reports struct {
	unknown string    // why a relay cannot know what its consumers hold
	settled watermark // of what the consumer reports
	first   uint64    // the responses before it are settled
}

// refusals are what the consumer of a session refuses.
type refusals struct {
	services map[string]struct{} // of which it has refused the last update
	more     bool                // whether it has refused more than maxRefused
	took     time.Time           // when it took something last that it had refused
}

// unknown says why nobody knows what the consumer holds, or "". The caller holds mu.
func (r *declared) unknown() string {
	if r.reports == nil {
		return ""
	}
	return r.reports.unknown
}

// refusal returns a service that the consumer refuses: it may have what it was told of it before,
// by another program even, and what that was nobody knows. The caller holds mu.
func (r *declared) refusal() (service string, refuses bool) {
	if r.refuses == nil {
		return "", false
	}
	for name := range r.refuses.services {
		return name, true
	}
	return "and others", r.refuses.more
}

// since returns when the consumer had a version that it had at a time, if it refused something
// until later. The caller holds mu.
func (r *declared) since(at time.Time) time.Time {
	if r.refuses != nil && at.Before(r.refuses.took) {
		return r.refuses.took
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
		r.reports = &reports{first: 1}
	}
	if said.Relay {
		r.reports.unknown = notYetReported
	}
	return r, nil
}

// reached returns how far the consumer has come, while the subscription is open.
func (s *session) reached() reached {
	done := s.window.acknowledged()
	if r := s.receipt; r != nil && r.reports != nil {
		r.mu.Lock()
		done = r.reports.settled
		r.mu.Unlock()
	}
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
		r.mu.Lock()
		defer r.mu.Unlock()
		c.Receipt, c.Unknown = r.said, r.unknown()
	}
	return c
}

// hash returns what stands for a copy in holders: the keys themselves would take most of the memory
// that a consumer costs for its receipts.
func (s *Server) hash(c *receipts.Copy) uint64 { return maphash.String(s.seed, c.Key()) }

// hold remembers that the consumer has a copy, before it is told anything.
func (s *Server) hold(session *session) {
	c := session.copied()
	s.mu.Lock()
	session.holds = true
	s.holders[s.hash(c)]++
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
	key := s.hash(c)
	if s.holders[key]--; s.holders[key] > 0 {
		return
	}
	delete(s.holders, key)
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
	m := mark{version: s.subscription.Taken()}
	m.end = s.window.told(m.version)
	if r := s.receipt; r != nil && r.reports != nil { // which does not change
		r.mu.Lock()
		defer r.mu.Unlock()
		r.reports.settled.note(m, r.reports.first)
	}
}

// report takes what the consumer says later of what it may hold. A nonce that was not sent yet
// is none.
func (s *session) report(said *receipt.Report) {
	r := s.receipt
	if r == nil {
		return
	}
	has := r.reports
	settled, err := strconv.ParseUint(said.Settled, 10, 64)
	r.mu.Lock()
	changed := r.said.Hold != said.Hold
	if r.said.Hold = said.Hold; has != nil {
		if err == nil && settled < s.window.acknowledgedBefore() {
			has.first = max(has.first, settled+1)
			has.settled.advance(has.first)
		}
		changed = changed || has.unknown != said.Unknown
		has.unknown = said.Unknown
	}
	r.mu.Unlock()
	if changed {
		s.server.copies.Changed(s.copied())
	}
}

// answers notes whether the consumer refuses the update of a service.
func (r *declared) answers(answered flight, refused bool) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuses == nil {
		if !refused {
			return
		}
		r.refuses = &refusals{services: make(map[string]struct{})}
	}
	of := r.refuses
	_, known := of.services[answered.name]
	switch {
	case refused && !known && len(of.services) == maxRefused:
		of.more = true
	case refused:
		of.services[answered.name] = struct{}{}
	case known:
		delete(of.services, answered.name)
		of.took = time.Now()
	}
}
