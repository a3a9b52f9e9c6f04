package zone

import (
	"iter"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/record"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/subtree"
)

// Synced reports whether a name is an origin, and whether that can be
// transferred: its names are known. The name is lower case and absolute.
func (z *Zone) Synced(name string, now time.Time) (apex, synced bool) {
	o := z.apex(name)
	if o == nil {
		return false, false
	}
	return true, z.extent(o, now) == complete
}

// SOA returns the start of authority of an origin, or nil when it is not one of
// the zones. The record is the caller's.
func (z *Zone) SOA(name string) *dns.SOA {
	o := z.apex(name)
	if o == nil {
		return nil
	}
	return o.soa(name)
}

// NS returns the name server record of an origin, or nil when it is not one of
// the zones. The record is the caller's.
func (z *Zone) NS(name string) *dns.NS {
	o := z.apex(name)
	if o == nil {
		return nil
	}
	return record.NS(name, o.ns, o.negativeTTL)
}

// apex returns the origin that has the name, or nil.
func (z *Zone) apex(name string) *origin {
	if o := z.origins.ofQuery(name); o != nil && o.name == name {
		return o
	}
	return nil
}

// types are the types of the records that services have.
var types = []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT}

// Names yields every name of an origin that may have records, once: that of the name server,
// then the others in canonical order (RFC 4034 section 6.1). It yields nothing for a name that
// is not an origin.
//
// Origins within this one are zones of their own: it delegates them, with glue, so that a
// server that has this zone only refers to them and does not deny their names.
func (z *Zone) Names(origin string, now time.Time) iter.Seq[string] {
	return func(yield func(string) bool) {
		if o := z.apex(origin); o != nil && yield(o.ns) {
			z.names(o, now)(yield)
		}
	}
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
			at := match{Match: subtree.Match{Role: domain.Apex}}
			yield(&Result{Kind: Success, Type: dns.TypeNS, TTL: o.negativeTTL, zone: z, origin: o, match: at})
			return
		}
		at := z.match(o, name, now)
		for _, qtype := range types {
			r := Result{zone: z, origin: o, Type: qtype, match: at}
			if r.resolve(now, true); (r.Kind == Success || r.Kind == Indirect) && !yield(&r) {
				return
			}
		}
	}
}

// Sample yields the names of services of an origin and those below them, in no
// particular order: all names that may have records but those of name servers, some
// of them more than once.
func (z *Zone) Sample(origin string, now time.Time) iter.Seq[string] {
	return func(yield func(string) bool) {
		o := z.apex(origin)
		if o == nil {
			return
		}
		for fqdn, p := range z.fqdns(o, now) {
			if !yield(fqdn) {
				return
			}
			for labels := range p.Subtree.Names() {
				if !yield(domain.Below(labels, fqdn)) {
					return
				}
			}
		}
	}
}

// delegated yields the origins right below one.
func (z *Zone) delegated(o *origin) iter.Seq[*origin] {
	return func(yield func(*origin) bool) {
		for i := range z.origins {
			inner := &z.origins[i]
			if inner != o && domain.Within(inner.name, o.name) && z.origins.of(domain.Parent(inner.name)) == o && !yield(inner) {
				return
			}
		}
	}
}

// fqdns yields where services of an origin are published, in no particular order.
func (z *Zone) fqdns(o *origin, now time.Time) iter.Seq2[string, *precedence.Offer] {
	return func(yield func(string, *precedence.Offer) bool) {
		for name, n := range z.tree.All() {
			if z.origins.ofQuery(name) != o {
				continue
			}
			if p := z.tree.Holder(o.name, name, n, now); p != nil && !yield(name, p) {
				return
			}
		}
	}
}

// names yields the names of an origin that may have records, or that delegate
// another, each once, in canonical order. The name server is not among them.
func (z *Zone) names(o *origin, now time.Time) iter.Seq[string] {
	var fqdns []domain.Ordered
	for name := range z.fqdns(o, now) {
		fqdns = append(fqdns, domain.Order(name))
	}
	domain.Sort(fqdns)
	return func(yield func(string) bool) {
		// The names below an fqdn come after it, mixed with those of other
		// services there. They wait for their turn.
		var waiting domain.Queue
		for inner := range z.delegated(o) {
			waiting.Push(inner.name)
			waiting.Push(inner.ns)
		}
		last := ""
		emit := func(name string) bool {
			if name == last {
				return true
			}
			last = name
			return yield(name)
		}
		flush := func(until *domain.Ordered) bool {
			for {
				name, ok := waiting.Pop(until)
				if !ok {
					return true
				}
				if !emit(name) {
					return false
				}
			}
		}
		for i := range fqdns {
			fqdn := fqdns[i].Name
			if !flush(&fqdns[i]) || !emit(fqdn) {
				return
			}
			for labels := range z.tree.First(z.tree.Node(fqdn), now).Subtree.Names() {
				if name := domain.Below(labels, fqdn); len(name) <= domain.MaxName && z.origins.ofQuery(name) == o {
					waiting.Push(name)
				}
			}
		}
		flush(nil)
	}
}
