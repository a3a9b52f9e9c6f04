package federationplugin

import (
	"context"
	"net/netip"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/hostname"
	"github.com/hamlet-federation/coredns-federation/federation/zone"
	"github.com/hamlet-federation/coredns-federation/federation/zone/reply"
	"github.com/hamlet-federation/coredns-federation/plugin/loopback"
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
		up = loopback.Direct{Server: server}
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
