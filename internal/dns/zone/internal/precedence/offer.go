package precedence

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/trie"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
)

// Offer is one service as one owner offers it, compiled. It is immutable. The fields that most
// queries need come first, in one piece of memory.
type Offer struct {
	home       nodeItem // the node of the fqdn, while there is nothing else at the name or below
	Generation uint32   // in which the owner has confirmed the offer last; a stream each second is 136 years
	Updated    uint32   // when this version came, in seconds since 1970; 0: that is not known

	Owner   uint32 // the owner's place in the order of precedence
	HasHost bool   // an endpoint is a host, so addresses must be looked up
	Subtree subtree.Subtree
	Service packed.Service
}

// ShareOffer returns the joined offer of the members of a shared name. It has the place of the
// first member in the order of precedence. It is always live, because each of its members says
// whether it is stale.
func ShareOffer(fqdn string, members []subtree.Member, enough int, tier subtree.TierFunc, updated uint32) *Offer {
	o := &Offer{Owner: members[0].Owner, Subtree: subtree.NewShared(fqdn, members, enough, tier), Generation: math.MaxUint32, Updated: updated}
	o.home = nodeItem{Name: fqdn, Value: Node{first: o}}
	o.HasHost = slices.ContainsFunc(members, func(m subtree.Member) bool { return m.Tree.HasHost() })
	return o
}

// NewOffer returns the offer of the service s, packed as p, at the fqdn.
func NewOffer(p packed.Service, s *federation.Service, fqdn string, owner int, refuse subtree.RefuseFunc) *Offer {
	o := &Offer{Service: p, Owner: uint32(owner)} //nolint:gosec // a small index
	o.home = nodeItem{Name: fqdn, Value: Node{first: o}}
	o.Subtree.Compile(s, fqdn, refuse)
	o.HasHost = o.Subtree.HasHost()
	return o
}

// WithGeneration returns the same offer in another generation, because the owner has sent it again
// on a new stream.
func (o *Offer) WithGeneration(generation uint64) *Offer {
	c := *o
	c.Generation = uint32(generation) //nolint:gosec // see the field
	c.home.Value.first = &c
	return &c
}

// FQDN returns the name at which the service is published.
func (o *Offer) FQDN() string { return o.home.Name }

// OwnerTrees returns the subtrees of the offer with their owners. For a shared name these are the
// subtrees of its members.
func (o *Offer) OwnerTrees() iter.Seq2[uint32, *subtree.Subtree] {
	return o.Subtree.MemberTrees(o.Owner)
}

// EstimatedSize returns an estimate of the memory of the offer, in octets.
func (o *Offer) EstimatedSize() int {
	const (
		perOffer = 512
		perPart  = 64 // an endpoint or an instance
	)
	if shared := o.Subtree.SharedName(); shared != nil {
		return perOffer * len(shared.Members) // beside what the members have anyway
	}
	endpoints, instances := o.Service.CountParts()
	return perOffer + len(o.Service.Octets()) + perPart*(endpoints+instances) + 2*instances*endpoints // 2: one that an instance selects
}

// CompareOffers orders the offers of one name: by owner, and then by the name of the service. It
// does not depend on which offer came first.
func CompareOffers(x, y *Offer) int { return x.compareWith(y.Owner, y.Service.Name()) }

// compareWith compares the offer with one of that owner and of a service of that name, as
// CompareOffers does.
func (o *Offer) compareWith(owner uint32, service string) int {
	return cmp.Or(cmp.Compare(o.Owner, owner), strings.Compare(o.Service.Name(), service))
}

// Node is a name that is the fqdn of a service, or above one. A nil Node is a name that is neither.
type Node struct {
	first *Offer      // the offer that comes first; nil when there is none
	more  *nodeExtras // nil for most nodes
}

// nodeExtras is what a node has beside its first offer.
type nodeExtras struct {
	others   *[]*Offer // the other offers, in order of precedence, and never written; nil for most nodes
	children uint32    // nodes one label below
	claim    uint32    // 1 + the first owner with a service above that has the name as well; 0 when none has
}

// noMore is what a node has beside its first offer, mostly.
var noMore nodeExtras //nolint:gochecknoglobals // a constant that Go has no word for

// extrasOrNone returns what the node has beside its first offer. The caller must not change it.
func (n *Node) extrasOrNone() *nodeExtras {
	if n.more == nil {
		return &noMore
	}
	return n.more
}

// nodeItem is a node with its name, as the index has it.
type nodeItem = trie.Item[Node]

// firstOffer returns the offer that comes first, or nil.
func (n *Node) firstOffer() *Offer {
	if n == nil {
		return nil
	}
	return n.first
}

// HasNodesBelow reports whether there are nodes below the name.
func (n *Node) HasNodesBelow() bool { return n != nil && n.extrasOrNone().children > 0 }

// AppendOffers appends all offers at the node, in order of precedence.
func (n *Node) AppendOffers(list []*Offer) []*Offer {
	return slices.AppendSeq(list, n.allOffers())
}

// allOffers returns all offers at the node, in order of precedence.
func (n *Node) allOffers() iter.Seq[*Offer] {
	return func(yield func(*Offer) bool) {
		if n == nil || n.first == nil || !yield(n.first) {
			return
		}
		for _, o := range n.otherOffers() {
			if !yield(o) {
				return
			}
		}
	}
}

// otherOffers returns the offers after the first.
func (n *Node) otherOffers() []*Offer {
	if others := n.extrasOrNone().others; others != nil {
		return *others
	}
	return nil
}

// mayBeClaimed reports whether a service above, of an owner that comes before that of the offer,
// has the name of the node if it is published.
func (n *Node) mayBeClaimed(o *Offer) bool {
	claim := n.extrasOrNone().claim
	return claim != 0 && claim <= o.Owner
}

// isTaken reports whether a service has the name of an instance of the offer. N is the node of that
// name, or nil.
func (n *Node) isTaken(o *Offer) bool { return n != nil && n.first != nil && n.first.Owner <= o.Owner }
