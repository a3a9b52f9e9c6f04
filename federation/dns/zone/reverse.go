package zone

import (
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/trie"
)

// pointers is what a Builder knows of the addresses that have reverse names.
type pointers struct {
	wanted   bool                          // by any owner
	prefixes [][]netip.Prefix              // Owner.Reverse of each owner
	names    map[netip.Addr]map[string]int // of instances that have an address: in how many offers
	shown    *trie.Writer[pointer]         // by reverse name, where there is one instance
}

// pointer is the only instance that has an address.
type pointer struct {
	ip       netip.Addr
	instance string // its name
}

func newPointers(owners []Owner) pointers {
	p := pointers{names: make(map[netip.Addr]map[string]int), shown: trie.NewWriter[pointer]()}
	for i := range owners {
		p.prefixes = append(p.prefixes, owners[i].Reverse)
		p.wanted = p.wanted || len(owners[i].Reverse) > 0
	}
	return p
}

// exchange counts what has an address with one offer in the place of another. Either may be
// nil. An offer counts from when it comes until it is taken back, also while it is not
// published: an address that two had a moment ago points to neither.
func (p *pointers) exchange(old, offer *precedence.Offer) {
	if !p.wanted {
		return
	}
	touched := make(map[netip.Addr]bool)
	p.count(old, -1, touched)
	p.count(offer, +1, touched)
	for ip := range touched {
		p.show(ip)
	}
}

// count adds n to the instances of an offer, and notes their addresses.
func (p *pointers) count(of *precedence.Offer, n int, touched map[netip.Addr]bool) {
	if of == nil {
		return
	}
	for ip, label := range of.Subtree.Addressed() {
		if !p.reversed(of, ip) {
			continue
		}
		touched[ip] = true
		name := domain.Below(label, of.FQDN())
		if p.names[ip] == nil {
			p.names[ip] = make(map[string]int)
		}
		if p.names[ip][name] += n; p.names[ip][name] == 0 {
			delete(p.names[ip], name)
		}
	}
}

// reversed reports whether an address of an offer has a reverse name: all blocks that share a name must
// want it, also those that have no service there.
func (p *pointers) reversed(of *precedence.Offer, ip netip.Addr) bool {
	owners := []int{int(of.Owner)}
	if shared := of.Subtree.Shared(); shared != nil {
		owners = shared.Sharers
	}
	for _, i := range owners {
		if !slices.ContainsFunc(p.prefixes[i], func(prefix netip.Prefix) bool { return prefix.Contains(ip) }) {
			return false
		}
	}
	return true
}

// show has the reverse name of an address point to the only instance that has it.
func (p *pointers) show(ip netip.Addr) {
	reverse, err := dns.ReverseAddr(ip.String())
	if err != nil {
		return // it takes every address
	}
	if len(p.names[ip]) != 1 {
		p.shown.Delete(reverse)
		if len(p.names[ip]) == 0 {
			delete(p.names, ip)
		}
		return
	}
	for name := range p.names[ip] {
		p.shown.Set(&trie.Item[pointer]{Name: reverse, Value: pointer{ip, name}})
	}
}

// reverse returns the name of the instance to which a reverse name points, and its origin, or
// nil.
//
//go:noinline // its frame would be on the stack while the match is found
func (r *Result) reverse(z *Zone, name string) (instance string, of *origin) {
	if r.pointer = z.pointers.Get(name); r.pointer == nil {
		return "", nil
	}
	return r.pointer.instance, z.origins.of(r.pointer.instance)
}

// point decides what a PTR query gets whose reverse name points to an instance, which the match
// is for. If another service has the name of the instance, the Result becomes zero.
//
//go:noinline // as above
func (r *Result) point(now time.Time) {
	m := &r.match
	if m.Role != domain.Instance || !slices.ContainsFunc(m.Endpoints, func(i uint16) bool {
		ip, ok := m.offer.Subtree.Endpoint(i).Address.IP()
		return ok && ip == r.pointer.ip
	}) {
		*r = Result{}
		return
	}
	members := m.answer(r.Type)
	r.Kind, r.TTL = Success, r.zone.ttl(m.offer, members, now)
	r.age(m.offer, members)
}

// Pointer returns the name of the instance to which a reverse name points.
func (r *Result) Pointer() string { return r.pointer.instance }
