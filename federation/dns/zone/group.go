package zone

import (
	"container/heap"
	"math"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/share"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/trie"
	"github.com/hamlet-federation/coredns-federation/federation/policy/pattern"
)

// Sharing is how an owner shares names with other owners that share them too. Package share
// has the rule.
type Sharing struct {
	Names  []pattern.Name // as they are published; none: the owner shares nothing
	Tiers  []Tier         // the first that has the label of an endpoint decides; none: tier 0
	Weight int            // of SRV records, from 0 to 100, divided among the endpoints of a rank
	Demote time.Duration  // after which an owner that is lost stands behind the others; negative: never

	// All owners of a Config that share a name have the same of these.
	Min  int           // how many live endpoints are enough
	Hold time.Duration // how long it has to be better before it is followed
}

// Tier is where the endpoints with a label stand, the smallest first; an empty label is that of
// the rest.
type Tier struct {
	N     int // from 0 to MaxTier
	Label string
}

// The limits of a Sharing.
const (
	MaxTier   = share.MaxTier
	MaxWeight = 100
)

// matches reports whether the owner shares a name.
func (s *Sharing) matches(name federation.FQDN) bool {
	return slices.ContainsFunc(s.Names, func(p pattern.Name) bool { return p.Matches(name) })
}

// tier returns where an endpoint with these labels stands.
func (s *Sharing) tier(labels []string) int {
	for _, t := range s.Tiers {
		if t.Label == "" || slices.Contains(labels, t.Label) {
			return t.N
		}
	}
	return 0
}

// groups are the names that owners share. Their offers are no part of the tree: what they are
// together is, as one offer of the first of these owners.
type groups struct {
	names    map[string]*group
	members  []map[string]*precedence.Offer // by owner and name of the service
	demotion []share.Demotion               // by owner
	there    []bool                         // by owner: a catalog of it was complete since the start
	changed  map[string]bool                // names that have to be joined anew
	waiting  schedule                       // names that may have to be, though nothing happens
	demoted  time.Time                      // when an owner is demoted, or no more; zero: nothing is to be expected
	shown    *trie.Writer[common]
	differ   []Difference // that have come up since Builder.Differences

	counts []map[Standing]int // by owner: endpoints that are where, none of them 0
}

// Standing is where an endpoint of a shared name stands, as one of its owners says it.
type Standing struct {
	Tier  int
	State string // answered, as an address of the name; waiting, behind better ones; or stale
}

// common is what a version knows of a shared name beside what is in the tree. It is not for
// answers.
type common struct {
	offers []*precedence.Offer // in order of precedence
	fewer  map[string]fewer    // by label
}

// fewer is when fewer endpoints are answered if nothing happens, and how many are enough.
type fewer struct {
	at     time.Time
	wanted share.Rank
}

// group is one shared name.
type group struct {
	sharers []int               // the owners that share the name, by index
	offers  []*precedence.Offer // in order of precedence; the list is never written
	union   *union              // of those that are alive; nil: nothing is
	joined  *precedence.Offer   // that is in the tree; nil: nothing is
	levels  map[string]share.Level

	// When it has to be joined anew though nothing happens, zero for never, and its place in
	// groups.waiting until then.
	fqdn  string
	due   time.Time
	place int
}

// newGroups returns no groups, for so many owners.
func newGroups(owners int) groups {
	g := groups{
		names: make(map[string]*group), members: make([]map[string]*precedence.Offer, owners),
		demotion: make([]share.Demotion, owners), there: make([]bool, owners), counts: make([]map[Standing]int, owners), changed: make(map[string]bool), shown: trie.NewWriter[common](),
	}
	for i := range g.members {
		g.members[i] = make(map[string]*precedence.Offer)
		g.counts[i] = make(map[Standing]int)
	}
	return g
}

// share puts an offer in the place of another one of the same service, both of them at a
// shared name. Either may be nil.
func (b *Builder) share(fqdn string, old, offer *precedence.Offer) {
	g := &b.groups
	of := g.names[fqdn]
	if of == nil {
		of = &group{fqdn: fqdn, sharers: b.config.Sharers(fqdn)}
		g.names[fqdn] = of
	}
	offers := slices.Clone(of.offers)
	if old != nil {
		delete(g.members[old.Owner], old.Service.Name())
		offers = slices.DeleteFunc(offers, func(o *precedence.Offer) bool { return o == old })
		b.countSame(offers, old, -1)
	}
	if offer != nil {
		b.countSame(offers, offer, +1)
		g.members[offer.Owner][offer.Service.Name()] = offer
		at, _ := slices.BinarySearchFunc(offers, offer, precedence.Compare)
		offers = slices.Insert(offers, at, offer)
	}
	of.offers = offers
	g.changed[fqdn] = true
}

