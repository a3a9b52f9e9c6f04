// Package claim decides who has a name on an owner where several services want it. The
// sources of a catalog ask it, the exports of a cluster, and what warns of a catalog file.
//
// # The order
//
// Of two claims to one name the first of these that tells them apart decides:
//
//  1. The source that stands first in the list of the catalog goes first.
//  2. In a cluster, the namespace that the name belongs to goes before those to which the
//     configuration grants it,
//  3. a ServiceExport before the label of a Service,
//  4. and the older export before the younger one.
//  5. The lesser name of a service goes first.
//
// # What the first one has
//
// Of the exports of one cluster only the first is published; the others are refused.
//
// Of the sources of a catalog only the first with a claim publishes: services of the others
// are hidden. A service claims its own name as well as its fqdn, and one that is hidden
// hides nothing. All services of that source with the fqdn are published, and of these
// consumers serve the first: of the others 'federationctl check' warns.
package claim

import (
	"cmp"
	"slices"
	"time"
)

// Rank is the place of a claim in the order. The zero value goes first.
type Rank struct {
	Source   int  // the place of the source in its list
	Granted  bool // by the configuration, and not by the namespace of the export
	Labelled bool // by the label of a Service
	Since    time.Time
	Service  string // its name
}

// Compare returns a negative number where r goes before s.
func (r Rank) Compare(s Rank) int {
	return cmp.Or(
		cmp.Compare(r.Source, s.Source), falseFirst(r.Granted, s.Granted), falseFirst(r.Labelled, s.Labelled),
		r.Since.Compare(s.Since), cmp.Compare(r.Service, s.Service),
	)
}

// falseFirst compares two bools, and puts false first.
func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// BeforeReason returns why r goes before s, which is of the same cluster.
func (r Rank) BeforeReason(s Rank) string {
	switch {
	case r.Granted != s.Granted:
		return "which belongs to its namespace"
	case r.Labelled != s.Labelled:
		return "by a ServiceExport, which goes before a label"
	}
	return "which is older"
}

// Claim is a claim to a name. Its rank stays while it is in ByName.
type Claim interface{ Rank() Rank }

// ByName keeps the claims to each name in the order of their ranks. It grows with the claims, and
// the caller bounds those. It is not safe for concurrent use.
type ByName[N comparable, C Claim] map[N][]C

// Add adds a claim to the name. No claim of that rank is there yet.
func (n ByName[N, C]) Add(name N, c C) {
	i, _ := n.searchRank(name, c)
	n[name] = slices.Insert(n[name], i, c)
}

// Remove removes a claim to the name, if it is there.
func (n ByName[N, C]) Remove(name N, c C) {
	switch i, found := n.searchRank(name, c); {
	case !found:
	case len(n[name]) == 1:
		delete(n, name)
	default:
		n[name] = slices.Delete(n[name], i, i+1)
	}
}

func (n ByName[N, C]) searchRank(name N, c C) (int, bool) {
	if len(n[name]) == 0 {
		return 0, false
	}
	return slices.BinarySearchFunc(n[name], c.Rank(), func(d C, r Rank) int { return d.Rank().Compare(r) })
}
