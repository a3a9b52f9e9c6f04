package zone

import (
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/precedence"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/trie"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
)

// Sharing says how an owner shares names with other owners that share them too. The answer for such
// a name follows from what these owners publish, and from which of them are lost.
type Sharing struct {
	Names []pattern.Name // as they are published; none: the owner shares nothing
	Tiers []TierRule     // the first rule with a label of the endpoint decides; none: tier 0
	Min   int            // how many live endpoints are enough; the same for all owners of a Config that share a name
}

// TierRule gives a tier to the endpoints with a label. The smallest tier comes first; an empty
// label is for all other endpoints.
type TierRule struct {
	N     int // from 0 to MaxTier
	Label string
}

// MaxTier is the last tier.
const MaxTier = subtree.MaxTier

// matchesName reports whether the owner shares a name.
func (s *Sharing) matchesName(name federation.FQDN) bool {
	return slices.ContainsFunc(s.Names, func(p pattern.Name) bool { return p.Matches(name) })
}

// SharesName reports whether the owner at index i shares the name under which it publishes an fqdn.
func (c *Config) SharesName(i int, fqdn federation.FQDN) bool {
	sharing := &c.Owners[i].Sharing
	if len(sharing.Names) == 0 {
		return false // as mostly
	}
	name, imported, invalid := c.JudgeFQDN(i, fqdn)
	return imported && invalid == nil && sharing.matchesName(name)
}

// sharedNames keeps the names that owners share, with the offers of each owner. These offers are
// not in the tree: a joined offer is, in the place of the first owner. Put and Remove change the
// offers and note the name in changed; joinChanged makes the joined offers anew before a version is
// published. A change costs in proportion to the owners of the name, whatever they publish. Only
// subtree.MaxMembers owners are joined.
type sharedNames struct {
	names   *trie.Writer[sharedName]
	offers  []int           // by owner: how many offers it has here
	expired []bool          // by owner: its stale offers are gone
	changed map[string]bool // names that have to be joined anew, among them all that are not published yet
}

// sharedName is one shared name. It is immutable.
type sharedName struct {
	offers []*precedence.Offer // in order of precedence
	joined *precedence.Offer   // the offer in the tree, or nil
}

// newGroups returns sharedNames without names, for so many owners.
func newGroups(owners int) sharedNames {
	return sharedNames{names: trie.NewWriter[sharedName](), offers: make([]int, owners), expired: make([]bool, owners), changed: make(map[string]bool)}
}

// findOffers returns the offers of a name, and which of them are of an owner: those from begin to
// end.
func (g *sharedNames) findOffers(fqdn string, owner uint32) (of sharedName, begin, end int) {
	if known := g.names.Get(fqdn); known != nil {
		of = *known
	}
	begin, end = ofOwner(of.offers, owner)
	return of, begin, end
}

// ofOwner returns which offers are of an owner: those from begin to end.
func ofOwner(offers []*precedence.Offer, owner uint32) (begin, end int) {
	byOwner := func(o *precedence.Offer, owner uint32) int { return int(o.Owner) - int(owner) }
	begin, _ = slices.BinarySearchFunc(offers, owner, byOwner)
	end, _ = slices.BinarySearchFunc(offers, owner+1, byOwner)
	return begin, end
}

// findOffer returns the offer of an owner at a shared name, by the name of its service, or nil.
func (g *sharedNames) findOffer(owner int, fqdn, service string) *precedence.Offer {
	if g.offers[owner] == 0 {
		return nil
	}
	of, begin, end := g.findOffers(fqdn, uint32(owner)) //nolint:gosec // a small index
	own := of.offers[begin:end]
	i, found := slices.BinarySearchFunc(own, service, func(o *precedence.Offer, name string) int { return strings.Compare(o.Service.Name(), name) })
	if !found {
		return nil
	}
	return own[i]
}