// countSame counts, n times, that one of several services of one owner has the name.
func (b *Builder) countSame(offers []*precedence.Offer, of *precedence.Offer, n int) {
	if slices.ContainsFunc(offers, func(o *precedence.Offer) bool { return o.Owner == of.Owner }) {
		b.tree.Fault(int(of.Owner), precedence.FaultFQDN, n)
	}
}

// touch has all names joined anew that an owner shares.
func (g *groups) touch(owner int) {
	for _, o := range g.members[owner] {
		g.changed[o.FQDN()] = true
	}
}

// join brings the shared names up to date.
func (b *Builder) join(now time.Time) {
	g := &b.groups
	back := make(map[uint32]bool) // owners that are not demoted any more, or come for the first time
	g.demoted = time.Time{}
	for i := range b.config.Owners {
		s, v := &b.config.Owners[i].Sharing, &b.owners[i].view
		if len(s.Names) == 0 {
			continue
		}
		was, hold, first := g.demotion[i], s.Hold, b.expects(i, now)
		if first {
			hold = 0
		}
		next, due := was.Next(v.Lost, now, s.Demote, hold)
		if next.Demoted != was.Demoted {
			g.touch(i)
		}
		g.there[i] = g.there[i] || v.Known && v.Lost.IsZero()
		back[uint32(i)] = was.Demoted && !next.Demoted || first && g.there[i]
		g.demotion[i], g.demoted, v.back = next, soonest(g.demoted, due), time.Time{}
		if next.Demoted {
			v.back = due
		}
	}
	for len(g.waiting) > 0 && !now.Before(g.waiting[0].due) {
		g.changed[g.waiting[0].fqdn] = true
		g.waiting.set(g.waiting[0], time.Time{})
	}
	for fqdn := range g.changed {
		b.joinName(fqdn, back, now)
	}
	g.changed = make(map[string]bool) // clear takes as long as for the most names it ever held
}

// joinName joins what the owners offer at one name and is alive, and puts it into the tree. While
// one of them is back, or expected, nothing is held.
func (b *Builder) joinName(fqdn string, back map[uint32]bool, now time.Time) {
	g := b.groups.names[fqdn]
	old, held := g.joined, make(map[string]fewer)
	alive, due := b.alive(g.offers, now)
	if !g.union.is(alive) {
		before := g.union
		g.union = b.unite(fqdn, alive)
		b.compare(before, g.union)
	}
	if g.joined = nil; g.union == nil {
		g.levels = nil
	} else {
		hold := b.config.Owners[alive[0].Owner].Sharing.Hold
		if slices.ContainsFunc(g.sharers, func(i int) bool { return b.expects(i, now) }) || slices.ContainsFunc(alive, func(o *precedence.Offer) bool { return back[o.Owner] }) {
			hold = 0
		}
		g.joined = b.rank(g, alive, old, hold, now)
		for label, l := range g.levels {
			if at := l.Due(hold); !at.IsZero() {
				due, held[label] = soonest(due, at), fewer{at, l.Wanted()}
			}
		}
	}
	b.groups.waiting.set(g, due)
	if old != g.joined {
		b.countShared(old, -1)
		b.countShared(g.joined, +1)
		b.replace(fqdn, old, g.joined)
	}
	b.changed = true
	if len(g.offers) == 0 {
		delete(b.groups.names, fqdn)
		b.groups.shown.Delete(fqdn)
		return
	}
	b.groups.shown.Set(&trie.Item[common]{Name: fqdn, Value: common{g.offers, held}})
}

// replace puts a joined offer in the place of another one. Either may be nil, and they may be of
// different services.
func (b *Builder) replace(fqdn string, old, joined *precedence.Offer) {
	if old != nil && joined != nil && (old.Owner != joined.Owner || old.Service.Name() != joined.Service.Name()) {
		b.exchange(fqdn, old, nil)
		old = nil
	}
	b.exchange(fqdn, old, joined)
}

// countShared adds the endpoints of a joined offer, which may be nil, n times.
func (b *Builder) countShared(joined *precedence.Offer, n int) {
	if joined == nil {
		return
	}
	t := &joined.Subtree
	answered, _ := t.Answered(nil)
	for _, i := range t.All() {
		p := t.Shared().Point(i)
		_, isAnswered := slices.BinarySearch(answered, i) // a Selection ascends
		for m := range p.Members.Each {
			at := Standing{p.Rank.Tier(), "waiting"}
			switch member := t.Shared().Members[m]; {
			case member.Stale:
				at.State = "stale"
			case isAnswered:
				at.State = "answered"
			}
			owner := t.Shared().Members[m].Owner
			b.tree.Recount(int(owner))
			counts := b.groups.counts[owner]
			if counts[at] += n; counts[at] == 0 {
				delete(counts, at)
			}
		}
	}
}

