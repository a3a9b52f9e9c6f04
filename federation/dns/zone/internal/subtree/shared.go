package subtree

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"
)

// Rank is where an endpoint of a shared name stands, the best first: live ones by tier, then stale
// ones. It is the priority of its SRV record.
type Rank uint8

const (
	// MaxTier is the last tier.
	MaxTier = 9

	behindLive Rank = 10  // is added to the tier of stale endpoints
	allRanks   Rank = 255 // stands behind every endpoint
)

// RankOf returns the rank of an endpoint in a tier.
func RankOf(tier int, stale bool) Rank {
	r := Rank(tier) //nolint:gosec // at most MaxTier
	if stale {
		r += behindLive
	}
	return r
}

// Tier returns the tier of the endpoint.
func (r Rank) Tier() int { return int(r % behindLive) }

// Stale reports whether every owner that says the endpoint is lost.
func (r Rank) Stale() bool { return r >= behindLive }

// MaxMembers is how many owners can share one name: a set of them is a word.
const MaxMembers = 64

// Shared is what the subtree of a name has that owners share.
type Shared struct {
	Members []Member // in order of precedence

	points    []Point // endpoint by endpoint
	service   sources // of the fqdn
	instances []sources
}

// Member is an owner that shares the name.
type Member struct {
	Owner uint32 // its place in the order of precedence
	Stale bool   // whether it has not confirmed what it says since it was lost
}

// Members is a set of members, by index in Shared.Members.
type Members uint64

// Each yields the indexes of the set.
func (m Members) Each(yield func(int) bool) {
	for i := 0; m != 0; i, m = i+1, m>>1 {
		if m&1 != 0 && !yield(i) {
			return
		}
	}
}

// Has reports whether the member at an index is one of the set.
func (m Members) Has(i int) bool { return m>>i&1 != 0 }

// First returns the first member of a set that is not empty.
func (m Members) First() int { return bits.TrailingZeros64(uint64(m)) }

// Point is what is known of an endpoint that members say.
type Point struct {
	Rank    Rank // the best that a member gives it
	Members Members
}

// sources is where the records of one name come from.
type sources struct {
	answered Selection // the endpoints whose addresses are answered
	near     Members   // that say one of those
	all      Members   // that say one of all endpoints of the name
}

// Share fills what is shared, in a subtree that nobody else has yet. The points are those of
// the endpoints. Of the fqdn and of each instance, addresses are answered until enough endpoints are
// live.
func (t *Subtree) Share(members []Member, points []Point, enough int) {
	s := &Shared{Members: members, points: points}
	s.service = s.source(t.All(), enough)
	instances := t.Instances()
	for i := range instances {
		s.instances = append(s.instances, s.source(t.endpointsOf(&instances[i]), enough))
	}
	r := *t.some()
	r.rarest = &rarest{r.faults, s}
	t.rare = &r
}

// source returns where the records of a name with these endpoints come from.
func (s *Shared) source(endpoints Selection, enough int) sources {
	last := s.lastRank(endpoints, enough)
	var of sources
	for _, i := range endpoints {
		p := &s.points[i]
		of.all |= p.Members
		if p.Rank <= last {
			of.answered = append(of.answered, i)
			of.near |= p.Members
		}
	}
	return of
}

// lastRank returns up to which rank addresses are answered: whole ranks, the best first, until enough
// endpoints are live. If there are fewer, it is allRanks.
func (s *Shared) lastRank(endpoints Selection, enough int) Rank {
	var live [MaxTier + 1]int
	for _, i := range endpoints {
		if r := s.points[i].Rank; !r.Stale() {
			live[r]++
		}
	}
	n := 0
	for rank, more := range live {
		if n += more; more > 0 && n >= enough {
			return Rank(rank)
		}
	}
	return allRanks
}

// Equal reports whether two subtrees of one service are answered alike, as far as they are shared.
func (s *Shared) Equal(t *Shared) bool {
	return slices.Equal(s.Members, t.Members) && slices.Equal(s.points, t.points) && s.service.equal(t.service) &&
		slices.EqualFunc(s.instances, t.instances, sources.equal)
}

func (s sources) equal(t sources) bool {
	return s.near == t.near && s.all == t.all && slices.Equal(s.answered, t.answered)
}

// Shared returns what the subtree has of a shared name; nil for others. It must not be changed.
func (t *Subtree) Shared() *Shared { return t.some().shared }

// Point returns what is known of an endpoint of a shared name.
func (s *Shared) Point(i uint16) *Point { return &s.points[i] }

// at returns where the records of a match come from, if it is the fqdn or of an instance.
func (s *Shared) at(in *Instance) *sources {
	if in == nil {
		return &s.service
	}
	return &s.instances[in.at]
}

// Answered returns the endpoints of a match whose addresses are answered, and the members
// that say one of them.
func (t *Subtree) Answered(in *Instance) (Selection, Members) {
	of := t.rare.shared.at(in)
	return of.answered, of.near
}

// Named returns all endpoints of the fqdn or of an instance.
func (t *Subtree) Named(in *Instance) Selection {
	if in == nil {
		return t.All()
	}
	return t.endpointsOf(in)
}

// Saying returns the members that say an endpoint of the fqdn or of an instance.
func (t *Subtree) Saying(in *Instance) Members { return t.rare.shared.at(in).all }

// SayingAddress returns the members that say an endpoint with the address.
func (t *Subtree) SayingAddress(ip netip.Addr) (of Members) {
	endpoints := t.endpoints()
	for i := range endpoints {
		if own, ok := endpoints[i].Address.IP(); ok && own == ip {
			of |= t.rare.shared.points[i].Members
		}
	}
	return of
}

// Sayers returns the members that say an endpoint. Of a name that is not shared, its owner is the only
// member.
func (t *Subtree) Sayers(i uint16) Members {
	if s := t.Shared(); s != nil {
		return s.points[i].Members
	}
	return 1
}

// Priority returns that of the SRV record of an endpoint.
func (t *Subtree) Priority(i uint16) uint16 {
	if s := t.Shared(); s != nil {
		return uint16(s.points[i].Rank)
	}
	return 0
}

// Ranked returns endpoints of a shared name with the best ranks first; others as they are.
func (t *Subtree) Ranked(endpoints Selection) Selection {
	s := t.Shared()
	rank := func(i, j uint16) int { return cmp.Compare(s.points[i].Rank, s.points[j].Rank) }
	if s == nil || slices.IsSortedFunc(endpoints, rank) {
		return endpoints
	}
	endpoints = slices.Clone(endpoints)
	slices.SortStableFunc(endpoints, rank)
	return endpoints
}
