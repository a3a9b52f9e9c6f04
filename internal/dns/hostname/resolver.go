// Package hostname resolves the host names that owners give as endpoints, for
// names whose addresses are those of hosts elsewhere in DNS. A [Resolver] bounds look-ups and
// remembers their results; an [Upstream] does the look-ups.
//
// Owners choose the hosts, and clients choose when the hosts are asked for, so
// everything here is bounded: the look-ups of one query, of one owner and of one
// domain, the time that a query waits, and the memory. Each owner has a share of
// its own of all that, and cannot use up the share of another. The package remembers results itself
// because CoreDNS's plugin cache is not in every server, and has one memory for all names.
package hostname

import (
	"context"
	"math"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// The bounds of one query and of one look-up. The bounds of an owner are beside ownerShare.
const (
	// Patience is how long a query waits for its hosts at most.
	Patience = 2 * time.Second

	// MaxHosts is how many hosts of one owner a query waits for at most.
	MaxHosts = 64

	// MaxDepth is how deep look-ups may be nested: a host may lead back to a name
	// of an owner, and that name to the next host.
	MaxDepth = 8
)

// Upstream is the DNS in which hosts are looked up.
type Upstream interface {
	// Address returns a key for the upstream: its answers are not used for
	// queries that came through an upstream with another key.
	Address() string

	// Ask asks for the records of a type at a host, an absolute name, and returns the reply, or nil
	// when there is none. It may block, but ctx is over after Patience, and then nobody waits for
	// the reply any longer. Ask is called from several goroutines. Its ctx holds nothing of the
	// query that needs the host, because every client gets the reply. Depth counts this look-up and
	// those that it is part of; a query that Ask causes has depth as Query.Depth.
	Ask(ctx context.Context, host string, qtype uint16, depth int) *dns.Msg
}

// Host is a host that an owner has named.
type Host struct {
	Owner string // one of those given to New
	Name  string // absolute, in lower case
}

// Query is what a resolver needs to know of one DNS query.
type Query struct {
	Type  uint16 // A or AAAA, or SRV for the addresses of both types
	Hosts []Host
	Depth int // how many look-ups the query is part of; 0 for a client's
}

// Answer is what was found for a host.
type Answer struct {
	Addresses []netip.Addr // the caller's, unmapped, in no order; may repeat
	TTL       uint32       // seconds; math.MaxUint32 without addresses
	Stale     bool         // the TTL of some addresses is over, and there are no newer ones
	Failed    bool         // addresses are unknown; a host without any is no failure
	Alias     bool         // the host has a CNAME; not known where stale

	fresh bool // the remembered addresses are so new that a query need not wait for newer ones
}

// addressTypes returns the types of the addresses that the query needs.
func (q *Query) addressTypes() []uint16 {
	if q.Type == dns.TypeSRV {
		return []uint16{dns.TypeA, dns.TypeAAAA}
	}
	return []uint16{q.Type}
}

// addAnswer adds the answer for addresses of the other type.
func (a *Answer) addAnswer(b Answer) {
	a.Addresses = append(a.Addresses, b.Addresses...)
	if len(b.Addresses) > 0 {
		a.TTL = min(a.TTL, b.TTL)
	}
	a.Stale = a.Stale || b.Stale
	a.Failed = a.Failed || b.Failed
	a.Alias = a.Alias || b.Alias
}

// Resolver looks hosts up, each host once at a time, and remembers the results. What it keeps is in
// the shares of the owners, which have their own locks and bounds.
type Resolver struct {
	shares   map[string]*ownerShare // by owner; read-only after New
	panicked func(cause any)
	running  sync.WaitGroup // look-ups
}

// New returns a resolver for owners. The map has, for each owner, how long its records are kept
// after its loss, where 0 is without end: addresses of its hosts are kept no longer. A look-up that
// panics is a failure, and calls panicked with the cause, on its own goroutine.
func New(retentions map[string]time.Duration, panicked func(cause any)) *Resolver {
	r := &Resolver{shares: make(map[string]*ownerShare), panicked: panicked}
	for owner, retention := range retentions {
		r.shares[owner] = newShare(retention)
	}
	return r
}

// Close waits for the look-ups of all the resolvers that are under way. From then on there are no
// look-ups, and Resolve returns what is remembered.
func Close(resolvers ...*Resolver) {
	for _, r := range resolvers {
		for _, s := range r.shares {
			s.close()
		}
	}
	for _, r := range resolvers {
		r.running.Wait()
	}
}

// TakeOver remembers the addresses that another resolver has found, for the owners of both. Such
// addresses are answered as they would be there. But each host is looked up again as soon as
// somebody asks for it, because it may have other addresses here.
func (r *Resolver) TakeOver(before *Resolver) {
	for owner, s := range r.shares {
		if other := before.shares[owner]; other != nil && other != s {
			s.inheritResults(other)
		}
	}
}

// Resolve returns an answer for each host of the query. It waits for Patience at most, and no longer
// than ctx. For an unknown owner and a nil Upstream it has no addresses.
func (r *Resolver) Resolve(ctx context.Context, up Upstream, q Query) []Answer {
	answers, types := make([]Answer, len(q.Hosts)), q.addressTypes()
	var waits []lookupWait
	waiting := make(map[string]int) // how many of waits there are, by owner
	for i, h := range q.Hosts {
		s := r.shares[h.Owner]
		answers[i] = Answer{TTL: math.MaxUint32, Failed: s == nil || up == nil}
		if answers[i].Failed {
			continue
		}
		for _, qtype := range types {
			k := lookupKey{hostQuestion{up.Address(), h.Name, qtype}, q.Depth}
			known, l := r.beginLookup(s, up, k, waiting[h.Owner] < MaxHosts*len(types)) //nolint:contextcheck // a look-up does not end with the query that begins it
			if l == nil || known.fresh {
				answers[i].addAnswer(known)
				continue
			}
			waits = append(waits, lookupWait{l, known, &answers[i]})
			waiting[h.Owner]++
		}
	}
	for _, w := range waits {
		w.answer.addAnswer(w.awaitAnswer(ctx))
	}
	return answers
}

// beginLookup returns the answer that is remembered. It also returns the look-up that is due, if any,
// and if the query waits for fewer than it may.
func (r *Resolver) beginLookup(s *ownerShare, up Upstream, k lookupKey, fewer bool) (known Answer, l *runningLookup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	known, due := s.recallAnswer(k.hostQuestion, now)
	if due && fewer {
		l = r.startLookup(s, up, k, now)
	}
	return known, l
}

// runningLookup is a look-up under way.
type runningLookup struct {
	result  lookupResult    // read-only once done is closed
	done    chan struct{}   // closed when the result is there
	overdue <-chan struct{} // closed after Patience
}

// startLookup returns the look-up of a host, which may be under way already, or nil when there are
// too many: of the owner, of the domain, or one within the other. The caller holds the lock of the
// share.
func (r *Resolver) startLookup(s *ownerShare, up Upstream, k lookupKey, now time.Time) *runningLookup {
	if l := s.lookups[k]; l != nil {
		return l
	}
	if s.closed || k.depth >= MaxDepth || !s.slots.takeSlot(k.host, now) {
		return nil
	}
	// Other queries may come to wait for the look-up, so it does not end with the query that
	// needs it first, and knows nothing of that query.
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	l := &runningLookup{done: make(chan struct{}), overdue: ctx.Done()}
	s.lookups[k] = l
	r.running.Go(func() {
		defer cancel()
		l.result = r.askUpstream(ctx, up, k)
		s.finishLookup(k, l.result)
		close(l.done)
	})
	return l
}

// askUpstream returns the result of one look-up. It runs on a goroutine of its own, where CoreDNS
// would not recover a panic.
func (r *Resolver) askUpstream(ctx context.Context, up Upstream, k lookupKey) (found lookupResult) {
	defer func() {
		if cause := recover(); cause != nil {
			r.panicked(cause)
			found = readReply(nil, k.hostQuestion, time.Now())
		}
	}()
	return readReply(up.Ask(ctx, k.host, k.qtype, k.depth+1), k.hostQuestion, time.Now())
}

// lookupWait is a look-up that a query waits for, and the answer of the query when the look-up
// fails.
type lookupWait struct {
	*runningLookup

	otherwise Answer
	answer    *Answer // where the answer for the host goes
}

// awaitAnswer waits for the look-up, and returns its answer or the one to use otherwise.
func (w *lookupWait) awaitAnswer(ctx context.Context) Answer {
	select {
	case <-w.done:
	case <-w.overdue:
	case <-ctx.Done():
	}
	select {
	case <-w.done:
		if w.result.isUsable() {
			return w.result.answerAt(time.Now())
		}
	default:
	}
	return w.otherwise
}
