package precedence

import (
	"iter"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
)

// TakenBy returns the offer that has the fqdn of an offer of the tree, in the zone of the origin, in
// its place: at the same fqdn, or further up as a name beside its own. That offer may itself be
// published nowhere. TakenBy returns nil for an offer that is published, and reports whether the offer
// has not expired.
func (t *Tree) TakenBy(origin string, o *Offer, now time.Time) (by *Offer, alive bool) {
	if !t.isAlive(o, now) {
		return nil, false
	}
	name := o.FQDN()
	if first := t.FirstOffer(t.Node(name), now); first != o {
		return first, true
	}
	if name == origin {
		return nil, true
	}
	for _, above := range t.appendHolders(nil, origin, domain.Parent(name), now) {
		if above.Owner < o.Owner && above.Subtree.HasLabels(domain.RelativeLabels(name, above.FQDN())) {
			return above, true
		}
	}
	return nil, true
}

// OffersWanting returns the offers, published or not, that would have records at the name if there
// were no others. The name is in the zone of the origin. Offers with that fqdn come first, and then
// those further up; those of one fqdn are in order of precedence.
func (t *Tree) OffersWanting(origin, name string) iter.Seq[*Offer] {
	return func(yield func(*Offer) bool) {
		var buf [4]*Offer
		for at := name; ; at = domain.Parent(at) {
			for _, o := range t.Node(at).AppendOffers(buf[:0]) {
				if (at == name || hasRecords(o, domain.RelativeLabels(name, at))) && !yield(o) {
					return
				}
			}
			if at == origin {
				return
			}
		}
	}
}

// hasRecords reports whether the labels in front of the fqdn of an offer stand for records.
func hasRecords(o *Offer, labels string) bool {
	switch o.Subtree.Joined().MatchLabels(labels).Role {
	case domain.Missing, domain.Empty, domain.EmptyAlways:
		return false
	}
	return true
}

// OfferFaults returns how much of an offer of the tree is not published, by kind. The caller may
// keep the result.
func (t *Tree) OfferFaults(o *Offer) (faults subtree.Faults) {
	o.eachFault(t.Node, func(_ uint32, kind subtree.Fault, n int) { faults.Add(kind, n) })
	return faults
}
