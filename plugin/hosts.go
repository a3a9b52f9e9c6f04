package federationplugin

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/dns/hostname"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/plugin/loopback"
)

// partialTTL bounds the TTL of an answer that lacks the addresses of a host, in
// seconds.
const partialTTL = 5

// answerIndirect answers an address query whose addresses are partly those of
// hosts elsewhere. The name has SRV and TXT records, so it cannot be a CNAME
// (RFC 1034 section 3.6.2): the addresses at the end of the chain are its own.
func (f *Federation) answerIndirect(ctx context.Context, m *reply.Message, c client, result *zone.Result) {
	owner := result.Owner()
	hosts, failed := f.elsewhere(result)
	others := f.resolve(ctx, owner, result.Type, hosts)
	if failed = failed || others.Failed; failed {
		others.TTL = min(others.TTL, partialTTL)
	}
	allowed := publishable(result, others.Addresses)
	m.SetResolved(result, allowed, others.TTL)
	if others.Stale && !result.Stale() { // annotate says it of the result
		c.addError(m, dns.ExtendedErrorCodeStaleAnswer, "endpoint host cannot be resolved")
	}
	if len(allowed) < len(others.Addresses) {
		c.addError(m, dns.ExtendedErrorCodeBlocked, denied)
	}
	conclude(m, c, result, failed)
}

// answerTargets answers an SRV query about endpoints that are hosts elsewhere, which are
// its targets.
func (f *Federation) answerTargets(ctx context.Context, m *reply.Message, c client, result *zone.Result, now time.Time) {
	blocked, failed := f.barTargets(ctx, result, c)
	if failed {
		result.TTL = min(result.TTL, partialTTL)
	}
	m.SetAnswer(result, c.room)
	c.addGlue(m, result, now)
	if blocked {
		c.addError(m, dns.ExtendedErrorCodeBlocked, denied)
	}
	conclude(m, c, result, failed)
}

// denied is the text of the extended error of an answer that lacks what is not allowed.
const denied = "endpoint host has an address that is not allowed"

// conclude completes an answer that depends on hosts elsewhere and may have no records.
func conclude(m *reply.Message, c client, result *zone.Result, failed bool) {
	switch {
	case len(m.Answer) > 0:
	case failed:
		c.fail(m, dns.ExtendedErrorCodeNoReachableAuthority, "endpoint host cannot be resolved")
	default:
		m.SetAuthority(result)
	}
}

// elsewhere returns the hosts of a result that are to be looked up, and reports whether
// nothing is known of others.
func (f *Federation) elsewhere(result *zone.Result) (hosts []string, failed bool) {
	for _, h := range result.Hosts() {
		switch {
		case f.mayExist(h):
			failed = true
		case !h.InZone || f.fallsThrough(h.Name):
			hosts = append(hosts, h.Name)
		}
	}
	return hosts, failed
}

// mayExist reports whether a host is one of our own names that is not known yet.
func (f *Federation) mayExist(h zone.Host) bool {
	return h.Unsynced && (!h.Unheard || !f.fallsThrough(h.Name))
}

// barTargets takes the hosts that must not be given away out of an SRV result. A client
// looks a target up by itself, and what it finds there would pass by the policy that
// decides on addresses. So a host is no target while one of its addresses, of either type,
// is not allowed, or while it cannot be looked up and nothing is known of it. In the second
// case failed is true, as it is where an address may be missing. What these look-ups have found
// is glue for a client that takes it, unless it is stale, may be only a part, or is the address of
// another name.
func (f *Federation) barTargets(ctx context.Context, result *zone.Result, c client) (blocked, failed bool) {
	owner := result.Owner()
	hosts, _ := f.elsewhere(result)
	found := make(map[string]hostname.Answer, len(hosts))
	up, depth := lookups(ctx)
	for i, a := range f.hosts.ResolveEach(ctx, up, hostname.Query{Owner: owner, Type: dns.TypeSRV, Hosts: hosts, Depth: depth}) {
		found[hosts[i]] = a
	}
	targets := result.Targets()
	for i := range targets {
		target := &targets[i]
		refused, unknown := false, false
		for _, h := range target.Hosts {
			a := found[h.Name]
			refused = refused || slices.ContainsFunc(a.Addresses, func(ip netip.Addr) bool { return !result.Allows(ip) })
			unknown = unknown || f.mayExist(h) || a.Failed && len(a.Addresses) == 0
			failed = failed || a.Failed
		}
		if refused || unknown {
			result.Bar(target.Name)
		} else if a := found[target.Name]; c.glue > 0 && !c.proves && target.IsHost() && !a.Failed && !a.Stale && !a.Alias {
			target.Addresses, target.TTL = a.Addresses, a.TTL
		}
		blocked, failed = blocked || refused, failed || unknown
	}
	return blocked, failed
}

// lookups returns where hosts are looked up for a query, and how deep it is nested.
func lookups(ctx context.Context) (up hostname.Upstream, depth int) {
	up, _ = ctx.Value(lookupsKey{}).(hostname.Upstream)
	if server, ok := ctx.Value(dnsserver.Key{}).(*dnsserver.Server); ok {
		up = loopback.Direct{Server: server}
	}
	depth, _ = ctx.Value(dnsserver.LoopKey{}).(int)
	return up, depth
}

// resolve looks hosts that an owner has named up in the server of the query.
func (f *Federation) resolve(ctx context.Context, owner string, qtype uint16, hosts []string) hostname.Answer {
	up, depth := lookups(ctx)
	return f.hosts.Resolve(ctx, up, hostname.Query{Owner: owner, Type: qtype, Hosts: hosts, Depth: depth})
}

// publishable returns those of a host's addresses that the owner of the name may
// publish: an address that is refused in an endpoint is refused behind a host as
// well. It reuses addresses.
func publishable(result *zone.Result, addresses []netip.Addr) []netip.Addr {
	allowed := addresses[:0]
	for _, a := range addresses {
		if result.Allows(a) {
			allowed = append(allowed, a)
		}
	}
	return allowed
}
