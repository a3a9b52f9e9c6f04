package federationplugin

import (
	"context"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/pkg/cache"
	"github.com/coredns/coredns/plugin/pkg/upstream"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/zone"
)

// The bounds of looking up the hosts of endpoints. Owners name the hosts, and
// clients choose which are asked for, so that everything here has a bound.
const (
	hostTimeout    = 2 * time.Second // how long a query waits for a host
	hostFailureTTL = 5 * time.Second // how long a failure is remembered (RFC 9520 section 3.2: 1 s to 5 min)
	hostCacheSize  = 4096            // hosts and types
	maxHosts       = 64              // that one query waits for
	maxFlights     = 1024            // look-ups at a time
	maxLoop        = 8               // queries to ourselves, one within the other
	maxChain       = 8               // CNAMEs behind a host
	partialTTL     = 5               // seconds, of an answer that lacks a host
)

// answerIndirect answers an address query whose addresses are partly those of
// hosts elsewhere. The name has SRV and TXT records, so it cannot be a CNAME
// (RFC 1034 section 3.6.2): the addresses at the end of the chain are its own.
func (f *Federation) answerIndirect(ctx context.Context, m *dns.Msg, state *request.Request, result *zone.Result) {
	var hosts []string
	failed := false
	for _, h := range result.Hosts() {
		switch {
		case h.Unsynced:
			failed = true // it may exist
		case !h.InZone || f.fallsThrough(h.Name):
			hosts = append(hosts, h.Name)
		}
	}
	others, ttl, complete := f.hosts.resolve(ctx, state, hosts)
	if failed = failed || !complete; failed {
		ttl = min(ttl, partialTTL)
	}
	allowed := f.publishable(result, others)
	m.Answer = result.Resolved(m.Question[0].Name, allowed, ttl)
	if len(allowed) < len(others) {
		addError(m, state.Req, dns.ExtendedErrorCodeBlocked, "endpoint host has an address that is not allowed")
	}
	switch {
	case len(m.Answer) > 0:
	case failed:
		fail(m, state.Req, dns.ExtendedErrorCodeNoReachableAuthority, "endpoint host cannot be resolved")
	default:
		m.Ns = result.Authority()
	}
}

// publishable returns those of a host's addresses that the owner of the name
// may publish: one that is refused for an endpoint does not get in behind a
// host, either.
func (f *Federation) publishable(result *zone.Result, addresses []netip.Addr) []netip.Addr {
	owner, _, _ := result.Source()
	policy := f.policies[owner]
	kept := addresses[:0]
	for _, a := range addresses {
		if policy.Admits(a) {
			kept = append(kept, a)
		}
	}
	return kept
}

// resolver looks hosts up through the server itself, each one once at a time.
type resolver struct {
	upstream *upstream.Upstream
	cache    *cache.Cache[found]
	running  sync.WaitGroup // flights

	// Guarded by mu.
	mu      sync.Mutex
	flights map[question]*flight
	closed  bool
}

// question is what is looked up. Within the look-up of a host, the same host
// may be asked for again: a level further in it is another question, or it
// would wait for itself.
type question struct {
	host  string
	qtype uint16
	loop  int
}

// found is what is known of a host and a type. It is immutable.
type found struct {
	host      string
	qtype     uint16
	addresses []netip.Addr
	ttl       uint32        // seconds, of the addresses
	at        time.Time     // when it was found
	life      time.Duration // how long it may be used from then on
	failed    bool          // not all could be found; a negative answer is no failure
}

// flight is a look-up under way.
type flight struct {
	found   found
	done    chan struct{}   // closed once found is there
	overdue <-chan struct{} // closed when nobody waits any longer
}

func newResolver() *resolver {
	return &resolver{
		upstream: upstream.New(), cache: cache.New[found](hostCacheSize),
		flights: make(map[question]*flight),
	}
}

// close ends the resolver, which looks nothing up from then on. It waits for
// what is under way.
func (r *resolver) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.running.Wait()
}

// resolve returns the addresses of hosts, of the type that the query asks for,
// and for how many seconds they hold. It is complete when no look-up failed.
// The result is the caller's.
func (r *resolver) resolve(ctx context.Context, state *request.Request, hosts []string) (all []netip.Addr, ttl uint32, complete bool) {
	loop, _ := ctx.Value(dnsserver.LoopKey{}).(int)
	ttl, complete = math.MaxUint32, true
	take := func(f found) {
		all = append(all, f.addresses...)
		if len(f.addresses) > 0 {
			ttl = min(ttl, f.remaining(time.Now()))
		}
		complete = complete && !f.failed
	}
	var waiting []*flight
	for _, host := range hosts {
		q := question{host, state.QType(), loop}
		if f, ok := r.cached(q); ok {
			take(f)
		} else if f := r.start(ctx, state.W, q, len(waiting)); f != nil {
			waiting = append(waiting, f)
		} else {
			complete = false
		}
	}
	for _, f := range waiting {
		take(f.wait(ctx))
	}
	return all, ttl, complete
}

