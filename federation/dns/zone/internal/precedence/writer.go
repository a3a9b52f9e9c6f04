package precedence

import (
	"hash/maphash"
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/trie"
)

// FaultFQDN counts offers whose fqdn another service has.
const FaultFQDN = subtree.Fault("fqdn_conflict")

// Writer holds the offers of all owners and publishes who has which name. It
// belongs to one goroutine.
type Writer struct {
	index  *trie.Writer[Node] // with what is not yet published
	origin func(name string) string
	owners []owner
	lives  []Life // by owner; a version has it, so it is never written
	seed   maphash.Seed
	crowds map[string]crowd // by fqdn
}

// owner is what one of them offers.
type owner struct {
	offers map[string]*Offer // by name of the service, published or not
	faults subtree.Faults
}

// NewWriter returns a writer without offers, for so many owners. Origin returns
// the longest origin of the zones that a name is in.
func NewWriter(owners int, origin func(name string) string) *Writer {
	w := &Writer{
		index: trie.NewWriter[Node](), origin: origin, owners: make([]owner, owners), lives: make([]Life, owners),
		seed: maphash.MakeSeed(), crowds: make(map[string]crowd),
	}
	for i := range w.owners {
		w.owners[i].offers = make(map[string]*Offer)
	}
	return w
}

// Publish returns the version with all changes so far.
func (w *Writer) Publish() Tree {
	return Tree{index: w.index.Publish(), lives: w.lives}
}

// Offer returns what an owner offers under the name of a service, or nil.
func (w *Writer) Offer(owner int, service string) *Offer { return w.owners[owner].offers[service] }

// Faults counts what the owner offers and what is not published. The caller must
// not change it.
func (w *Writer) Faults(owner int) subtree.Faults { return w.owners[owner].faults }

// Fault adds n, which may be negative, to the count of one kind.
func (w *Writer) Fault(owner int, kind subtree.Fault, n int) { w.owners[owner].faults.Add(kind, n) }

// SetLife sets how long the offers of an owner last. It calls changed, unless
// that is nil, with the fqdn of each published service that becomes stale or live,
// until it returns false.
func (w *Writer) SetLife(owner int, l Life, changed func(fqdn string) bool) {
	was := w.lives[owner]
	for _, o := range w.owners[owner].offers {
		if changed == nil || was.Live == l.Live {
			break
		}
		if (o.Generation() < was.Live) != (o.Generation() < l.Live) && w.index.Get(o.FQDN()).first == o && !changed(o.FQDN()) {
			break
		}
	}
	w.lives = slices.Clone(w.lives)
	w.lives[owner] = l
}

// Exchange puts an offer in the place of another one of the same service, both of
// them at the fqdn. Either may be nil. It reports whether the answers of the zone
// change. What it costs grows with the logarithm of how many offers there are.
func (w *Writer) Exchange(fqdn string, old, offer *Offer) bool {
	n, origin := w.index.Get(fqdn), w.origin(fqdn)
	before := n
	first, others := w.exchanged(n, old, offer)
	// Mostly a service changes that stays where it is. Who else wants the name is
	// looked at only when that may have changed.
	sameOwners := old != nil && offer != nil
	claim := uint32(0)
	if sameOwners {
		claim = n.claim()
	} else {
		w.countNode(fqdn, origin, n, -1)
	}
	if old != nil {
		w.countOffer(old, n, -1)
		w.own(old, nil)
	}
	if !sameOwners && first != nil {
		claim = w.claim(fqdn, origin)
	}
	n = w.assign(fqdn, origin, n, first, others, claim)
	w.recount(fqdn, first, others, old, offer)
	if offer != nil {
		w.countOffer(offer, n, +1)
		w.own(offer, offer)
	}
	if !sameOwners {
		w.countNode(fqdn, origin, n, +1)
	}
	w.reclaim(n, origin, old, offer)
	was := before.leader()
	if others != nil || was != nil && before.rest() != nil {
		// All offers but the first are not published.
		w.countFQDN(offer, +1)
		w.countFQDN(first, -1)
		w.countFQDN(old, -1)
		w.countFQDN(was, +1)
	}
	return !w.same(was, first)
}

