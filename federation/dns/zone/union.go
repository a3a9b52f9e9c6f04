package zone

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
)

// union is what offers of several owners are as one service.
type union struct {
	of     []*precedence.Offer
	whole  *precedence.Offer
	said   [][]saying // by endpoint of whole
	differ []Difference
}

// saying is that a member has an endpoint in a tier.
type saying struct{ member, tier int }

// is reports whether the union is that of these offers. Those that were confirmed are the same.
func (u *union) is(offers []*precedence.Offer) bool {
	if u == nil {
		return len(offers) == 0
	}
	return slices.EqualFunc(u.of, offers, func(x, y *precedence.Offer) bool { return x.Owner == y.Owner && x.Service == y.Service })
}

// unite makes one service of the offers: that of the first owner, with all endpoints and
// instances.
func (b *Builder) unite(fqdn string, offers []*precedence.Offer) *union {
	if len(offers) == 0 {
		return nil
	}
	u := &union{of: offers}
	all := *offers[0].Service.Unpack()
	first := character(&all)
	all.Endpoints, all.Instances = nil, nil
	endpoints, instances := make(map[subtree.Endpoint]int), make(map[string]int) // their places in all
	var said [][]saying
	for m, o := range offers {
		s := o.Service.Unpack()
		if what := difference(first, character(s)); what != "" {
			u.differ = append(u.differ, Difference{Owner: int(o.Owner), First: int(offers[0].Owner), FQDN: fqdn, Service: s.Name, What: what})
		}
		sharing := &b.config.Owners[o.Owner].Sharing
		for _, e := range s.Endpoints {
			at := subtree.Endpoint{Address: e.Address, Port: e.Port}
			i, known := endpoints[at]
			if !known {
				i = len(said)
				endpoints[at] = i
				all.Endpoints, said = append(all.Endpoints, federation.Endpoint{Address: e.Address, Port: e.Port}), append(said, nil)
			}
			all.Endpoints[i].Labels = append(all.Endpoints[i].Labels, labelsOf(m, e.Labels)...)
			said[i] = append(said[i], saying{m, sharing.tier(e.Labels)})
		}
		for _, in := range s.Instances {
			in.EndpointSelector = selectorOf(m, s, &in)
			key := in.ID
			if in.Unnamed {
				key = "\x00" + in.Protocol.String()
			}
			i, known := instances[key]
			if !known {
				instances[key] = len(all.Instances)
				all.Instances = append(all.Instances, in)
				continue
			}
			all.Instances[i].EndpointSelector = append(all.Instances[i].EndpointSelector, in.EndpointSelector...)
		}
	}
	u.whole = precedence.NewOffer(packed.Of(&all), &all, fqdn, int(offers[0].Owner), b.refuseName)
	newest := slices.MaxFunc(offers, func(x, y *precedence.Offer) int { return x.Updated().Compare(y.Updated()) })
	u.whole.Announced(math.MaxUint32, uint32(max(newest.Updated().Unix(), 0))) //nolint:gosec // until 2106
	t := &u.whole.Subtree
	for _, i := range t.All() {
		u.said = append(u.said, said[endpoints[*t.Endpoint(i)]])
	}
	return u
}

// labelsOf returns the labels that an endpoint of a member has in a union: its own ones, and one
// that all endpoints of the member have. Those of different members differ.
func labelsOf(member int, own []string) []string {
	labels := []string{strconv.Itoa(member) + "/"}
	for _, l := range own {
		labels = append(labels, labels[0]+l)
	}
	return labels
}

// selectorOf returns what selects in a union the endpoints that an instance of a member has. If its
// own selector matches none, those are all of the member.
func selectorOf(member int, s *federation.Service, in *federation.Instance) []string {
	labels := labelsOf(member, in.EndpointSelector)
	if slices.ContainsFunc(s.Endpoints, func(e federation.Endpoint) bool { return in.Selects(e.Labels) }) {
		return labels[1:]
	}
	return labels[:1]
}

// FaultDiffers counts services of a shared name that have other protocols, SANs or SNIs than
// that of an owner that comes first. All of them are answered.
const FaultDiffers = Fault("differs")

// Difference is in what a service of a shared name counts as FaultDiffers.
type Difference struct {
	Owner, First  int // its owner, and the first that has the name, by index in Config.Owners
	FQDN, Service string
	What          string // a clause, printable and of bounded length
}

// Differences returns those that have come up since the last call.
func (b *Builder) Differences() []Difference {
	found := b.groups.differ
	b.groups.differ = nil
	return found
}

// compare counts the differences within a union rather than those within the one before it.
// Either may be nil.
func (b *Builder) compare(before, u *union) {
	var known []Difference
	if before != nil {
		known = before.differ
	}
	for _, d := range known {
		b.tree.Fault(d.Owner, FaultDiffers, -1)
	}
	if u == nil {
		return
	}
	for _, d := range u.differ {
		if b.tree.Fault(d.Owner, FaultDiffers, 1); !slices.Contains(known, d) {
			b.groups.differ = append(b.groups.differ, d)
		}
	}
}

// character returns what clients need to be the same behind one name, sorted.
func character(s *federation.Service) (all []string) {
	for _, san := range s.SANs {
		all = append(all, "SAN "+san)
	}
	for _, in := range s.Instances {
		all = append(all, "protocol "+in.Protocol.String())
		for _, m := range in.Metadata {
			if strings.EqualFold(m.Key, "sni") {
				all = append(all, "SNI "+m.Value)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// difference says what another character than the first has and lacks, or nothing.
func difference(first, other []string) string {
	var parts []string
	add := func(verb string, of, without []string) {
		only := slices.DeleteFunc(slices.Clone(of), func(s string) bool {
			_, has := slices.BinarySearch(without, s)
			return has
		})
		if len(only) > 0 {
			parts = append(parts, verb+" "+strings.Join(only, ", "))
		}
	}
	add("has", other, first)
	add("lacks", first, other)
	return federation.Printable(strings.Join(parts, "; "))
}
