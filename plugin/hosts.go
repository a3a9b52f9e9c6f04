package federationplugin

import (
	"context"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/hostname"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/plugin/loopback"
)

// partialTTL bounds the TTL of an answer that lacks the addresses of a host, in seconds.
const partialTTL = 5

// answerIndirect answers an address query for which some addresses are those of hosts elsewhere.
// The name has SRV and TXT records, so it cannot be a CNAME (RFC 1034 section 3.6.2): the addresses
// at the end of the chain are its own.
func (f *Federation) answerIndirect(ctx context.Context, m *reply.Message, c queryClient, result *zone.Result, now time.Time) {
	found, failed, passed := f.lookUpRanks(ctx, result, now)
	allowed, ttl, stale, live := []netip.Addr(nil), uint32(math.MaxUint32), false, false
	var refused []netip.Addr
	for _, at := range found {
		ofHost, rest := splitPublishable(result, at.host.Owner, at.Addresses)
		allowed, refused = append(allowed, ofHost...), append(refused, rest...)
		ttl, stale, failed = min(ttl, at.TTL), stale || at.Stale, failed || at.Failed
		live = live || len(ofHost) > 0 && !at.Stale && !at.host.Stale
	}
	if failed || passed {
		ttl = min(ttl, partialTTL)
	}
	result.LookedUp(live)
	m.SetResolved(result, allowed, ttl)
	if stale && !result.IsLive() && !result.IsStale() { // addExtendedErrors says it of the result
		c.addError(m, dns.ExtendedErrorCodeStaleAnswer, "endpoint host cannot be resolved")
	}
	if slices.ContainsFunc(refused, func(ip netip.Addr) bool { return !slices.Contains(allowed, ip) }) {
		c.addError(m, dns.ExtendedErrorCodeBlocked, denied)
	}
	completeReply(m, c, result, failed)
}

// lookUpRanks looks up the hosts on which the answer to an address query depends, and returns what
// they lead to. For a name that owners share, it goes on to worse ranks where the hosts of better
// ones lead to no address of either type, because the ranks do not depend on the type. It waits
// half as long for each rank, so that all together take no longer than one. It also reports whether
// something is not known, and whether it passed by a rank because of that.
func (f *Federation) lookUpRanks(ctx context.Context, result *zone.Result, now time.Time) (all []hostAnswer, failed, passed bool) {
	for patience := hostname.Patience; ; {
		if !result.IsUndecided() {
			all, failed = f.lookUp(ctx, result, result.Type, patience)
			return all, failed || passed && len(all) == 0 && !result.HasFoundAddresses(), passed
		}
		patience /= 2
		leads := make(map[zone.Host]bool)
		leadless := func(h zone.Host) bool { return !leads[h] }
		for _, qtype := range []uint16{result.Type, dns.TypeA + dns.TypeAAAA - result.Type} {
			some, unknown := f.lookUp(ctx, result, qtype, patience)
			for _, at := range some {
				allowed, _ := splitPublishable(result, at.host.Owner, at.Addresses)
				leads[at.host] = leads[at.host] || len(allowed) > 0
				passed = passed || at.Failed
			}
			if qtype == result.Type {
				all, failed = some, unknown
			}
			if !slices.ContainsFunc(result.Hosts(), leadless) {
				break
			}
		}
		if !result.ForgetHosts(slices.DeleteFunc(slices.Clone(result.Hosts()), func(h zone.Host) bool { return leads[h] }), now) {
			return all, failed, false
		}
		passed = passed || failed
	}
}

// answerTargets answers an SRV query whose targets are hosts elsewhere.
func (f *Federation) answerTargets(ctx context.Context, m *reply.Message, c queryClient, result *zone.Result) {
	blocked, failed := f.barTargets(ctx, result, c)
	if failed {
		result.TTL = min(result.TTL, partialTTL)
	}
	m.SetAnswer(result, c.room)
	if blocked {
		c.addError(m, dns.ExtendedErrorCodeBlocked, denied)
	}
	completeReply(m, c, result, failed)
}

// denied is the text of the extended error of an answer that lacks an address which is not allowed.
const denied = "endpoint host has an address that is not allowed"

