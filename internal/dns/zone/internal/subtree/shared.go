package subtree

import (
	"cmp"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"sync" //nolint:depguard // what is joined is a function of the members, made by the first that asks

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/record"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// Rank is the order of the endpoints of a shared name, the best first: live ones by tier, then
// stale ones. It is the priority of an endpoint's SRV record.
type Rank uint8

const (
	// MaxTier is the last tier.
	MaxTier = 9

	// AllRanks comes after the rank of every endpoint.
	AllRanks Rank = 255

	behindLive Rank = 10 // added to the tier of stale endpoints
)

// RankOf returns the rank of an endpoint in a tier.
func RankOf(tier int, stale bool) Rank {
	r := Rank(tier) //nolint:gosec // at most MaxTier
	if stale {
		r += behindLive
	}
	return r
}

// Tier returns the tier of an endpoint with that rank.
func (r Rank) Tier() int { return int(r % behindLive) }

// IsStale reports whether every owner of an endpoint with that rank is lost.
func (r Rank) IsStale() bool { return r >= behindLive }

// MaxMembers is how many owners can share one name. A set of them fits a word.
const MaxMembers = 64

// SharedName is a name that several owners have. It is no service: it has members, and for each
// endpoint the members that publish it. Members is complete from the beginning, and answers which
// names there are. The first query fills in the rest, under once, so that whoever publishes waits
// for no name, however large. Nothing changes afterwards: a change of a member makes another
// SharedName.
type SharedName struct {
	Members []Member // in order of precedence
	Enough  int      // how many live endpoints are enough

	fqdn string
	tier TierFunc
	once sync.Once // guards the fields below, which joinMembers fills in

	joined    Subtree
	points    []sharedEndpoint   // by endpoint
	places    [][]uint16         // by member: the indexes of its endpoints in joined
	instances [][]memberInstance // by Instance.at
	tellers   []uint8            // by text: the member that has it
}

// Member is an owner that shares the name, with its service.
type Member struct {
	Owner   uint32 // its place in the order of precedence
	Stale   bool   // whether the owner has not confirmed the service since it was lost
	Tree    *Subtree
	Service packed.Service // of which Tree is compiled
}

// Equal reports whether two members have the same service, live or stale.
func (m Member) Equal(n Member) bool {
	return m.Owner == n.Owner && m.Stale == n.Stale && m.Service == n.Service
}

// MemberSet is a set of members, by index in SharedName.Members.
type MemberSet uint64

// Each passes the indexes of the set to yield.
func (m MemberSet) Each(yield func(int) bool) {
	for ; m != 0; m &= m - 1 {
		if !yield(bits.TrailingZeros64(uint64(m))) {
			return
		}
	}
}

// Has reports whether the member at an index is one of the set.
func (m MemberSet) Has(i int) bool { return m>>i&1 != 0 }

// sharedEndpoint is what is known of an endpoint of a shared name.
type sharedEndpoint struct {
	rank   Rank // the best rank that a member gives the endpoint
	sayers MemberSet
}

// memberInstance is an instance as one member has it.
type memberInstance struct {
	member uint8
	text   uint16 // its TXT record, by index in rare.texts
	*Instance
}

// TierFunc returns the tier of an endpoint of an owner, which has these labels.
type TierFunc func(owner uint32, labels []string) int

// NewShared returns the subtree of a name that members share. The members must not change.
func NewShared(fqdn string, members []Member, enough int, tier TierFunc) Subtree {
	return Subtree{rare: &rareParts{shared: &SharedName{Members: members, Enough: enough, fqdn: fqdn, tier: tier}}}
}

// SharedName returns the shared name of the subtree, or nil for a service. The caller must not
// change it.
func (t *Subtree) SharedName() *SharedName { return t.rareOrNone().shared }

// Joined returns the subtree that answers queries. For a shared name it has the endpoints,
// instances and texts of all members; otherwise it is the subtree itself.
func (t *Subtree) Joined() *Subtree {
	s := t.SharedName()
	if s == nil {
		return t
	}
	s.once.Do(s.joinMembers)
	return &s.joined
}

// joinMembers fills in what the members have together.
func (s *SharedName) joinMembers() {
	var all []Endpoint
	for m := range s.Members {
		all = append(all, s.Members[m].Tree.allEndpoints()...)
	}
	t := &s.joined
	t.rare = &rareParts{shared: s}
	var places []uint16
	t.rare.endpoints, places = sortEndpoints(all, s.fqdn)
	s.points = slices.Repeat([]sharedEndpoint{{rank: AllRanks}}, len(t.rare.endpoints))
	var services []*federation.Service
	for m := range s.Members {
		member := &s.Members[m]
		n := len(member.Tree.allEndpoints())
		s.places, places = append(s.places, places[:n]), places[n:]
		of := member.Service.Unpack()
		s.addMember(m, of)
		t.protocols |= member.Tree.protocols
		services = append(services, of)
	}
	s.joinInstances(services)
	for p := range t.protocols.each {
		set := newEndpointSet(len(s.points))
		for m := range s.Members {
			if tree := s.Members[m].Tree; tree.protocols&(1<<p) != 0 {
				s.addPlaces(set, m, tree.endpointsOfProtocol(p))
			}
		}
		t.rare.selected = append(t.rare.selected, protocolEndpoints{p, t.pickEndpoints(set)})
	}
}

// addMember adds a member to the endpoints that it has, and to their ranks.
func (s *SharedName) addMember(m int, of *federation.Service) {
	member := &s.Members[m]
	at := make(map[Endpoint]uint16, len(s.places[m]))
	for i, ep := range member.Tree.allEndpoints() {
		at[ep] = s.places[m][i]
		s.points[at[ep]].sayers |= 1 << m
	}
	for _, e := range of.Endpoints {
		if i, ok := at[Endpoint{e.Address, e.Port}]; ok { // no host that is the name of an address
			s.points[i].rank = min(s.points[i].rank, RankOf(s.tier(member.Owner, e.Labels), member.Stale))
		}
	}
}

// joinInstances fills in the instances and the texts. Instances of two members are one if ID and
// protocol are the same, with the text of the first member.
func (s *SharedName) joinInstances(services []*federation.Service) {
	t := &s.joined
	type key struct {
		label    string
		protocol federation.Protocol
	}
	texts := make(map[key]uint16)
	tell := func(k key, m int, text string) uint16 {
		i, known := texts[k]
		if !known {
			i = uint16(len(s.tellers)) //nolint:gosec // MaxMembers times limits.Instances is below 1<<16
			texts[k] = i
			t.rare.texts, s.tellers = append(t.rare.texts, text), append(s.tellers, uint8(m)) //nolint:gosec // below MaxMembers
		}
		return i
	}
	parts := make(map[string][]memberInstance)
	for m := range s.Members {
		member := &s.Members[m]
		of, said := services[m], member.Tree.allTexts(services[m])
		tell(key{}, 0, said[0])
		own := member.Tree.Instances()
		for i := range own {
			in := &own[i]
			text := tell(key{in.Label, in.protocol}, m, said[1+in.Index])
			parts[in.Label] = append(parts[in.Label], memberInstance{uint8(m), text, in})
		}
		for i := range of.Instances { // also those without a name
			in := &of.Instances[i]
			k := key{in.ID, in.Protocol}
			if label, err := federation.ParseLabel(in.ID); in.Unnamed {
				k.label = ""
			} else if err == nil {
				k.label = label.String()
			}
			tell(k, m, said[1+i])
		}
	}
	t.rare.describedBy, _ = orderTexts(t.rare.texts)
	t.rare.instances = make([]Instance, 0, len(parts))
	for _, label := range slices.Sorted(maps.Keys(parts)) {
		first := parts[label][0]
		t.rare.instances = append(t.rare.instances, Instance{
			Label: label, Index: first.Index, protocol: first.protocol, at: uint16(len(s.instances)), //nolint:gosec // as above
		})
		s.instances = append(s.instances, parts[label])
	}
}

// addPlaces adds endpoints of a member to a set.
func (s *SharedName) addPlaces(to endpointSet, member int, endpoints Selection) {
	for _, i := range endpoints {
		to.addIndex(s.places[member][i])
	}
}

// endpointsOf returns the endpoints of an instance that speak a protocol, or all of them for the
// protocol 0.
func (s *SharedName) endpointsOf(in *Instance, p federation.Protocol) Selection {
	set, found := newEndpointSet(len(s.points)), false
	for _, part := range s.instances[in.at] {
		if p == 0 || part.protocol == p {
			found = true
			s.addPlaces(set, int(part.member), s.Members[part.member].Tree.endpointsOf(part.Instance))
		}
	}
	if !found {
		return nil
	}
	return s.joined.pickEndpoints(set)
}

// textsOf returns the texts of an instance, one for each protocol.
func (s *SharedName) textsOf(in *Instance) []string {
	var all []uint16
	for _, part := range s.instances[in.at] {
		all = append(all, part.text)
	}
	slices.Sort(all)
	var texts []string
	for _, i := range slices.Compact(all) {
		texts = append(texts, s.joined.rare.texts[i])
	}
	return texts
}

// EndpointRank returns the rank of an endpoint.
func (s *SharedName) EndpointRank(i uint16) Rank { return s.points[i].rank }

// MembersSaying returns the members that have an endpoint.
func (s *SharedName) MembersSaying(i uint16) MemberSet { return s.points[i].sayers }

// MembersSayingAny returns the members that have one of the endpoints.
func (s *SharedName) MembersSayingAny(endpoints Selection) (all MemberSet) {
	for _, i := range endpoints {
		all |= s.points[i].sayers
	}
	return all
}

// MembersAnswering returns the members that have one of the endpoints up to a rank, where that
// endpoint is a host or has an address of the type, A or AAAA.
func (s *SharedName) MembersAnswering(endpoints Selection, qtype uint16, last Rank) (all MemberSet) {
	for _, i := range endpoints {
		if ip, ok := s.joined.Endpoint(i).Address.IP(); s.points[i].rank <= last && (!ok || record.TypeHolds(qtype, ip)) {
			all |= s.points[i].sayers
		}
	}
	return all
}

// MembersSayingAddress returns the members that have an endpoint with the address.
func (s *SharedName) MembersSayingAddress(ip netip.Addr) (all MemberSet) {
	for i, ep := range s.joined.rare.endpoints {
		if own, ok := ep.Address.IP(); ok && own == ip {
			all |= s.points[i].sayers
		}
	}
	return all
}

// MembersDescribing returns the members that have a TXT record of an instance or, where in is nil,
// of the name.
func (s *SharedName) MembersDescribing(in *Instance) (all MemberSet) {
	if in == nil {
		for _, m := range s.tellers {
			all |= 1 << m
		}
		return all
	}
	for _, part := range s.instances[in.at] {
		all |= 1 << s.tellers[part.text]
	}
	return all
}

// FirstMember returns the first member that has an instance, and its own instance. Where in is nil,
// it returns the first member of the name.
func (s *SharedName) FirstMember(in *Instance) (*Member, *Instance) {
	if in == nil {
		return &s.Members[0], nil
	}
	first := s.instances[in.at][0]
	return &s.Members[first.member], first.Instance
}

// SortByRank returns the endpoints of a shared name with the best ranks first, and other endpoints
// as they are.
func (t *Subtree) SortByRank(endpoints Selection) Selection {
	s := t.SharedName()
	rank := func(i, j uint16) int { return cmp.Compare(s.points[i].rank, s.points[j].rank) }
	if s == nil || slices.IsSortedFunc(endpoints, rank) {
		return endpoints
	}
	endpoints = slices.Clone(endpoints)
	slices.SortStableFunc(endpoints, rank)
	return endpoints
}

// EndpointsUpTo returns those of the endpoints whose rank is at most last.
func (s *SharedName) EndpointsUpTo(endpoints Selection, last Rank) Selection {
	if !slices.ContainsFunc(endpoints, func(i uint16) bool { return s.points[i].rank > last }) {
		return endpoints
	}
	return slices.DeleteFunc(slices.Clone(endpoints), func(i uint16) bool { return s.points[i].rank > last })
}

// SRVPriority returns the priority of the SRV record of an endpoint.
func (t *Subtree) SRVPriority(i uint16) uint16 {
	if s := t.SharedName(); s != nil {
		return uint16(s.points[i].rank)
	}
	return 0
}
