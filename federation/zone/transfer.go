package zone

import (
	"container/heap"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Synced reports whether the origin can be transferred: it is one of the zones,
// and its names are known. The name is lower case and absolute.
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

// apex returns the origin that has the name, or nil.
func (z *Zone) apex(name string) *origin {
	if o := z.origin(name); o != nil && o.name == name {
		return o
	}
	return nil
}

// Transfer yields the records of an origin for AXFR (RFC 5936), a name or less
// at a time: SOA, NS and the name server, then all names in canonical order
// (RFC 4034 section 6.1), then the SOA again. It yields nothing for a name that
// is not an origin. Origins within this one are zones of their own: it delegates
// them, with glue, so that a server that has this zone only refers to them and
// does not deny their names. Addresses of hosts elsewhere are left out, those in
// our other zones too: when they change, the serial of this one does not.
func (z *Zone) Transfer(name string, now time.Time) iter.Seq[[]dns.RR] {
	return func(yield func([]dns.RR) bool) {
		o := z.apex(name)
		if o == nil {
			return
		}
		for _, rrs := range [][]dns.RR{{o.soa(name)}, {o.nsRecord(name)}, z.records(o, o.ns, now)} {
			if len(rrs) > 0 && !yield(rrs) {
				return
			}
		}
		for at := range z.names(o, now) {
			if rrs := z.records(o, at, now); len(rrs) > 0 && !yield(rrs) {
				return
			}
		}
		yield([]dns.RR{o.soa(name)})
	}
}

// transferred are the types that services have.
var transferred = []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT}

// delegated yields the origins right below one.
func (z *Zone) delegated(o *origin) iter.Seq[*origin] {
	return func(yield func(*origin) bool) {
		for i := range z.origins {
			inner := &z.origins[i]
			if inner != o && within(inner.name, o.name) && z.origins.of(parent(inner.name)) == o && !yield(inner) {
				return
			}
		}
	}
}

// delegation returns what the zone above an origin has of it at one name: the
// name server, or its addresses.
func (o *origin) delegation(name string) []dns.RR {
	if name == o.name {
		return []dns.RR{o.nsRecord(name)}
	}
	return o.nsAddresses()
}

// records returns what Lookup answers for a name, type by type, and for a name of
// an origin below what delegates that.
func (z *Zone) records(o *origin, name string, now time.Time) []dns.RR {
	if inner := z.origin(name); inner != o {
		return inner.delegation(name)
	}
	var rrs []dns.RR
	at := z.match(o, name, now)
	for _, qtype := range transferred {
		r := Result{zone: z, origin: o, qtype: qtype, match: at, alone: true}
		if r.resolve(now); r.Kind == Success || r.Kind == Indirect {
			rrs = append(rrs, r.Answer(name)...)
		}
	}
	return rrs
}

// names yields the names of an origin that may have records, or that delegate
// another, each once, in canonical order. The name server is not among them.
func (z *Zone) names(o *origin, now time.Time) iter.Seq[string] {
	var fqdns byCanonicalOrder
	for at := range z.index.All() {
		if z.origin(at.Name) == o && z.holder(o, at.Name, &at.Value, now) != nil {
			fqdns = append(fqdns, canonical(at.Name))
		}
	}
	slices.SortFunc(fqdns, compareCanonical)
	return func(yield func(string) bool) {
		// The names below an fqdn come after it, mixed with those of other
		// services there. They wait for their turn.
		var waiting byCanonicalOrder
		for inner := range z.delegated(o) {
			heap.Push(&waiting, canonical(inner.name))
			heap.Push(&waiting, canonical(inner.ns))
		}
		last := ""
		emit := func(name string) bool {
			if name == last {
				return true
			}
			last = name
			return yield(name)
		}
		flush := func(until *canonicalName) bool {
			for len(waiting) > 0 && (until == nil || waiting[0].key <= until.key) {
				if !emit(heap.Pop(&waiting).(canonicalName).name) {
					return false
				}
			}
			return true
		}
		for i := range fqdns {
			fqdn := fqdns[i].name
			if !flush(&fqdns[i]) || !emit(fqdn) {
				return
			}
			for labels := range z.winner(z.index.Get(fqdn), now).derived() {
				if name := below(labels, fqdn); len(name) <= maxName && z.origin(name) == o {
					heap.Push(&waiting, canonical(name))
				}
			}
		}
		flush(nil)
	}
}

// canonicalName is a name with a key that sorts as RFC 4034 section 6.1 says:
// its labels from the last to the first, each with a NUL behind it.
type canonicalName struct{ name, key string }

func canonical(name string) canonicalName {
	var key strings.Builder
	for end := len(name) - 1; end > 0; {
		start := strings.LastIndexByte(name[:end], '.') + 1
		key.WriteString(name[start:end])
		key.WriteByte(0)
		end = start - 1
	}
	return canonicalName{name, key.String()}
}

func compareCanonical(a, b canonicalName) int { return strings.Compare(a.key, b.key) }

// byCanonicalOrder is a heap of names.
type byCanonicalOrder []canonicalName

func (h byCanonicalOrder) Len() int           { return len(h) }
func (h byCanonicalOrder) Less(i, j int) bool { return h[i].key < h[j].key }
func (h byCanonicalOrder) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push appends a name, for container/heap.
func (h *byCanonicalOrder) Push(x any) { *h = append(*h, x.(canonicalName)) }

// Pop takes the last name, for container/heap.
func (h *byCanonicalOrder) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
