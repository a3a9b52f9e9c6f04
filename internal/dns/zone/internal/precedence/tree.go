package precedence

import (
	"iter"
	"slices"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/domain"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/trie"
)

// Tree is one version of which offer has which name. It is immutable, and many goroutines may use
// it at once.
type Tree struct {
	index  trie.Map[Node]
	lives  []OfferLife      // by owner
	faults []subtree.Faults // by owner
}

// OfferLife is how long the offers of an owner last.
type OfferLife struct {
	// Live is the first generation that is not stale.
	Live uint64
	// Expires is when stale offers are gone; zero is never. An offer with
	// less than a second left is gone, because no TTL is left for it.
	Expires time.Time
}

// HasExpired reports whether the stale offers of the owner have expired.
func (l *OfferLife) HasExpired(now time.Time) bool {
	return !l.Expires.IsZero() && l.Expires.Sub(now) < time.Second
}

// isStale reports whether the owner has not confirmed an offer since it was lost.
func (l *OfferLife) isStale(o *Offer) bool { return uint64(o.Generation) < l.Live }

// OwnerFaults returns how much of the owner's offers is not published, by kind. The caller must not
// change it.
func (t *Tree) OwnerFaults(owner int) subtree.Faults { return t.faults[owner] }

// Node returns the node of a name, or nil.
func (t *Tree) Node(name string) *Node { return t.index.Get(name) }

// All returns every name that has a node, in no particular order.
func (t *Tree) All() iter.Seq[*trie.Item[Node]] { return t.index.All() }

// ChangedNames returns the names at which a later version of the tree has another first offer, or
// the same one with another TTL. Ages reports whether stale offers of an owner have another TTL.
func (t *Tree) ChangedNames(later *Tree, ages func(owner uint32) bool) iter.Seq[string] {
	return func(yield func(string) bool) {
		for was, is := range t.index.Differences(&later.index) {
			var x, y *Offer
			name := ""
			if was != nil {
				x, name = was.Value.first, was.Name
			}
			if is != nil {
				y, name = is.Value.first, is.Name
			}
			same := sameService(x, y) && (x == nil || t.IsStale(x) == later.IsStale(y) || !ages(x.Owner))
			if !same && !yield(name) {
				return
			}
		}
	}
}

// IsStale reports whether the owner has not confirmed an offer since it was lost.
func (t *Tree) IsStale(o *Offer) bool { return t.lives[o.Owner].isStale(o) }

// isAlive reports whether an offer has not expired.
func (t *Tree) isAlive(o *Offer, now time.Time) bool {
	return !t.IsStale(o) || !t.lives[o.Owner].HasExpired(now)
}

// FirstOffer returns the first offer at the node that is alive, or nil. That offer has the name
// unless a service above has it: see Holder.
func (t *Tree) FirstOffer(n *Node, now time.Time) *Offer {
	if n == nil || n.first == nil {
		return nil
	}
	if t.isAlive(n.first, now) {
		return n.first
	}
	for _, o := range n.otherOffers() {
		if t.isAlive(o, now) {
			return o
		}
	}
	return nil
}

// Holder returns the offer that is published at a name in the zone of the origin, or nil. N is the
// node of the name.
func (t *Tree) Holder(origin, name string, n *Node, now time.Time) *Offer {
	o := t.FirstOffer(n, now)
	if o == nil || !n.mayBeClaimed(o) {
		return o // as mostly
	}
	all := t.appendHolders(nil, origin, name, now)
	if len(all) > 0 && all[len(all)-1] == o {
		return o
	}
	return nil
}

// appendHolders appends the offers that are published at the name and above it, the
// uppermost first.
func (t *Tree) appendHolders(list []*Offer, origin, name string, now time.Time) []*Offer {
	if name != origin {
		list = t.appendHolders(list, origin, domain.Parent(name), now)
	}
	n := t.index.Get(name)
	o := t.FirstOffer(n, now)
	if o == nil || n.mayBeClaimed(o) && slices.ContainsFunc(list, func(above *Offer) bool {
		return above.Owner < o.Owner && above.Subtree.HasLabels(domain.RelativeLabels(name, above.FQDN()))
	}) {
		return list
	}
	return append(list, o)
}