// own notes what the owner of an offer has under the name of its service from now on; nil is
// nothing. What several owners share is nobody's.
func (w *Writer) own(of, now *Offer) {
	offers, name := w.owners[of.Owner].offers, of.Service.Name()
	switch {
	case of.Subtree.Shared() != nil:
	case now == nil:
		delete(offers, name)
	default:
		offers[name] = now
	}
}

// countFQDN adds n to what the owner of an offer, which may be nil, has not published
// because others have the fqdn.
func (w *Writer) countFQDN(o *Offer, n int) {
	if o != nil {
		w.Fault(int(o.Owner), FaultFQDN, n)
	}
}

// exchanged returns the offers at a node with one in the place of another.
func (w *Writer) exchanged(n *Node, old, offer *Offer) (first *Offer, others *ranking) {
	if first = n.leader(); first != nil {
		others = n.rest()
	}
	switch {
	case old == nil:
	case old != first:
		others = others.without(old)
	case others == nil:
		first = nil
	default:
		first = others.first()
		others = others.without(first)
	}
	switch {
	case offer == nil:
	case first == nil:
		first = offer
	case Compare(offer, first) < 0:
		first, others = offer, others.with(first, w.seed)
	default:
		others = others.with(offer, w.seed)
	}
	return first, others
}

// same reports whether two offers, which may be nil, are answered alike.
func (w *Writer) same(x, y *Offer) bool {
	if x == nil || y == nil {
		return x == y
	}
	live := w.lives[x.Owner].Live
	return x.Owner == y.Owner && x.Service == y.Service && x.Subtree.Shared() == y.Subtree.Shared() && (x.Generation() < live) == (y.Generation() < live)
}

// assign gives a name, which has the node n or is new, these offers and the
// claim. It returns the new node, or nil when there is none.
func (w *Writer) assign(name, origin string, n *Node, first *Offer, others *ranking, claim uint32) *Node {
	children := uint32(0)
	if n == nil {
		w.Link(name, origin)
	} else {
		children = n.children()
	}
	var at *item
	switch {
	case first != nil && others == nil && children == 0 && claim == 0:
		at = &first.home
	case first != nil:
		at = &item{Name: name, Value: Node{first, &more{others, children, claim}}}
	case children > 0:
		at = &item{Name: name, Value: Node{more: &more{children: children}}}
	default:
		w.index.Delete(name)
		w.unlink(name, origin)
		return nil
	}
	w.index.Set(at)
	return &at.Value
}

// Link makes the names above a name exist, up to the origin (RFC 8020). It is
// called once for a name that is new.
func (w *Writer) Link(name, origin string) {
	for name != origin {
		name = domain.Parent(name)
		n := w.index.Get(name)
		if n != nil {
			w.index.Set(&item{Name: name, Value: n.withChildren(n.children() + 1)})
			return
		}
		w.index.Set(&item{Name: name, Value: Node{more: &more{children: 1}}})
	}
}

// withChildren returns the node with so many nodes one label below.
func (n *Node) withChildren(children uint32) Node {
	m := more{children: children}
	if n.more != nil {
		m.others, m.claim = n.more.others, n.more.claim
	}
	return Node{n.first, &m}
}

// unlink is the reverse of Link, for a node that was deleted.
func (w *Writer) unlink(name, origin string) {
	for name != origin {
		name = domain.Parent(name)
		n := w.index.Get(name)
		if n.children() > 1 || n.first != nil {
			w.index.Set(&item{Name: name, Value: n.withChildren(n.children() - 1)})
			return
		}
		w.index.Delete(name)
	}
}
