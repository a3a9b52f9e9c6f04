package precedence

import (
	"hash/maphash"
	"iter"
)

// ranking is a set of offers of one name, in order of precedence: a treap, immutable like
// the nodes that hold it, so that a change copies the path to one offer and not all of them.
// An owner can offer all of its services under one name. A nil ranking is the empty set.
type ranking struct {
	offer       *Offer
	height      uint64 // random, and above those of the offers on either side
	left, right *ranking
	weight, all int // of this offer, and of all
}

// between returns the offer of r between others.
func (r *ranking) between(left, right *ranking) *ranking {
	return &ranking{r.offer, r.height, left, right, r.weight, left.size() + r.weight + right.size()}
}

func (r *ranking) size() int {
	if r == nil {
		return 0
	}
	return r.all
}

// with returns the ranking with one more offer. The seed is random, so that a peer cannot
// choose names that make the tree a list.
func (r *ranking) with(o *Offer, seed maphash.Seed) *ranking {
	return r.insert(&ranking{offer: o, height: maphash.String(seed, o.Service.Name()), weight: o.Weight()})
}

func (r *ranking) insert(one *ranking) *ranking {
	switch {
	case r == nil || one.height > r.height:
		return one.between(r.split(one.offer))
	case Compare(one.offer, r.offer) < 0:
		return r.between(r.left.insert(one), r.right)
	}
	return r.between(r.left, r.right.insert(one))
}

// split returns the offers before one that is not among them, and those after it.
func (r *ranking) split(o *Offer) (before, after *ranking) {
	switch {
	case r == nil:
		return nil, nil
	case Compare(r.offer, o) < 0:
		before, after = r.right.split(o)
		return r.between(r.left, before), after
	}
	before, after = r.left.split(o)
	return before, r.between(after, r.right)
}

// without returns the ranking without an offer that is part of it.
func (r *ranking) without(o *Offer) *ranking {
	switch c := Compare(o, r.offer); {
	case c < 0:
		return r.between(r.left.without(o), r.right)
	case c > 0:
		return r.between(r.left, r.right.without(o))
	}
	return join(r.left, r.right)
}

// find returns the offer of an owner with the name of a service, or nil.
func (r *ranking) find(owner uint32, service string) *Offer {
	for r != nil {
		switch c := r.offer.compare(owner, service); {
		case c > 0:
			r = r.left
		case c < 0:
			r = r.right
		default:
			return r.offer
		}
	}
	return nil
}

// join returns the offers of two rankings, of which all of one come before those of the
// other.
func join(left, right *ranking) *ranking {
	switch {
	case left == nil:
		return right
	case right == nil:
		return left
	case left.height > right.height:
		return left.between(left.left, join(left.right, right))
	}
	return right.between(join(left, right.left), right.right)
}

// first returns the offer that comes first, of one or more.
func (r *ranking) first() *Offer {
	for r.left != nil {
		r = r.left
	}
	return r.offer
}

// offers yields the offers in order.
func (r *ranking) offers() iter.Seq[*Offer] {
	return func(yield func(*Offer) bool) { r.each(yield) }
}

func (r *ranking) each(yield func(*Offer) bool) bool {
	return r == nil || r.left.each(yield) && yield(r.offer) && r.right.each(yield)
}
