package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
)

// took is how long something took in a test that is promised to take no longer than a bound.
type took struct {
	pkg, promise string
	bound, time  time.Duration
}

// parseTook parses an attribute of a test, as await.Took writes it.
func parseTook(e *event) (t took, ok bool) {
	if e.Key != await.Attribute {
		return took{}, false
	}
	fields := strings.SplitN(e.Value, " ", 3)
	if len(fields) != 3 {
		return took{}, false
	}
	var wrong, wrongBound error
	t.time, wrong = time.ParseDuration(fields[0])
	t.bound, wrongBound = time.ParseDuration(fields[1])
	t.pkg, t.promise = e.Package, fields[2]
	return t, wrong == nil && wrongBound == nil
}

// brokenPromises says which promises took longer than they may in most cases of a package,
// and how long.
func brokenPromises(all []took) string {
	var b strings.Builder
	times := make(map[took][]time.Duration)
	for _, t := range all {
		promise := t
		promise.time = 0
		times[promise] = append(times[promise], t.time)
	}
	for _, t := range slices.SortedFunc(maps.Keys(times), func(a, b took) int {
		return strings.Compare(a.pkg+" "+a.promise, b.pkg+" "+b.promise)
	}) {
		sorted := slices.Sorted(slices.Values(times[t]))
		if median := sorted[(len(sorted)-1)/2]; median > t.bound {
			fmt.Fprintf(&b, "FAIL\t%s: %s took %v in the median of %d (%v to %v), and %v is promised\n", t.pkg, t.promise,
				round(median), len(sorted), round(sorted[0]), round(sorted[len(sorted)-1]), t.bound)
		}
	}
	return b.String()
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
