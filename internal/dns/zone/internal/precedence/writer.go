package precedence

import (
	"maps"
	"slices"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/trie"
)

// FaultFQDN counts offers whose fqdn belongs to another service.
const FaultFQDN = "fqdn_conflict"

// Writer keeps the offers of all owners, with counts of what is not published, and publishes versions of the
// tree. It belongs to one goroutine. It keeps all offers of a name and not only the first one, because
// another one has the name when the first one expires.
//
// A change looks at all offers of its fqdn and of the names above, one by one. An owner cannot
// make them many, because a catalog accepts packed.MaxServicesPerFQDN at one fqdn. Only those of
// fqdns that the configuration renames to one add up.
type Writer struct {
	index  *trie.Writer[Node] // with what is not yet published
	origin func(name string) string
	owners []ownerOffers
	lives  []OfferLife      // by owner; never written, because versions share it
	faults []subtree.Faults // by owner; as lives, only Publish replaces it
}

// ownerOffers counts the offers of one owner.
type ownerOffers struct {
	published map[offerCohort]int // how many offers are first at their names, none of them 0
	faults    subtree.Faults
	recounted bool // faults has changed since Publish
}

// offerCohort identifies offers of one owner that become stale, or live, together.
type offerCohort struct {
	origin     string // of the zone in which they are published
	generation uint64
}

// NewWriter returns a writer without offers, for so many owners. Origin returns the longest origin
// that has a name.
func NewWriter(owners int, origin func(name string) string) *Writer {
	w := &Writer{
		index: trie.NewWriter[Node](), origin: origin, owners: make([]ownerOffers, owners), lives: make([]OfferLife, owners), faults: make([]subtree.Faults, owners),
	}
	for i := range w.owners {
		w.owners[i].published = make(map[offerCohort]int)
	}
	return w
}

// Publish returns the version with all changes so far.
func (w *Writer) Publish() Tree {
	faults := slices.Clone(w.faults)
	for i := range w.owners {
		if o := &w.owners[i]; o.recounted {
			faults[i], o.recounted = maps.Clone(o.faults), false
		}
	}
	w.faults = faults
	return Tree{index: w.index.Publish(), lives: w.lives, faults: faults}
}

// FindOffer returns the offer of an owner at an fqdn, by the name of its service, or nil. A joined
// offer of several owners is not found.
func (w *Writer) FindOffer(owner int, fqdn, service string) *Offer {
	for o := range w.index.Get(fqdn).allOffers() {
		if o.compareWith(uint32(owner), service) == 0 && o.Subtree.SharedName() == nil { //nolint:gosec // a small index
			return o
		}
	}
	return nil
}

// CountFault adds n, which may be negative, to the owner's count of one kind.
func (w *Writer) CountFault(owner int, kind subtree.Fault, n int) {
	w.owners[owner].faults.Add(kind, n)
	w.owners[owner].recounted = true
}

// SetLife sets how long the offers of an owner last. It returns the origins in which published
// offers become stale or live.
func (w *Writer) SetLife(owner int, l OfferLife) (origins []string) {
	was := w.lives[owner]
	for c := range w.owners[owner].published {
		if (c.generation < was.Live) != (c.generation < l.Live) && !slices.Contains(origins, c.origin) {
			origins = append(origins, c.origin)
		}
	}
	w.lives = slices.Clone(w.lives)
	w.lives[owner] = l
	return origins
}

// ExchangeOffer replaces an offer by another one of the same service at the fqdn. Either may be
// nil. It reports whether the answers of the zone change.
func (w *Writer) ExchangeOffer(fqdn string, old, offer *Offer) bool {
	n, origin := w.index.Get(fqdn), w.origin(fqdn)
	before := n
	first, others := exchangedOffers(n, old, offer)
	// Mostly a service changes and stays where it is. Other offers of the name are
	// examined only when the owners of the name may have changed.
	sameOwners := old != nil && offer != nil
	claim := uint32(0)
	if sameOwners {
		claim = n.extrasOrNone().claim
	} else {
		w.countNode(fqdn, origin, n, -1)
	}
	if old != nil {
		w.countOffer(old, -1)
	}
	if !sameOwners && first != nil {
		claim = w.claimMark(fqdn, origin)
	}
	n = w.assignOffers(fqdn, origin, n, first, others, claim)
	if offer != nil {
		w.countOffer(offer, +1)
	}
	if !sameOwners {
		w.countNode(fqdn, origin, n, +1)
	}
	w.markClaims(n, origin, old, offer)
	was := before.firstOffer()
	w.countPublished(origin, was, -1)
	w.countPublished(origin, first, +1)
	if len(others) > 0 || was != nil && len(before.otherOffers()) > 0 {
		// All offers but the first are not published.
		w.countFQDN(offer, +1)
		w.countFQDN(first, -1)
		w.countFQDN(old, -1)
		w.countFQDN(was, +1)
	}
	return !w.sameAnswers(was, first)
}