// Shared returns how many endpoints of shared names an owner has where. The caller must not
// change it.
func (b *Builder) Shared(owner int) map[Standing]int { return b.groups.counts[owner] }

// alive returns the first offer of each owner that has not expired, and when one of them does.
func (b *Builder) alive(offers []*precedence.Offer, now time.Time) (alive []*precedence.Offer, due time.Time) {
	for _, o := range offers {
		if n := len(alive); n > 0 && alive[n-1].Owner == o.Owner || n == subtree.MaxMembers {
			continue // of two services of one owner, that with the smaller name has the fqdn
		}
		if v := &b.owners[o.Owner].view; v.stale(o) && !v.Expires.IsZero() {
			end := v.Expires.Add(1 - time.Second) // see precedence.Life
			if !now.Before(end) {
				continue
			}
			due = soonest(due, end)
		}
		alive = append(alive, o)
	}
	return alive, due
}

// expects reports whether an owner may still come for the first time, as queries wait for it: it
// was there before the start, so what looks better with it is no change that has to be held.
func (b *Builder) expects(owner int, now time.Time) bool {
	return !b.groups.there[owner] && now.Before(b.owners[owner].Grace)
}

// rank returns the offer for the tree: the union, with what each of its endpoints is worth now.
// It is the old one if that says the same.
func (b *Builder) rank(g *group, alive []*precedence.Offer, old *precedence.Offer, hold time.Duration, now time.Time) *precedence.Offer {
	members := make([]subtree.Member, len(alive))
	for m, o := range alive {
		members[m] = subtree.Member{Owner: o.Owner, Stale: b.owners[o.Owner].stale(o)}
	}
	points := make([]subtree.Point, len(g.union.said))
	by := make([]int, len(points)) // the member whose rank counts
	type part struct {             // of a rank
		member int
		rank   share.Rank
	}
	counts := make(map[part]int)
	for i, all := range g.union.said {
		p := &points[i]
		p.Rank = share.All
		for _, s := range all {
			owner := members[s.member].Owner
			if r := share.RankOf(s.tier, b.groups.demotion[owner].Demoted, b.config.Owners[owner].Sharing.Weight == 0); r < p.Rank {
				p.Rank, by[i] = r, s.member
			}
			p.Live = p.Live || !members[s.member].Stale
			p.Members |= 1 << s.member
		}
		counts[part{by[i], p.Rank}]++
	}
	for i := range points {
		p := &points[i]
		p.Weight = share.Weight(b.config.Owners[members[by[i]].Owner].Sharing.Weight, counts[part{by[i], p.Rank}])
	}
	levels := make(map[string]share.Level)
	next := g.union.whole.Confirmed(math.MaxUint32) // its members are stale or not, and it is not
	next.Subtree.Share(members, points, func(label string, all []share.Candidate) share.Rank {
		wanted := share.Wanted(all, b.config.Owners[alive[0].Owner].Sharing.Min)
		levels[label] = g.levels[label].Next(wanted, now, hold)
		return levels[label].Rank()
	})
	g.levels = levels
	if old != nil && old.Service == next.Service && old.Subtree.Shared().Equal(next.Subtree.Shared()) {
		return old
	}
	return next
}

// soonest returns the earlier of two times, of which zero is never.
func soonest(x, y time.Time) time.Time {
	if x.IsZero() || !y.IsZero() && y.Before(x) {
		return y
	}
	return x
}

// schedule is a heap of the groups that are due, each once.
type schedule []*group

// set notes when a group is due; zero for never.
func (s *schedule) set(g *group, due time.Time) {
	known := !g.due.IsZero()
	g.due = due
	switch {
	case known && due.IsZero():
		heap.Remove(s, g.place)
	case known:
		heap.Fix(s, g.place)
	case !due.IsZero():
		heap.Push(s, g)
	}
}

// Len implements heap.Interface.
func (s schedule) Len() int { return len(s) }

// Less implements heap.Interface.
func (s schedule) Less(i, j int) bool { return s[i].due.Before(s[j].due) }

// Swap implements heap.Interface.
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].place, s[j].place = i, j
}

// Push implements heap.Interface.
func (s *schedule) Push(x any) {
	g := x.(*group) //nolint:forcetypeassert // nothing else is pushed
	g.place = len(*s)
	*s = append(*s, g)
}

// Pop implements heap.Interface.
func (s *schedule) Pop() any {
	last := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return last
}