// shareOffer replaces an offer at a shared name by another one of the same service. Either may be
// nil.
func (b *Builder) shareOffer(fqdn string, old, offer *precedence.Offer) {
	g, owner, change := &b.groups, offer, 0
	if old == nil {
		change++
	}
	if offer == nil {
		change, owner = change-1, old
	}
	of, begin, end := g.findOffers(fqdn, owner.Owner)
	offers, n := slices.Clone(of.offers), end-begin
	g.offers[owner.Owner] += change
	b.tree.CountFault(int(owner.Owner), precedence.FaultFQDN, max(n+change-1, 0)-max(n-1, 0)) // of several services of one owner, one has the name
	if old != nil {
		i, _ := slices.BinarySearchFunc(offers, old, precedence.CompareOffers)
		offers = slices.Delete(offers, i, i+1)
	}
	if offer != nil {
		i, _ := slices.BinarySearchFunc(offers, offer, precedence.CompareOffers)
		offers = slices.Insert(offers, i, offer)
	}
	of.offers = offers
	g.names.Set(&trie.Item[sharedName]{Name: fqdn, Value: of})
	g.changed[fqdn] = true
}

// endpointTier returns the tier of an endpoint of an owner, which has these labels.
func (b *Builder) endpointTier(owner uint32, labels []string) int {
	for _, t := range b.config.Owners[owner].Sharing.Tiers {
		if t.Label == "" || slices.Contains(labels, t.Label) {
			return t.N
		}
	}
	return 0
}

// markShared notes that all names that an owner shares have to be joined anew.
func (b *Builder) markShared(owner int) {
	if b.groups.offers[owner] == 0 || b.current == nil {
		return // names that are not published yet are in changed already
	}
	for at := range b.current.shared.All() {
		if begin, end := ofOwner(at.Value.offers, uint32(owner)); begin < end { //nolint:gosec // a small index
			b.groups.changed[at.Name] = true
		}
	}
}

// joinChanged brings the shared names up to date at now.
func (b *Builder) joinChanged(now time.Time) {
	g := &b.groups
	for i := range b.owners {
		life := precedence.OfferLife{Expires: b.owners[i].Expires}
		if expired := life.HasExpired(now); expired != g.expired[i] {
			g.expired[i] = expired
			b.markShared(i)
		}
	}
	for fqdn := range g.changed {
		b.joinName(fqdn)
	}
	g.changed = make(map[string]bool) // clear takes as long as for the most names it ever held
}

// joinName joins the offers at one name that have not expired, and puts the result into the tree.
func (b *Builder) joinName(fqdn string) {
	g := *b.groups.names.Get(fqdn)
	members, updated := b.currentMembers(g.offers)
	before := g
	var were []subtree.Member
	if g.joined != nil {
		were = g.joined.Subtree.SharedName().Members
	}
	if !slices.EqualFunc(were, members, subtree.Member.Equal) {
		if g.joined = nil; len(members) > 0 {
			g.joined = precedence.ShareOffer(fqdn, members, b.config.Owners[members[0].Owner].Sharing.Min, b.endpointTier, updated)
		}
		b.replaceJoined(fqdn, before.joined, g.joined)
	}
	b.changed = true
	if len(g.offers) == 0 {
		b.groups.names.Delete(fqdn)
		return
	}
	b.groups.names.Set(&trie.Item[sharedName]{Name: fqdn, Value: g})
}

// replaceJoined replaces a joined offer in the tree. Either may be nil, and their first owners may
// differ.
func (b *Builder) replaceJoined(fqdn string, old, joined *precedence.Offer) {
	if old != nil && joined != nil && old.Owner != joined.Owner {
		b.exchangeOffer(fqdn, old, nil)
		old = nil
	}
	b.exchangeOffer(fqdn, old, joined)
}

// currentMembers returns a member for the first offer of each owner that has not expired, and when
// the newest of them came.
func (b *Builder) currentMembers(offers []*precedence.Offer) (members []subtree.Member, updated uint32) {
	for len(offers) > 0 && len(members) < subtree.MaxMembers {
		v := &b.owners[offers[0].Owner]
		_, end := ofOwner(offers, offers[0].Owner)
		// Of several services of one owner, that with the smallest name has the fqdn.
		i := slices.IndexFunc(offers[:end], func(o *precedence.Offer) bool { return !v.isStale(o) || !b.groups.expired[o.Owner] })
		if i >= 0 {
			o := offers[i]
			members = append(members, subtree.Member{Owner: o.Owner, Stale: v.isStale(o), Tree: &o.Subtree, Service: o.Service})
			updated = max(updated, o.Updated)
		}
		offers = offers[end:]
	}
	return members, updated
}
