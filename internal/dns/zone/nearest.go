package zone

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// The bounds of what NearestNames returns and does, whatever the size of the zone.
const (
	mostNearest = 3
	mostVisited = 100_000 // names of the zone that are looked at, which takes some tens of milliseconds
)

// NearestNames returns names of services that may be meant by a name, lower case and absolute, that
// does not exist: the nearest first, 3 at most. It is not for queries: it looks up about 80 names
// for each octet of the name, and looks at 100,000 names of the zone at most.
func (z *Zone) NearestNames(name string, now time.Time) []string {
	return nearestNames(name, func(name string) bool {
		o := z.origins.ofQuery(name)
		return o != nil && z.matchName(o, name, now).offer != nil
	}, func(yield func(string) bool) {
		for at := range z.tree.All() {
			if !yield(at.Name) {
				return
			}
		}
	})
}

// nearestNames returns names that exist and are one mistake in typing away from a name; and after
// them those of all, in no order, that have the same first label, of which the ones come first that
// have most of their last labels in common with the name.
func nearestNames(name string, exists func(string) bool, all iter.Seq[string]) (nearest []string) {
	typed := 0
	isNew := func(other string) bool {
		_, valid := dns.IsDomainName(other)
		return valid && other != name && !slices.Contains(nearest[:typed], other) && exists(other)
	}
	tryMisspellings(name, func(other string) {
		if typed < mostNearest && isNew(other) {
			nearest, typed = append(nearest, other), typed+1
		}
	})
	label, visited := name[:strings.IndexByte(name, '.')+1], 0
	for other := range all {
		if visited++; visited > mostVisited || typed == mostNearest {
			break
		}
		if strings.HasPrefix(other, label) && isNew(other) {
			nearest = append(nearest, other)
		}
	}
	slices.SortFunc(nearest[typed:], func(a, b string) int {
		return cmp.Or(cmp.Compare(dns.CompareDomainName(b, name), dns.CompareDomainName(a, name)), strings.Compare(a, b))
	})
	return nearest[:min(len(nearest), mostNearest)]
}

// tryMisspellings calls a function with the names that somebody may mean who has typed one label too
// many, or one letter that is too many, wrong, missing or exchanged with the one before. Not all of
// them are valid.
func tryMisspellings(name string, try func(string)) {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789-_."
	for i := range len(name) - 1 { // the dot at the end stays
		head, letter, tail := name[:i], name[i:i+1], name[i+1:]
		if letter == "." {
			try(head[:strings.LastIndexByte(head, '.')+1] + tail)
		}
		try(head + tail)
		if i > 0 {
			try(head[:i-1] + letter + head[i-1:] + tail)
		}
		for _, other := range letters {
			try(head + string(other) + tail)
			try(head + string(other) + letter + tail)
		}
	}
}
