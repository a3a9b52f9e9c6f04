package precedence

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/domain"
)

// crowd has what the many services of one fqdn want of the names below it, by the labels in
// front of the fqdn. An owner can offer all of its services at one fqdn, or below it: without
// a crowd, each service below would have all those above looked at.
type crowd map[string][]want

// want is what services of one owner want of a name below their fqdn.
type want struct {
	owner     uint32
	claims    int // how often they have the name beside their fqdn
	instances int // how many have an instance of that name
}

// fewOffers is how much the offers of one fqdn weigh, in octets, that are looked at one by one.
const fewOffers = 16 << 10

// wants yields what the services above a name want of it, alive or not, published or not.
func (w *Writer) wants(name, origin string) iter.Seq[want] {
	return func(yield func(want) bool) {
		for up := name; up != origin; {
			up = domain.Parent(up)
			labels := domain.Relative(name, up)
			if c, ok := w.crowds[up]; ok {
				for _, all := range c[labels] {
					if !yield(all) {
						return
					}
				}
				continue
			}
			for o := range w.index.Get(up).all() {
				one := want{owner: o.Owner}
				if o.Subtree.Has(labels) {
					one.claims = 1
				}
				if _, ok := o.Subtree.Instance(labels); ok {
					one.instances = 1
				}
				if !yield(one) {
					return
				}
			}
		}
	}
}

// recount has the crowd at an fqdn, if there is one, or is one now, count an offer in the
// place of another. First and others are the offers from now on.
func (w *Writer) recount(fqdn string, first *Offer, others *ranking, old, offer *Offer) {
	switch c := w.crowds[fqdn]; {
	case others.size() <= fewOffers:
		delete(w.crowds, fqdn)
	case c != nil:
		c.count(old, -1)
		c.count(offer, +1)
	default:
		c = make(crowd)
		c.count(first, +1)
		for o := range others.offers() {
			c.count(o, +1)
		}
		w.crowds[fqdn] = c
	}
}

// count adds an offer, which may be nil, n times.
func (c crowd) count(o *Offer, n int) {
	if o == nil {
		return
	}
	for labels := range o.Subtree.Claims() {
		c.add(labels, want{o.Owner, n, 0})
	}
	instances := o.Subtree.Instances()
	for i := range instances {
		c.add(instances[i].Label, want{o.Owner, 0, n})
	}
}

// add adds what one owner wants, and forgets what nobody wants any more.
func (c crowd) add(labels string, more want) {
	all := c[labels]
	at, ok := slices.BinarySearchFunc(all, more.owner, func(x want, owner uint32) int { return cmp.Compare(x.owner, owner) })
	switch {
	case all == nil:
		c[strings.Clone(labels)] = []want{more} // labels may be part of what keeps a whole service alive
		return
	case !ok:
		all = slices.Insert(all, at, more)
	default:
		all[at].claims += more.claims
		all[at].instances += more.instances
		if all[at].claims == 0 && all[at].instances == 0 {
			all = slices.Delete(all, at, at+1)
		}
	}
	if len(all) == 0 {
		delete(c, labels)
		return
	}
	c[labels] = all
}
