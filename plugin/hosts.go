package federationplugin

import (
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// The bounds of an owner's share.
const (
	// maxKnown is how many hosts are remembered, each in a type, and addresses of
	// them: an address costs a tenth of a host, and a reply can have thousands.
	maxKnown = 16 * 1024

	// maxPlaces is how many look-ups an owner has at a time, and maxDomainPlaces
	// how many of them are in one domain. The latter is enough for all hosts that
	// one query waits for, the former for a few domains that are dead.
	maxPlaces       = 256
	maxDomainPlaces = maxHosts

	// placeHeld is how long a look-up that has failed keeps its place. It bounds
	// how often the server can be made to try what does not answer, and with it
	// the lines of the errors plugin, which has one for each look-up that fails.
	placeHeld = time.Minute
)

// How long what was found is used.
const (
	negativeLife = 5 * time.Second

	// A failure is remembered for minRetry, and for twice as long with each that
	// follows, up to maxRetry (RFC 9520 section 3.2: 1 s to 5 min). With stale
	// addresses at hand there is less of a hurry: staleRetry is the failure recheck
	// timer of RFC 8767 section 5.
	minRetry   = 5 * time.Second
	maxRetry   = time.Minute
	staleRetry = 30 * time.Second

	// staleTTL is the TTL of stale addresses in seconds, and maxStale how long they
	// are used (RFC 8767 sections 4 and 5).
	staleTTL = 30
	maxStale = 24 * time.Hour
)

// share is what one owner has of the look-ups of hosts: the memory, and the
// look-ups at a time. Nothing of it is shared with another owner, so that none
// can take it from another: not by naming many hosts, and not by naming hosts
// behind a server that does not answer.
type share struct {
	stale time.Duration // how long addresses are used after their TTL; read-only

	mu sync.Mutex // guards the fields below

	closed  bool
	known   map[question]*knowledge
	size    int // of known, as maxKnown counts
	flights map[leg]*flight
	places  places
}

// question is what is looked up, and by which of the servers that have the
// server block: others may find another answer.
type question struct {
	server string
	host   string
	qtype  uint16
}

// leg is a question within the look-ups of others. Within the look-up of a host,
// the same host may be asked for again: a level further in it is another leg, or
// it would wait for itself.
type leg struct {
	question

	loop int
}

// found is the result of a look-up. It is immutable.
type found struct {
	addresses []netip.Addr
	ttl       uint32        // seconds, of the addresses
	at        time.Time     // when it was found
	life      time.Duration // how long it may be used from then on
	failed    bool          // not all could be found; a negative answer is no failure
}

// knowledge is what is known of a question. It is guarded by the lock of its
// share.
type knowledge struct {
	found // the last one that was usable

	failures int       // look-ups that have failed since
	retry    time.Time // when there may be another one
}

// answer is what a query makes of a host.
type answer struct {
	addresses []netip.Addr
	ttl       uint32 // seconds
	fresh     bool   // nobody has to wait for another
	stale     bool   // the TTL is over, and there is nothing newer
	failed    bool   // something is missing
}

// admit gives an owner its share. One that stands in several blocks has one, and
// the shortest retention counts: addresses of its hosts do not outlive its
// services.
func (r *resolver) admit(owner string, retention time.Duration) {
	s := r.shares[owner]
	if s == nil {
		s = &share{
			stale: maxStale, known: make(map[question]*knowledge), flights: make(map[leg]*flight),
			places: places{domains: make(map[string]int)},
		}
		r.shares[owner] = s
	}
	if retention > 0 { // 0 is for ever
		s.stale = min(s.stale, retention)
	}
}

func (s *share) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// recall returns what is known of a question, and reports whether it is due to be
// looked up. The caller holds the lock.
func (s *share) recall(q question, now time.Time) (a answer, due bool) {
	k := s.known[q]
	if k == nil {
		return answer{failed: true}, true
	}
	due = !now.Before(k.retry)
	switch age := now.Sub(k.at); {
	case age < k.life:
		return k.answer(now), due && age >= k.life-k.early()
	case len(k.addresses) > 0 && age < k.life+s.stale:
		return answer{addresses: k.addresses, ttl: staleTTL, stale: true}, due
	}
	return answer{failed: true}, due
}

// land takes the result of a look-up, which is over.
func (s *share) land(l leg, f found) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.flights, l)
	s.places.give(l.host, f.usable(), f.at)
	if l.loop > 0 {
		return // further in, the bound of loops may have cut something off
	}
	k := s.known[l.question]
	if k == nil {
		k = new(knowledge)
		s.known[l.question] = k
		s.size++
	}
	s.size -= len(k.addresses)
	if f.usable() {
		*k = knowledge{found: f}
	} else {
		k.failures++
		k.retry = f.at.Add(k.backoff())
	}
	s.size += len(k.addresses)
	for other, o := range s.known { // in no order
		if s.size <= maxKnown {
			break
		}
		if o != k {
			s.size -= 1 + len(o.addresses)
			delete(s.known, other)
		}
	}
}

// backoff is the time until the next look-up.
func (k *knowledge) backoff() time.Duration {
	d := minRetry
	for i := 1; i < k.failures && d < maxRetry; i++ {
		d *= 2
	}
	if len(k.addresses) > 0 {
		d = max(d, staleRetry)
	}
	return min(d, maxRetry)
}

// usable reports whether it is an answer, if only to a part.
func (f *found) usable() bool { return !f.failed || len(f.addresses) > 0 }

// early is how long before its end it is looked up again for those who ask for
// it then, so that nobody has to wait for a host that many ask for.
func (f *found) early() time.Duration { return max(f.life/10, min(f.life/2, hostTimeout)) }

func (f *found) answer(now time.Time) answer {
	gone := uint32(max(now.Sub(f.at)/time.Second, 0)) //nolint:gosec // at most life, which is ttl seconds
	return answer{addresses: f.addresses, ttl: f.ttl - min(gone, f.ttl), fresh: true, failed: f.failed}
}

// places are an owner's look-ups at a time, and those that have failed a short
// while ago.
type places struct {
	taken   int
	domains map[string]int // taken, by domain; none is 0
	held    []held         // of those that have failed, oldest first
}

type held struct {
	domain string
	until  time.Time
}

// take takes a place for a host, or reports that there is none.
func (p *places) take(host string, now time.Time) bool {
	for len(p.held) > 0 && !now.Before(p.held[0].until) {
		p.free(p.held[0].domain)
		p.held = p.held[1:]
	}
	d := domain(host)
	if p.taken == maxPlaces || p.domains[d] == maxDomainPlaces {
		return false
	}
	p.taken++
	p.domains[d]++
	return true
}

// give gives a place back: at once, or after a while when the look-up has failed.
func (p *places) give(host string, succeeded bool, now time.Time) {
	if succeeded {
		p.free(domain(host))
		return
	}
	p.held = append(p.held, held{domain(host), now.Add(placeHeld)})
}

func (p *places) free(domain string) {
	p.taken--
	if p.domains[domain]--; p.domains[domain] == 0 {
		delete(p.domains, domain)
	}
}

// domain is what hosts have in common that are expected to fail together: their
// last two labels. Everything below a registration is mostly served by one set
// of name servers, and reached through one forwarder. With more labels a dead
// domain that has many below it would count as many, and take all places; where
// registrations are one label further down (co.uk), some share their places.
func domain(host string) string {
	labels := dns.SplitDomainName(host)
	return strings.Join(labels[max(len(labels)-2, 0):], ".")
}
