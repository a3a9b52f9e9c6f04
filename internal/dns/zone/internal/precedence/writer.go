package precedence

import (
	"slices"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/trie"
)

// FaultFQDN counts offers whose fqdn another service has.
const FaultFQDN = subtree.Fault("fqdn_conflict")

// Writer holds the offers of all owners and publishes who has which name. It
// belongs to one goroutine.
//
// A change looks at all offers of its fqdn and of the names above, one by one. An owner cannot
// make them many, as a catalog takes packed.MaxServicesPerFQDN of one fqdn. Those of fqdns that
// the configuration renames to one add up.
type Writer struct {
	index  *trie.Writer[Node] // with what is not yet published
	origin func(name string) string
	owners []ownerOffers
	lives  []OfferLife // by owner; a version has it, so it is never written
}

// ownerOffers is what one of them offers.
type ownerOffers struct {
	published map[offerCohort]int // how many offers are first at their names, none of them 0
	faults    subtree.Faults
	recounted bool // since RecountedOwners
}

// offerCohort are offers of one owner that become stale, and live, together.
type offerCohort struct {
	origin     string // of the zone in which they are published
	generation uint64
}

// NewWriter returns a writer without offers, for so many owners. Origin returns
// the longest origin of the zones that a name is in.
func NewWriter(owners int, origin func(name string) string) *Writer {
	w := &Writer{
		index: trie.NewWriter[Node](), origin: origin, owners: make([]ownerOffers, owners), lives: make([]OfferLife, owners),
	}
	for i := range w.owners {
		w.owners[i].published = make(map[offerCohort]int)
	}
	return w
}

// Publish returns the version with all changes so far.
func (w *Writer) Publish() Tree {
	return Tree{index: w.index.Publish(), lives: w.lives}
}

// FindOffer returns what an owner offers at an fqdn under the name of a service, or nil. What
// several owners share is nobody's.
func (w *Writer) FindOffer(owner int, fqdn, service string) *Offer {
	for o := range w.index.Get(fqdn).allOffers() {
		if o.compareWith(uint32(owner), service) == 0 && o.Subtree.SharedName() == nil { //nolint:gosec // a small index
			return o
		}
	}
	return nil
}

// OwnerFaults counts what the owner offers and what is not published. The caller must
// not change it.
func (w *Writer) OwnerFaults(owner int) subtree.Faults { return w.owners[owner].faults }

// CountFault adds n, which may be negative, to the count of one kind.
func (w *Writer) CountFault(owner int, kind subtree.Fault, n int) {
	w.owners[owner].faults.Add(kind, n)
	w.owners[owner].recounted = true
}

// RecountedOwners returns the owners of which something was counted since the last call.
func (w *Writer) RecountedOwners() (owners []int) {
	for i := range w.owners {
		if w.owners[i].recounted {
			w.owners[i].recounted = false
			owners = append(owners, i)
		}
	}
	return owners
}

// SetLife sets how long the offers of an owner last. It returns the origins of the zones in which
// some that are published become stale or live.
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

// ExchangeOffer puts an offer in the place of another one of the same service, both of
// them at the fqdn. Either may be nil. It reports whether the answers of the zone
// change.
func (w *Writer) ExchangeOffer(fqdn string, old, offer *Offer) bool {
	n, origin := w.index.Get(fqdn), w.origin(fqdn)
	before := n
	first, others := exchangedOffers(n, old, offer)
	// Mostly a service changes that stays where it is. Who else wants the name is
	// looked at only when that may have changed.
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

// countPublished adds n to the offers that are first at their names in a zone: one, which may be
// nil.
func (w *Writer) countPublished(origin string, o *Offer, n int) {
	if o == nil {
		return
	}
	counts, c := w.owners[o.Owner].published, offerCohort{origin, uint64(o.Generation)}
	if counts[c] += n; counts[c] == 0 {
		delete(counts, c)
	}
}

// countFQDN adds n to what the owner of an offer, which may be nil, has not published
// because others have the fqdn.
func (w *Writer) countFQDN(o *Offer, n int) {
	if o != nil {
		w.CountFault(int(o.Owner), FaultFQDN, n)
	}
}

// exchangedOffers returns the offers at a node with one in the place of another.
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
		first, others = others[0], slices.Clone(others[1:]) // in memory that does not keep the first
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

// sameAnswers reports whether two offers, which may be nil, are answered alike.
func (w *Writer) sameAnswers(x, y *Offer) bool {
	if !sameService(x, y) {
		return false
	}
	return x == nil || w.lives[x.Owner].isStale(x) == w.lives[x.Owner].isStale(y)
}

// sameService reports whether two offers, which may be nil, are answered alike but for their TTL.
func sameService(x, y *Offer) bool {
	if x == nil || y == nil {
		return x == y
	}
	return x.Owner == y.Owner && x.Service == y.Service && x.Subtree.SharedName() == y.Subtree.SharedName()
}

// assignOffers gives a name, which has the node n or is new, these offers and the
// claim. It returns the new node, or nil when there is none.
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

// LinkParents makes the names above a name exist, up to the origin (RFC 8020). It is
// called once for a name that is new.
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

// unlinkParents is the reverse of LinkParents, for a node that was deleted.
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
