package federationplugin

import (
	"context"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/zone"
)

// The bounds of one query, and of one look-up. Owners name the hosts, and
// clients choose which are asked for, so that everything here has a bound. Those
// of an owner are beside its share.
const (
	hostTimeout = 2 * time.Second // how long a query waits for its hosts
	maxHosts    = 64              // that one query waits for
	maxLoop     = 8               // queries to ourselves, one within the other
	maxChain    = 8               // CNAMEs behind a host
	partialTTL  = 5               // seconds, of an answer that lacks a host
)

// answerIndirect answers an address query whose addresses are partly those of
// hosts elsewhere. The name has SRV and TXT records, so it cannot be a CNAME
// (RFC 1034 section 3.6.2): the addresses at the end of the chain are its own.
func (f *Federation) answerIndirect(ctx context.Context, m *dns.Msg, state *request.Request, result *zone.Result) {
	var hosts []string
	failed := false
	for _, h := range result.Hosts() {
		switch {
		case h.Unsynced && (!h.Unheard || !f.fallsThrough(h.Name)):
			failed = true // it may exist
		case !h.InZone || f.fallsThrough(h.Name):
			hosts = append(hosts, h.Name)
		}
	}
	owner, _, _ := result.Source()
	others := f.hosts.resolve(ctx, owner, state.QType(), hosts)
	if failed = failed || others.failed; failed {
		others.ttl = min(others.ttl, partialTTL)
	}
	allowed := f.publishable(owner, others.addresses)
	m.Answer = result.Resolved(m.Question[0].Name, allowed, others.ttl)
	if others.stale && !result.Stale() { // which says so itself
		addError(m, state.Req, dns.ExtendedErrorCodeStaleAnswer, "endpoint host cannot be resolved")
	}
	if len(allowed) < len(others.addresses) {
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
func (f *Federation) publishable(owner string, addresses []netip.Addr) []netip.Addr {
	policy := f.policies[owner]
	kept := addresses[:0]
	for _, a := range addresses {
		if policy.Admits(a) {
			kept = append(kept, a)
		}
	}
	return kept
}

// resolver looks the hosts of endpoints up through the server itself, each one
// once at a time.
//
// What is found is given to every client, so it must not depend on the one that
// happened to ask first: a look-up is a query of the server's own, from its own
// address, and nothing of the client's is in it. Plugins like acl and view would
// answer each client differently.
type resolver struct {
	shares  map[string]*share // by owner; read-only after setup
	running sync.WaitGroup    // flights
}

// resolved is what the hosts of one query have come to.
type resolved struct {
	addresses []netip.Addr // the caller's
	ttl       uint32       // for how many seconds they hold
	stale     bool         // the TTL of some is over, and there are no newer ones
	failed    bool         // some are missing
}

func (r *resolved) take(a answer) {
	r.addresses = append(r.addresses, a.addresses...)
	if len(a.addresses) > 0 {
		r.ttl = min(r.ttl, a.ttl)
	}
	r.stale = r.stale || a.stale
	r.failed = r.failed || a.failed
}

// flight is a look-up under way.
type flight struct {
	found   found
	done    chan struct{}   // closed once found is there
	overdue <-chan struct{} // closed when nobody waits any longer
}

// awaited is a flight that a query waits for, and what it says if nothing comes
// of it.
type awaited struct {
	*flight

	otherwise answer
}

func newResolver() *resolver { return &resolver{shares: make(map[string]*share)} }

// close ends the resolver, which looks nothing up from then on. It waits for
// what is under way.
func (r *resolver) close() {
	for _, s := range r.shares {
		s.close()
	}
	r.running.Wait()
}

// resolve returns the addresses of the type that the hosts have, which an owner
// has named.
func (r *resolver) resolve(ctx context.Context, owner string, qtype uint16, hosts []string) resolved {
	all := resolved{ttl: math.MaxUint32}
	s := r.shares[owner]
	server, ok := ctx.Value(dnsserver.Key{}).(*dnsserver.Server)
	if s == nil || !ok {
		all.failed = len(hosts) > 0
		return all
	}
	for _, w := range r.begin(ctx, s, server, qtype, hosts, &all) {
		all.take(w.wait(ctx))
	}
	return all
}

// begin takes what is known of the hosts, begins the look-ups that are due, and
// returns those that have to be waited for.
func (r *resolver) begin(ctx context.Context, s *share, server *dnsserver.Server, qtype uint16, hosts []string, all *resolved) (waiting []awaited) {
	loop, _ := ctx.Value(dnsserver.LoopKey{}).(int)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, host := range hosts {
		l := leg{question{server.Address(), host, qtype}, loop}
		known, due := s.recall(l.question, now)
		var f *flight
		if due && len(waiting) < maxHosts {
			f = r.start(ctx, s, server, l, now)
		}
		if f == nil || known.fresh {
			all.take(known)
		} else {
			waiting = append(waiting, awaited{f, known})
		}
	}
	return waiting
}

// start returns the look-up of a question, which may be under way already, or
// nil when there are too many: of the owner, of the domain, or one within the
// other. The caller holds the lock of the share.
func (r *resolver) start(ctx context.Context, s *share, server *dnsserver.Server, l leg, now time.Time) *flight {
	if f := s.flights[l]; f != nil {
		return f
	}
	if s.closed || l.loop >= maxLoop || !s.places.take(l.host, now) {
		return nil
	}
	// Others may wait for it as well, so it does not end with the query that
	// began it, and knows nothing of it.
	ctx = context.WithValue(alone{context.WithoutCancel(ctx)}, dnsserver.Key{}, server) //nolint:contextcheck // its own on purpose
	ctx = context.WithValue(ctx, dnsserver.LoopKey{}, l.loop+1)
	ctx, cancel := context.WithTimeout(ctx, hostTimeout)
	f := &flight{done: make(chan struct{}), overdue: ctx.Done()}
	s.flights[l] = f
	r.running.Go(func() {
		defer cancel()
		f.found = find(ctx, server, l.question)
		s.land(l, f.found)
		close(f.done)
	})
	return f
}

// alone is a context without the values of the one within: a client's metadata,
// view and connection.
type alone struct{ context.Context } //nolint:containedctx // it is one

// Value implements context.Context.
func (alone) Value(any) any { return nil }

// wait returns what was found, or what there was before when nothing was, or not
// in time.
func (w *awaited) wait(ctx context.Context) answer {
	select {
	case <-w.done:
	case <-w.overdue:
	case <-ctx.Done():
	}
	select {
	case <-w.done:
		if w.found.usable() {
			return w.found.answer(time.Now())
		}
	default:
	}
	return w.otherwise
}

// find asks the server itself.
func find(ctx context.Context, server *dnsserver.Server, q question) found {
	query := new(dns.Msg)
	query.SetQuestion(q.host, q.qtype)
	w := &selfWriter{address: ownAddress(server.Address())}
	server.ServeDNS(ctx, w, query)
	f := found{at: time.Now(), failed: true}
	if w.reply != nil { // none at all is how acl drops
		f.read(w.reply, q)
	}
	return f
}

// read takes the addresses at the end of the chain of CNAMEs from the host. A
// chain without an end is a failure.
func (f *found) read(reply *dns.Msg, q question) {
	if reply.Rcode != dns.RcodeSuccess && reply.Rcode != dns.RcodeNameError {
		return
	}
	f.ttl, f.life = maxTTL, negativeLife
	name := q.host
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
				f.add(rr.A, &rr.Hdr, q.qtype)
			case *dns.AAAA:
				f.add(rr.AAAA, &rr.Hdr, q.qtype)
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

func (f *found) add(ip net.IP, h *dns.RR_Header, qtype uint16) {
	if a, ok := netip.AddrFromSlice(ip); ok && h.Rrtype == qtype {
		f.addresses = append(f.addresses, a.Unmap())
		f.ttl = min(f.ttl, h.Ttl)
	}
}

func sameName(a, b string) bool { return dns.CanonicalName(a) == dns.CanonicalName(b) }

// selfWriter is the server as its own client. It asks over TCP, so that no plugin
// truncates the answer.
type selfWriter struct {
	address *net.TCPAddr
	reply   *dns.Msg
}

// ownAddress returns the address of a server that listens on an address of the
// form of dnsserver.Server.Addr: that which it is bound to, or loopback when it is
// bound to none.
func ownAddress(listen string) *net.TCPAddr {
	if _, rest, ok := strings.Cut(listen, "://"); ok {
		listen = rest
	}
	host, service, _ := net.SplitHostPort(listen)
	ip, err := netip.ParseAddr(host)
	if err != nil || ip.IsUnspecified() {
		ip = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	port, _ := strconv.ParseUint(service, 10, 16)
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, uint16(port)))
}

// LocalAddr implements dns.ResponseWriter.
func (w *selfWriter) LocalAddr() net.Addr { return w.address }

// RemoteAddr implements dns.ResponseWriter.
func (w *selfWriter) RemoteAddr() net.Addr { return w.address }

// WriteMsg implements dns.ResponseWriter.
func (w *selfWriter) WriteMsg(m *dns.Msg) error {
	w.reply = m
	return nil
}

// Write implements dns.ResponseWriter.
func (w *selfWriter) Write(packed []byte) (int, error) {
	m := new(dns.Msg)
	if err := m.Unpack(packed); err != nil {
		return 0, err
	}
	return len(packed), w.WriteMsg(m)
}

// Close implements dns.ResponseWriter. There is no connection.
func (*selfWriter) Close() error { return nil }

// TsigStatus implements dns.ResponseWriter. There is no signature.
func (*selfWriter) TsigStatus() error { return nil }

// TsigTimersOnly implements dns.ResponseWriter.
func (*selfWriter) TsigTimersOnly(bool) {}

// Hijack implements dns.ResponseWriter.
func (*selfWriter) Hijack() {}
