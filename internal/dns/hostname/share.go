package hostname

import (
	"net/netip"
	"sync"
	"time"
)

// maxRemembered bounds the memory of an owner, counted in hosts, each in one type,
// and their addresses: an address costs a tenth of a host, and a reply can have
// thousands.
const maxRemembered = 16 * 1024

// How long results are used.
const (
	// negativeLife is for hosts without an address of the type.
	negativeLife = 5 * time.Second

	// A failure is remembered for minRetry, and for twice as long with each that
	// follows, up to maxRetry (RFC 9520 section 3.2: 1 s to 5 min). While there are
	// stale addresses, staleRetry is the least: the failure recheck timer of
	// RFC 8767 section 5.
	minRetry   = 5 * time.Second
	maxRetry   = time.Minute
	staleRetry = 30 * time.Second

	// staleTTL is the TTL of stale addresses in seconds, and maxStale how long they
	// are used (RFC 8767 sections 4 and 5).
	staleTTL = 30
	maxStale = 24 * time.Hour
)

// ownerShare is the part of a resolver that belongs to one owner: its remembered results and its
// look-ups. Queries start look-ups and look-ups add results, all under mu, which nobody holds while
// a look-up runs. MaxRemembered bounds the results and lookupSlots the look-ups. Where there are
// too many results, any of them are forgotten, without an order of use.
//
// Owners share nothing here, so that none can take anything from another: not by naming many hosts,
// and not by naming hosts behind a server that does not answer.
type ownerShare struct {
	stale time.Duration // how long addresses are used after their TTL; read-only

	// Guarded by mu.
	mu      sync.Mutex
	closed  bool
	entries map[hostQuestion]*rememberedResult
	size    int // of entries, as maxRemembered counts
	lookups map[lookupKey]*runningLookup
	slots   lookupSlots
}

// hostQuestion is what is looked up, and by which upstream.
type hostQuestion struct {
	upstream string
	host     string
	qtype    uint16
}

// lookupKey is equal for look-ups that are one. The look-up of a host may come to need the same
// host: at its own depth it would wait for itself, so the depth is a part of the key.
type lookupKey struct {
	hostQuestion

	depth int
}

// lookupResult is the result of a look-up. It is immutable.
type lookupResult struct {
	addresses []netip.Addr
	ttl       uint32        // seconds, of the addresses
	at        time.Time     // when the result was found
	life      time.Duration // how long the result may be used from then on
	failed    bool          // something is missing; a negative answer is no failure
	alias     bool          // the host has a CNAME
}

// rememberedResult is the result that is remembered for a question. The lock of its share guards
// it.
type rememberedResult struct {
	lookupResult // the last usable result

	failures  int       // look-ups that have failed since
	retry     time.Time // when the next look-up may begin
	inherited bool      // another resolver has found the result, so that the next look-up is due
}

func newShare(retention time.Duration) *ownerShare {
	s := &ownerShare{
		stale: maxStale, entries: make(map[hostQuestion]*rememberedResult), lookups: make(map[lookupKey]*runningLookup),
		slots: lookupSlots{domains: make(map[string]int)},
	}
	if retention > 0 {
		s.stale = min(s.stale, retention)
	}
	return s
}

// close prevents further look-ups.
func (s *ownerShare) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// recallAnswer returns the answer that is remembered for a question, and reports whether a look-up
// is due. The caller holds the lock.
func (s *ownerShare) recallAnswer(q hostQuestion, now time.Time) (a Answer, due bool) {
	e := s.entries[q]
	if e == nil {
		return Answer{Failed: true}, true
	}
	due = !now.Before(e.retry)
	switch age := now.Sub(e.at); {
	case age < e.life:
		return e.answerAt(now), due && (e.inherited || age >= e.life-e.prefetchTime())
	case len(e.addresses) > 0:
		// Nobody keeps them longer than they are used here.
		if left := (e.life + s.stale - age) / time.Second; left > 0 {
			return Answer{Addresses: e.addresses, TTL: uint32(min(left, staleTTL)), Stale: true}, due
		}
	}
	return Answer{Failed: true}, due
}

// finishLookup removes a look-up that has ended, and remembers its result.
func (s *ownerShare) finishLookup(k lookupKey, r lookupResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.lookups, k)
	s.slots.releaseSlot(k.host, r.isUsable(), r.at)
	if k.depth > 0 {
		return // the result may lack addresses that MaxDepth cut off
	}
	e := rememberedResult{lookupResult: r}
	if known := s.entries[k.hostQuestion]; !r.isUsable() {
		if e = (rememberedResult{}); known != nil {
			e = *known
		}
		e.failures++
		e.retry = r.at.Add(e.retryDelay())
	}
	s.rememberEntry(k.hostQuestion, &e)
}

// inheritResults remembers the results with addresses of another share where they are newer.
func (s *ownerShare) inheritResults(other *ownerShare) {
	other.mu.Lock()
	found := make(map[hostQuestion]lookupResult, len(other.entries))
	for q, e := range other.entries {
		if len(e.addresses) > 0 {
			found[q] = e.lookupResult
		}
	}
	other.mu.Unlock() // at no time are both locked
	s.mu.Lock()
	defer s.mu.Unlock()
	for q, r := range found {
		if known := s.entries[q]; known == nil || r.at.After(known.at) {
			s.rememberEntry(q, &rememberedResult{lookupResult: r, inherited: true})
		}
	}
}

// rememberEntry replaces what is remembered for the question. The caller holds the lock.
func (s *ownerShare) rememberEntry(q hostQuestion, e *rememberedResult) {
	if known := s.entries[q]; known != nil {
		s.size -= 1 + len(known.addresses)
	}
	s.entries[q] = e
	s.size += 1 + len(e.addresses)
	for q, other := range s.entries { // in random order
		if s.size <= maxRemembered {
			break
		}
		if other != e {
			s.size -= 1 + len(other.addresses)
			delete(s.entries, q)
		}
	}
}

// retryDelay returns the time from a failure to the next look-up.
func (e *rememberedResult) retryDelay() time.Duration {
	d := minRetry
	for i := 1; i < e.failures && d < maxRetry; i++ {
		d *= 2
	}
	if len(e.addresses) > 0 {
		d = max(d, staleRetry)
	}
	return min(d, maxRetry)
}

// isUsable reports whether the result answers the question, if only in part.
func (r *lookupResult) isUsable() bool { return !r.failed || len(r.addresses) > 0 }

// prefetchTime returns how long before the end of its life a result is looked up
// again, so that clients never wait for a host that is asked for all the time.
func (r *lookupResult) prefetchTime() time.Duration { return max(r.life/10, min(r.life/2, Patience)) }

// answerAt returns the answer from the result at a time, with the rest of the TTL.
func (r *lookupResult) answerAt(now time.Time) Answer {
	gone := uint32(max(now.Sub(r.at)/time.Second, 0)) //nolint:gosec // at most life, which is ttl seconds
	return Answer{Addresses: r.addresses, TTL: r.ttl - min(gone, r.ttl), Failed: r.failed, Alias: r.alias, fresh: true}
}
