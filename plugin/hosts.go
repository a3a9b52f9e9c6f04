package federationplugin

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/hostname"
	"github.com/hamlet-federation/coredns-federation/federation/zone"
	"github.com/hamlet-federation/coredns-federation/federation/zone/reply"
)

// partialTTL bounds the TTL of an answer that lacks the addresses of a host, in
// seconds.
const partialTTL = 5

// answerIndirect answers an address query whose addresses are partly those of
// hosts elsewhere. The name has SRV and TXT records, so it cannot be a CNAME
// (RFC 1034 section 3.6.2): the addresses at the end of the chain are its own.
func (f *Federation) answerIndirect(ctx context.Context, m *reply.Message, r *dns.Msg, result *zone.Result) {
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
	owner := result.Owner()
	others := f.resolve(ctx, owner, result.Type, hosts)
	if failed = failed || others.Failed; failed {
		others.TTL = min(others.TTL, partialTTL)
	}
	allowed := f.publishable(owner, others.Addresses)
	m.SetResolved(result, allowed, others.TTL)
	if others.Stale && !result.Stale() { // annotate says it of the result
		addError(&m.Msg, r, dns.ExtendedErrorCodeStaleAnswer, "endpoint host cannot be resolved")
	}
	if len(allowed) < len(others.Addresses) {
		addError(&m.Msg, r, dns.ExtendedErrorCodeBlocked, "endpoint host has an address that is not allowed")
	}
	switch {
	case len(m.Answer) > 0:
	case failed:
		fail(&m.Msg, r, dns.ExtendedErrorCodeNoReachableAuthority, "endpoint host cannot be resolved")
	default:
		m.SetAuthority(result)
	}
}

// resolve looks hosts that an owner has named up in the server of the query.
func (f *Federation) resolve(ctx context.Context, owner string, qtype uint16, hosts []string) hostname.Answer {
	up, _ := ctx.Value(lookupsKey{}).(hostname.Upstream)
	if server, ok := ctx.Value(dnsserver.Key{}).(*dnsserver.Server); ok {
		up = itself{server}
	}
	depth, _ := ctx.Value(dnsserver.LoopKey{}).(int)
	return f.hosts.Resolve(ctx, up, hostname.Query{Owner: owner, Type: qtype, Hosts: hosts, Depth: depth})
}

// publishable returns those of a host's addresses that the owner of the name may
// publish: an address that is refused in an endpoint is refused behind a host as
// well. It reuses addresses.
func (f *Federation) publishable(owner string, addresses []netip.Addr) []netip.Addr {
	admits := f.admits[owner]
	allowed := addresses[:0]
	for _, a := range addresses {
		if admits(a) {
			allowed = append(allowed, a)
		}
	}
	return allowed
}

// itself is the server as an upstream of its own: it implements
// hostname.Upstream.
//
// What is found is given to every client, so it must not depend on the one that
// happened to ask first. A look-up is therefore a query of the server's own, from
// its own address. Plugins such as acl and view would answer each client
// differently.
type itself struct{ server *dnsserver.Server }

// Address returns the address that the server listens on. Of two servers with the
// same server block, each may find another answer.
func (s itself) Address() string { return s.server.Address() }

// Ask sends the query through the plugins of the server.
func (s itself) Ask(ctx context.Context, host string, qtype uint16, depth int) *dns.Msg {
	ctx = context.WithValue(ctx, dnsserver.Key{}, s.server)
	ctx = context.WithValue(ctx, dnsserver.LoopKey{}, depth)
	query := new(dns.Msg)
	query.SetQuestion(host, qtype)
	w := &ownWriter{address: ownAddress(s.server.Address())}
	s.server.ServeDNS(ctx, w, query)
	return w.reply // nil where acl drops the query
}

// ownAddress returns the address of a server that listens on an address of the
// form of dnsserver.Server.Addr: the one that it is bound to, or loopback when it
// is bound to none.
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

// ownWriter is the server as its own client. It seems to ask over TCP, so no
// plugin truncates the reply.
type ownWriter struct {
	address *net.TCPAddr
	reply   *dns.Msg
}

// LocalAddr implements dns.ResponseWriter.
func (w *ownWriter) LocalAddr() net.Addr { return w.address }

// RemoteAddr implements dns.ResponseWriter.
func (w *ownWriter) RemoteAddr() net.Addr { return w.address }

// WriteMsg implements dns.ResponseWriter.
func (w *ownWriter) WriteMsg(m *dns.Msg) error {
	w.reply = m
	return nil
}

// Write implements dns.ResponseWriter.
func (w *ownWriter) Write(packed []byte) (int, error) {
	m := new(dns.Msg)
	if err := m.Unpack(packed); err != nil {
		return 0, err
	}
	return len(packed), w.WriteMsg(m)
}

// Close implements dns.ResponseWriter. There is no connection.
func (*ownWriter) Close() error { return nil }

// TsigStatus implements dns.ResponseWriter. There is no signature.
func (*ownWriter) TsigStatus() error { return nil }

// TsigTimersOnly implements dns.ResponseWriter.
func (*ownWriter) TsigTimersOnly(bool) {}

// Hijack implements dns.ResponseWriter.
func (*ownWriter) Hijack() {}
