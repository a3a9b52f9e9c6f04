package zone

import (
	"math"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/trie"
	"github.com/hamlet-federation/coredns-federation/federation/policy/pattern"
)

// Sharing is how an owner shares names with other owners that share them too. What such a name is
// answered with is a function of what they say, and of which of them are lost.
type Sharing struct {
	Names []pattern.Name // as they are published; none: the owner shares nothing
	Tiers []Tier         // the first that has the label of an endpoint decides; none: tier 0
	Min   int            // how many live endpoints are enough; the same for all owners of a Config that share a name
}

// Tier is where the endpoints with a label stand, the smallest first; an empty label is that of
// the rest.
type Tier struct {
	N     int // from 0 to MaxTier
	Label string
}

// MaxTier is the last tier.
const MaxTier = subtree.MaxTier

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
	names   map[string]*group
	members []map[string]*precedence.Offer // by owner and name of the service
	expired []bool                         // by owner: what is stale of it is gone
	changed map[string]bool                // names that have to be joined anew
	shown   *trie.Writer[[]*precedence.Offer]
	differ  []Difference // that have come up since Builder.Differences

	counts []map[Standing]int // by owner: endpoints that are where, none of them 0
}

// Standing is where an endpoint of a shared name stands, as one of its owners says it.
type Standing struct {
	Tier  int
	State string // answered, as an address of the name; waiting, behind better ones; or stale
}

// group is one shared name.
type group struct {
	offers []*precedence.Offer // in order of precedence; the list is never written
	union  *union              // of those that are alive; nil: nothing is
	joined *precedence.Offer   // that is in the tree; nil: nothing is
}

// newGroups returns no groups, for so many owners.
func newGroups(owners int) groups {
	g := groups{
		names: make(map[string]*group), members: make([]map[string]*precedence.Offer, owners),
		expired: make([]bool, owners), counts: make([]map[Standing]int, owners), changed: make(map[string]bool), shown: trie.NewWriter[[]*precedence.Offer](),
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
		of = new(group)
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
	for i := range b.owners {
		life := precedence.Life{Expires: b.owners[i].Expires}
		if expired := life.Gone(now); expired != g.expired[i] {
			g.expired[i] = expired
			g.touch(i)
		}
	}
	for fqdn := range g.changed {
		b.joinName(fqdn)
	}
	g.changed = make(map[string]bool) // clear takes as long as for the most names it ever held
}

// joinName joins what the owners offer at one name and is alive, and puts it into the tree.
func (b *Builder) joinName(fqdn string) {
	g := b.groups.names[fqdn]
	old, alive := g.joined, b.alive(g.offers)
	if !g.union.is(alive) {
		before := g.union
		g.union = b.unite(fqdn, alive)
		b.compare(before, g.union)
	}
	if g.joined = nil; g.union != nil {
		g.joined = b.rank(g.union, alive, old)
	}
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
	b.groups.shown.Set(&trie.Item[[]*precedence.Offer]{Name: fqdn, Value: g.offers})
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

// alive returns the first offer of each owner that has not expired.
func (b *Builder) alive(offers []*precedence.Offer) (alive []*precedence.Offer) {
	for _, o := range offers {
		switch n := len(alive); {
		case n > 0 && alive[n-1].Owner == o.Owner, n == subtree.MaxMembers: // of two services of one owner, that with the smaller name has the fqdn
		case b.groups.expired[o.Owner] && b.owners[o.Owner].stale(o):
		default:
			alive = append(alive, o)
		}
	}
	return alive
}

// rank returns the offer for the tree: the union, with what each of its endpoints is worth. It is
// the old one if that says the same.
func (b *Builder) rank(u *union, alive []*precedence.Offer, old *precedence.Offer) *precedence.Offer {
	members := make([]subtree.Member, len(alive))
	for m, o := range alive {
		members[m] = subtree.Member{Owner: o.Owner, Stale: b.owners[o.Owner].stale(o)}
	}
	points := make([]subtree.Point, len(u.said))
	for i, all := range u.said {
		p := &points[i]
		p.Rank = subtree.RankOf(MaxTier, true)
		for _, s := range all {
			p.Rank = min(p.Rank, subtree.RankOf(s.tier, members[s.member].Stale))
			p.Members |= 1 << s.member
		}
	}
	next := u.whole.Confirmed(math.MaxUint32) // its members are stale or not, and it is not
	next.Subtree.Share(members, points, b.config.Owners[alive[0].Owner].Sharing.Min)
	if old != nil && old.Service == next.Service && old.Subtree.Shared().Equal(next.Subtree.Shared()) {
		return old
	}
	return next
}