// completeReply completes an answer that depends on hosts elsewhere and may have no records.
func completeReply(m *reply.Message, c queryClient, result *zone.Result, failed bool) {
	switch {
	case len(m.Answer) > 0:
	case failed:
		c.setServerFailure(m, dns.ExtendedErrorCodeNoReachableAuthority, "endpoint host cannot be resolved")
	default:
		m.SetAuthority(result)
	}
}

// hostAnswer is the result of looking up a host.
type hostAnswer struct {
	hostname.Answer

	host zone.Host
}

// lookUp looks up those hosts of a result that are elsewhere, in the server of the query and each
// for its owner. It reports whether nothing is known of some of the others.
func (f *Federation) lookUp(ctx context.Context, result *zone.Result, qtype uint16, patience time.Duration) (all []hostAnswer, failed bool) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	up, depth := upstreamOf(ctx)
	query := hostname.Query{Type: qtype, Depth: depth}
	for _, h := range result.Hosts() {
		switch {
		case f.mayExist(h):
			failed = true
		case !h.InZone || f.fallsThrough(h.Name):
			all = append(all, hostAnswer{host: h})
			query.Hosts = append(query.Hosts, hostname.Host{Owner: f.config.Owners[h.Owner].Name, Name: h.Name})
		}
	}
	for i, a := range f.hosts.Resolve(ctx, up, query) {
		all[i].Answer = a
	}
	return all, failed
}

// mayExist reports whether a host is one of our own names that is not known yet.
func (f *Federation) mayExist(h zone.Host) bool {
	return h.Unsynced && (!h.Unheard || !f.fallsThrough(h.Name))
}

// barTargets bars hosts from an SRV result that clients must not get. A client looks a target up by
// itself, so that the policy of addresses would not apply. So no owner can make a host a target
// while one of its addresses, of either type, is not allowed, or while nothing is known of it. In
// the second case failed is true, and also where an address may be missing. The results of these
// look-ups are glue for a client that accepts glue, unless they are stale, may be incomplete, or
// belong to another name.
func (f *Federation) barTargets(ctx context.Context, result *zone.Result, c queryClient) (blocked, failed bool) {
	known := make(map[zone.Host]hostname.Answer)
	all, _ := f.lookUp(ctx, result, result.Type, hostname.Patience)
	for _, at := range all {
		known[at.host] = at.Answer
	}
	targets := result.Targets()
	kept, refused := make(map[string]bool), make(map[string]bool)
	for i := range targets {
		target := &targets[i]
		barred, unknown := false, false
		for _, h := range target.Hosts {
			a := known[h]
			_, rest := splitPublishable(result, target.Owner, a.Addresses)
			barred = barred || len(rest) > 0
			unknown = unknown || f.mayExist(h) || a.Failed && len(a.Addresses) == 0
			failed = failed || a.Failed
		}
		failed = failed || unknown
		if barred || unknown {
			result.BarTarget(target)
			refused[target.Name] = refused[target.Name] || barred
			continue
		}
		kept[target.Name] = true
		if a := known[target.Hosts[0]]; c.glue > 0 && !c.proves && target.IsHost() && !a.Failed && !a.Stale && !a.Alias {
			target.Addresses, target.TTL = a.Addresses, a.TTL
		}
	}
	for name, barred := range refused {
		blocked = blocked || barred && !kept[name]
	}
	return blocked, failed
}

// upstreamOf returns the upstream that looks up hosts for a query, and how deep the query is
// nested.
func upstreamOf(ctx context.Context) (up hostname.Upstream, depth int) {
	up, _ = ctx.Value(lookupsKey{}).(hostname.Upstream)
	if server, ok := ctx.Value(dnsserver.Key{}).(*dnsserver.Server); ok {
		up = loopback.DirectUpstream{Server: server}
	}
	depth, _ = ctx.Value(dnsserver.LoopKey{}).(int)
	return up, depth
}

// splitPublishable returns those of a host's addresses that its owner may publish, and the others.
// An address that is refused in an endpoint is refused behind a host as well.
func splitPublishable(result *zone.Result, owner int, addresses []netip.Addr) (allowed, refused []netip.Addr) {
	for _, a := range addresses {
		if result.AllowsAddress(owner, a) {
			allowed = append(allowed, a)
		} else {
			refused = append(refused, a)
		}
	}
	return allowed, refused
}
