package precedence

import (
	"iter"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
)

// LossRule is the rule by which an offer is not published at its fqdn.
type LossRule uint8

// The rules.
const (
	NoLoss     LossRule = iota // the offer is published
	Expired                    // the offer is stale, and its retention is over
	OwnerLater                 // another owner that comes first has the fqdn
	NameLarger                 // a service of the owner with a smaller name has the fqdn
	TakenAbove                 // a service further up, of an owner that comes first, has the name beside its fqdn
)

// ExplainLoss returns why an offer of the tree, in the zone of the origin, is not published at its
// fqdn, and the offer that has the name instead, which may itself be published nowhere.
func (t *Tree) ExplainLoss(origin string, o *Offer, now time.Time) (LossRule, *Offer) {
	if !t.isAlive(o, now) {
		return Expired, nil
	}
	name := o.FQDN()
	switch first := t.FirstOffer(t.Node(name), now); {
	case first.Owner < o.Owner:
		return OwnerLater, first
	case first != o:
		return NameLarger, first
	}
	if name == origin {
		return NoLoss, nil
	}
	for _, above := range t.appendHolders(nil, origin, domain.Parent(name), now) {
		if above.Owner < o.Owner && above.Subtree.HasLabels(domain.RelativeLabels(name, above.FQDN())) {
			return TakenAbove, above
		}
	}
	return NoLoss, nil
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
