package precedence

import (
	"iter"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
)

// claimMark returns the mark of a node for the services above that have its name, alive or not,
// published or not. A lookup examines these services where there is a mark.
func (w *Writer) claimMark(name, origin string) uint32 {
	claim := uint32(0)
	for above, labels := range w.offersAbove(name, origin) {
		if above.Subtree.HasLabels(labels) && (claim == 0 || above.Owner < claim) {
			claim = above.Owner + 1
		}
	}
	return claim
}

// offersAbove returns the offers above a name, alive or not, published or not, each with the labels
// of the name in front of its fqdn.
func (w *Writer) offersAbove(name, origin string) iter.Seq2[*Offer, string] {
	return func(yield func(*Offer, string) bool) {
		for up := name; up != origin; {
			up = domain.Parent(up)
			for o := range w.index.Get(up).allOffers() {
				if !yield(o, domain.RelativeLabels(name, up)) {
					return
				}
			}
		}
	}
}

// markClaims sets the marks of those nodes below n whose names the services had or have beside
// their fqdn. Either service may be nil.
func (w *Writer) markClaims(n *Node, origin string, services ...*Offer) {
	if !n.HasNodesBelow() {
		return // nothing is below, as mostly
	}
	for _, o := range services {
		if o == nil {
			continue
		}
		for labels := range o.Subtree.ClaimedLabels() {
			name := domain.JoinLabels(labels, o.FQDN())
			at := w.index.Get(name)
			if at == nil || at.first == nil || w.origin(name) != origin {
				continue
			}
			if claim := w.claimMark(name, origin); claim != at.extrasOrNone().claim {
				w.countNode(name, origin, at, -1)
				w.countNode(name, origin, w.assignOffers(name, origin, at, at.first, at.otherOffers(), claim), +1)
			}
		}
	}
}

// countOffer adds n times what an offer leaves unpublished to the faults.
func (w *Writer) countOffer(o *Offer, n int) {
	o.eachFault(w.index.Get, func(owner uint32, kind subtree.Fault, k int) { w.CountFault(int(owner), kind, n*k) })
}

// eachFault calls tell for what an offer leaves unpublished by itself, and for those of its
// instances whose names are taken. Node returns the node of a name.
func (o *Offer) eachFault(node func(name string) *Node, tell func(owner uint32, kind subtree.Fault, n int)) {
	above := node(o.FQDN()).HasNodesBelow()
	for owner, t := range o.OwnerTrees() {
		for kind, n := range t.Faults() {
			tell(owner, kind, n)
		}
		if !above {
			continue // as mostly
		}
		instances := t.Instances()
		for i := range instances {
			if node(domain.JoinLabels(instances[i].Label, o.FQDN())).isTaken(o) {
				tell(owner, subtree.FaultInstanceName, 1)
			}
		}
	}
}

// countNode adds n times what is unpublished because of the first offer at a node: that offer
// itself when an earlier owner has the name already, and the instances of services above that have
// lost their name.
func (w *Writer) countNode(name, origin string, at *Node, n int) {
	if at == nil || at.first == nil {
		return
	}
	if at.mayBeClaimed(at.first) {
		w.CountFault(int(at.first.Owner), subtree.FaultInstanceName, n)
	}
	for above, labels := range w.offersAbove(name, origin) {
		for owner, t := range above.OwnerTrees() {
			if _, ok := t.FindInstance(labels); ok && at.first.Owner <= above.Owner {
				w.CountFault(int(owner), subtree.FaultInstanceName, n)
			}
		}
	}
}
