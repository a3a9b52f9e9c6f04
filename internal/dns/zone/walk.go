package zone

import (
	"iter"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/record"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
)

// OriginSynced reports whether a name, lower case and absolute, is an origin, and whether its names
// are known, so that it can be transferred.
func (z *Zone) OriginSynced(name string, now time.Time) (apex, synced bool) {
	o := z.findOrigin(name)
	if o == nil {
		return false, false
	}
	return true, z.originExtent(o, now) == complete
}

// SOA returns the start of authority of an origin, or nil when the name is not an origin. The
// record is the caller's.
func (z *Zone) SOA(name string) *dns.SOA {
	o := z.findOrigin(name)
	if o == nil {
		return nil
	}
	return o.newSOA(name)
}

// NS returns the name server record of an origin, or nil when the name is not an origin. The record
// is the caller's.
func (z *Zone) NS(name string) *dns.NS {
	o := z.findOrigin(name)
	if o == nil {
		return nil
	}
	return record.NS(name, o.ns, o.negativeTTL)
}

// findOrigin returns the origin that has the name, or nil.
func (z *Zone) findOrigin(name string) *zoneOrigin {
	if o := z.origins.ofQuery(name); o != nil && o.name == name {
		return o
	}
	return nil
}

// types are the types of the records that services have.
var types = []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT}

// Names returns every name of an origin that may have records or delegates another origin, each
// once and in no order. It returns none for a name that is not an origin.
//
// Origins within this one are zones of their own, which it delegates with glue. So a server that
// has only this zone refers to them, and does not deny their names.
func (z *Zone) Names(origin string, now time.Time) iter.Seq[string] {
	return func(yield func(string) bool) {
		o := z.findOrigin(origin)
		if o == nil || !yield(o.ns) {
			return
		}
		for i := range z.origins { // those directly below
			inner := &z.origins[i]
			if inner != o && z.origins.originOf(domain.Parent(inner.name)) == o && (!yield(inner.name) || !yield(inner.ns)) {
				return
			}
		}
		for at := range z.tree.All() {
			if z.origins.originOf(at.Name) != o {
				continue
			}
			p := z.tree.Holder(o.name, at.Name, &at.Value, now)
			if p != nil && (!yield(at.Name) || !z.yieldBelow(o, p, at.Value.HasNodesBelow(), now, yield)) {
				return
			}
		}
	}
}

// yieldBelow passes to yield the names that a service has below its fqdn. With above, other
// services are below this one, and their names are left out. It reports whether yield wants more.
func (z *Zone) yieldBelow(o *zoneOrigin, p *precedence.Offer, above bool, now time.Time, yield func(string) bool) bool {
	for labels := range p.Subtree.RecordLabels() {
		name := domain.JoinLabels(labels, p.FQDN())
		if len(name) > domain.MaxName || z.origins.originOf(name) != o || above && z.matchName(o, name, now).offer != p {
			continue
		}
		if !yield(name) {
			return false
		}
	}
	return true
}

// Records returns the RRsets of a name of the origin, type by type, without the SOA and the NS of
// the origin itself. For a name of an origin below, it returns what delegates that: the name server
// or its addresses.
//
// Addresses of hosts elsewhere are left out, also those in our other zones, because the serial of
// this zone does not change with them. For the same reason such hosts are targets of SRV records
// here, whatever they lead to. A result is valid until the next one.
func (z *Zone) Records(origin, name string, now time.Time) iter.Seq[*Result] {
	return func(yield func(*Result) bool) {
		o := z.origins.ofQuery(name)
		if o.name != origin && o.name == name {
			at := nameMatch{Match: subtree.Match{Role: domain.Apex}}
			yield(&Result{Kind: Success, Type: dns.TypeNS, TTL: o.negativeTTL, zone: z, origin: o, match: at})
			return
		}
		at := z.matchName(o, name, now)
		for _, qtype := range types {
			r := Result{zone: z, origin: o, Type: qtype, match: at}
			if r.resolveType(now, true); (r.Kind == Success || r.Kind == Indirect) && !yield(&r) {
				return
			}
		}
	}
}