func (q question) hash() uint64 { return cache.Hash([]byte(q.host)) + uint64(q.qtype) }

func (r *resolver) cached(q question) (found, bool) {
	f, ok := r.cache.Get(q.hash())
	return f, ok && f.host == q.host && f.qtype == q.qtype && time.Since(f.at) < f.life
}

// start returns the look-up of a question, which may be under way already, or
// nil when there are too many: of this query, of all, or one within the other.
func (r *resolver) start(ctx context.Context, w dns.ResponseWriter, q question, waiting int) *flight {
	if waiting == maxHosts || q.loop >= maxLoop {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.flights[q]; f != nil {
		return f
	}
	if r.closed || len(r.flights) == maxFlights {
		return nil
	}
	// Others may wait for it as well, so it does not end with the query that
	// began it, and has its own metadata: that of a query is one goroutine's.
	ctx = metadata.ContextWithMetadata(context.WithoutCancel(ctx))
	ctx, cancel := context.WithTimeout(ctx, hostTimeout)
	f := &flight{done: make(chan struct{}), overdue: ctx.Done()}
	r.flights[q] = f
	r.running.Go(func() {
		defer cancel()
		f.found = r.find(ctx, w, q)
		r.mu.Lock()
		delete(r.flights, q)
		r.mu.Unlock()
		close(f.done)
	})
	return f
}

// wait returns what was found, or a failure when that takes too long.
func (f *flight) wait(ctx context.Context) found {
	select {
	case <-f.done:
	case <-f.overdue:
	case <-ctx.Done():
	}
	select {
	case <-f.done:
		return f.found
	default:
		return found{failed: true}
	}
}

// find asks the server itself.
func (r *resolver) find(ctx context.Context, w dns.ResponseWriter, q question) found {
	ctx = context.WithValue(ctx, dnsserver.LoopKey{}, q.loop+1)
	query := new(dns.Msg)
	query.SetQuestion(q.host, q.qtype) // without the client's DO and options: they are not for us
	reply, err := r.upstream.Lookup(ctx, request.Request{W: upstreamWriter{w}, Req: query}, q.host, q.qtype)
	f := found{host: q.host, qtype: q.qtype, at: time.Now(), life: hostFailureTTL, failed: true}
	if err == nil && reply != nil { // no reply at all is how acl drops
		f.read(reply)
	}
	// Further in, the bound of loops may have cut something off.
	if q.loop == 0 {
		r.cache.Add(q.hash(), f)
	}
	return f
}

// read takes the addresses at the end of the chain of CNAMEs from the host. A
// chain without an end is a failure.
func (f *found) read(reply *dns.Msg) {
	if reply.Rcode != dns.RcodeSuccess && reply.Rcode != dns.RcodeNameError {
		return
	}
	f.ttl = maxTTL
	name := f.host
	for range maxChain + 1 {
		target := ""
		for _, rr := range reply.Answer {
			if !sameName(rr.Header().Name, name) {
				continue
			}
			switch rr := rr.(type) {
			case *dns.CNAME:
				target, f.ttl = rr.Target, min(f.ttl, rr.Hdr.Ttl)
			case *dns.A:
				f.add(rr.A, &rr.Hdr)
			case *dns.AAAA:
				f.add(rr.AAAA, &rr.Hdr)
			}
		}
		if target == "" || len(f.addresses) > 0 {
			f.failed = reply.Truncated
			break
		}
		name = target
	}
	if len(f.addresses) > 0 {
		f.life = time.Duration(f.ttl) * time.Second
	}
}

func (f *found) add(ip net.IP, h *dns.RR_Header) {
	if a, ok := netip.AddrFromSlice(ip); ok && h.Rrtype == f.qtype {
		f.addresses = append(f.addresses, a.Unmap())
		f.ttl = min(f.ttl, h.Ttl)
	}
}

// remaining is the TTL that is left, in seconds.
func (f *found) remaining(now time.Time) uint32 {
	gone := uint32(max(now.Sub(f.at)/time.Second, 0)) //nolint:gosec // at most life, which is ttl seconds
	return f.ttl - min(gone, f.ttl)
}

func sameName(a, b string) bool { return dns.CanonicalName(a) == dns.CanonicalName(b) }

// upstreamWriter lets the server see a query over TCP, so that no plugin
// truncates the answer for a client that is not there.
type upstreamWriter struct{ dns.ResponseWriter }

// RemoteAddr implements dns.ResponseWriter.
func (w upstreamWriter) RemoteAddr() net.Addr {
	a, err := netip.ParseAddrPort(w.ResponseWriter.RemoteAddr().String())
	if err != nil {
		return w.ResponseWriter.RemoteAddr()
	}
	return net.TCPAddrFromAddrPort(a)
}
