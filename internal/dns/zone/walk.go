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

// OriginSynced reports whether a name is an origin, and whether that can be
// transferred: its names are known. The name is lower case and absolute.
func (z *Zone) OriginSynced(name string, now time.Time) (apex, synced bool) {
	o := z.findOrigin(name)
	if o == nil {
		return false, false
	}
	return true, z.originExtent(o, now) == complete
}

// SOA returns the start of authority of an origin, or nil when it is not one of
// the zones. The record is the caller's.
func (z *Zone) SOA(name string) *dns.SOA {
	o := z.findOrigin(name)
	if o == nil {
		return nil
	}
	return o.newSOA(name)
}

// NS returns the name server record of an origin, or nil when it is not one of
// the zones. The record is the caller's.
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

// Names yields every name of an origin that may have records, or that delegates another one, each
// once and in no order. It yields nothing for a name that is not an origin.
//
// Origins within this one are zones of their own: it delegates them, with glue, so that a
// server that has this zone only refers to them and does not deny their names.
func (z *Zone) Names(origin string, now time.Time) iter.Seq[string] {
	return func(yield func(string) bool) {
		o := z.findOrigin(origin)
		if o == nil || !yield(o.ns) {
			return
		}
		for inner := range z.delegatedOrigins(o) {
			if !yield(inner.name) || !yield(inner.ns) {
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

// yieldBelow yields the names that a service has below its fqdn: what is above others, those that they do not have. It
// reports whether there is more to yield.
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

// Records yields the RRsets of a name of the origin, type by type, but the SOA and the NS of
// the origin itself; of an origin below what delegates that, which is its name server or the
// addresses of that.
//
// Addresses of hosts elsewhere are left out, those in our other zones too: when they change,
// the serial of this one does not. For the same reason such hosts are targets of SRV records
// here, whatever they lead to. The results are valid until the next one.
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

// delegatedOrigins yields the origins right below one.
func (z *Zone) delegatedOrigins(o *zoneOrigin) iter.Seq[*zoneOrigin] {
	return func(yield func(*zoneOrigin) bool) {
		for i := range z.origins {
			inner := &z.origins[i]
			if inner != o && domain.IsWithin(inner.name, o.name) && z.origins.originOf(domain.Parent(inner.name)) == o && !yield(inner) {
				return
			}
		}
	}
}
