package recent

import (
	"net"
	"slices"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/hamlet-federation/coredns-federation/federation/status"
)

// VisitorLimit is how many peers are remembered that were turned away for the same reason.
// The oldest go, and so a flood of one kind does not hide the others.
const VisitorLimit = 20

// Visitors are the peers that were turned away lately. The zero value is empty.
type Visitors struct {
	reasons map[string]*simplelru.LRU[visitor, status.TurnedAway]
}

// visitor is what there is one entry of: the port of an address is another one each time.
type visitor struct{ role, host, identities string }

// TurnedAway notes a peer that was turned away, at one time. Reasons are a few words that
// the caller chooses. It takes the place of an earlier time of the same peer, and counts
// both.
func (v *Visitors) TurnedAway(p status.TurnedAway) {
	p.Address, p.Identities, p.Rule = cut(p.Address, maxName), cut(p.Identities, maxText), cut(p.Rule, maxText)
	key := visitor{p.Role, p.Address, p.Identities}
	if host, _, err := net.SplitHostPort(p.Address); err == nil {
		key.host = host
	}
	of := v.reasons[p.Reason]
	if of == nil {
		if v.reasons == nil {
			v.reasons = make(map[string]*simplelru.LRU[visitor, status.TurnedAway])
		}
		of = newest[visitor, status.TurnedAway](VisitorLimit)
		v.reasons[p.Reason] = of
	}
	before, _ := of.Peek(key)
	p.Times = before.Times + 1
	of.Add(key, p)
}

// All returns them, newest first.
func (v *Visitors) All() []status.TurnedAway {
	var all []status.TurnedAway
	for _, of := range v.reasons {
		all = append(all, of.Values()...)
	}
	slices.Reverse(all)
	slices.SortStableFunc(all, func(a, b status.TurnedAway) int { return b.At.Compare(a.At) })
	return all
}