// countPublished adds n to the count of offers that are first at their names in a zone. The offer
// may be nil.
func (w *Writer) countPublished(origin string, o *Offer, n int) {
	if o == nil {
		return
	}
	counts, c := w.owners[o.Owner].published, offerCohort{origin, uint64(o.Generation)}
	if counts[c] += n; counts[c] == 0 {
		delete(counts, c)
	}
}

// countFQDN adds n to the FaultFQDN of the owner of an offer, which may be nil.
func (w *Writer) countFQDN(o *Offer, n int) {
	if o != nil {
		w.CountFault(int(o.Owner), FaultFQDN, n)
	}
}

// exchangedOffers returns the offers at a node after one was replaced by another.
func exchangedOffers(n *Node, old, offer *Offer) (first *Offer, others []*Offer) {
	if first = n.firstOffer(); first != nil {
		others = n.otherOffers()
	}
	switch {
	case old == nil:
	case old != first:
		others = slices.DeleteFunc(slices.Clone(others), func(o *Offer) bool { return o == old })
	case len(others) == 0:
		first = nil
	default:
		first, others = others[0], slices.Clone(others[1:]) // a copy, which does not keep the first in memory
	}
	switch {
	case offer == nil:
	case first == nil:
		first = offer
	case CompareOffers(offer, first) < 0:
		first, others = offer, slices.Concat([]*Offer{first}, others)
	default:
		at, _ := slices.BinarySearchFunc(others, offer, CompareOffers)
		others = slices.Concat(others[:at], []*Offer{offer}, others[at:])
	}
	return first, others
}

// sameAnswers reports whether two offers, which may be nil, have the same answers.
func (w *Writer) sameAnswers(x, y *Offer) bool {
	if !sameService(x, y) {
		return false
	}
	return x == nil || w.lives[x.Owner].isStale(x) == w.lives[x.Owner].isStale(y)
}

// sameService reports whether two offers, which may be nil, have the same answers except for the
// TTL.
func sameService(x, y *Offer) bool {
	if x == nil || y == nil {
		return x == y
	}
	return x.Owner == y.Owner && x.Service == y.Service && x.Subtree.SharedName() == y.Subtree.SharedName()
}

// assignOffers gives these offers and the claim to a name, which has the node n or is new. It
// returns the new node, or nil when there is none.
func (w *Writer) assignOffers(name, origin string, n *Node, first *Offer, others []*Offer, claim uint32) *Node {
	children := uint32(0)
	if n == nil {
		w.LinkParents(name, origin)
	} else {
		children = n.extrasOrNone().children
	}
	var at *nodeItem
	switch {
	case first != nil && len(others) == 0 && children == 0 && claim == 0:
		at = &first.home
	case first != nil:
		m := &nodeExtras{children: children, claim: claim}
		if len(others) > 0 {
			m.others = new(others)
		}
		at = &nodeItem{Name: name, Value: Node{first, m}}
	case children > 0:
		at = &nodeItem{Name: name, Value: Node{more: &nodeExtras{children: children}}}
	default:
		w.index.Delete(name)
		w.unlinkParents(name, origin)
		return nil
	}
	w.index.Set(at)
	return &at.Value
}

// LinkParents makes nodes for the names above a name, up to the origin (RFC 8020). It is called
// once for a new name.
func (w *Writer) LinkParents(name, origin string) {
	for name != origin {
		name = domain.Parent(name)
		n := w.index.Get(name)
		if n != nil {
			w.index.Set(&nodeItem{Name: name, Value: n.withChildren(n.extrasOrNone().children + 1)})
			return
		}
		w.index.Set(&nodeItem{Name: name, Value: Node{more: &nodeExtras{children: 1}}})
	}
}

// withChildren returns the node with so many nodes one label below.
func (n *Node) withChildren(children uint32) Node {
	m := *n.extrasOrNone()
	m.children = children
	return Node{n.first, &m}
}

// unlinkParents takes back LinkParents, for a node that was deleted.
func (w *Writer) unlinkParents(name, origin string) {
	for name != origin {
		name = domain.Parent(name)
		n := w.index.Get(name)
		if n.extrasOrNone().children > 1 || n.first != nil {
			w.index.Set(&nodeItem{Name: name, Value: n.withChildren(n.extrasOrNone().children - 1)})
			return
		}
		w.index.Delete(name)
	}
}
