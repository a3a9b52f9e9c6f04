// Package history keeps earlier versions of a zone, as many as its bounds allow,
// with the names that have changed from each to the next: what an incremental
// transfer (RFC 1995) is made of.
//
// A [Log] is immutable, as the versions of the zone are that refer to it. [Recent]
// collects what changes until the next version. Package zone decides what a version
// is and which names have changed; to this package a name is a string.
package history

import (
	"slices"
	"time"
)

// The bounds of a Log. A secondary that is further behind gets the whole zone.
const (
	maxVersions = 600
	maxAge      = time.Hour

	// maxOctets is how much memory the earlier versions may hold that the newest does
	// not.
	maxOctets = 64 << 20
)

// Version is one version of a zone.
type Version[V any] struct {
	Serial uint32
	At     time.Time // when it was published, for answers that depend on the time
	Zone   V

	// Changed are the names that have changed since the version before.
	Changed []string
	// Octets is how much memory the version before holds that this one does not, as
	// an estimate.
	Octets int
}

// Log holds versions, the oldest first, with the serials that they were published
// under. The zero Log is empty.
type Log[V any] struct{ versions []*Version[V] }

// Last returns the newest version, or nil.
func (l *Log[V]) Last() *Version[V] {
	if len(l.versions) == 0 {
		return nil
	}
	return l.versions[len(l.versions)-1]
}

// Since returns the version that was published under the serial, and the names that
// have changed since, some more than once. It returns nil when the version is not
// there.
func (l *Log[V]) Since(serial uint32) (v *Version[V], changed []string) {
	i := slices.IndexFunc(l.versions, func(v *Version[V]) bool { return v.Serial == serial })
	if i < 0 {
		return nil, nil
	}
	for _, later := range l.versions[i+1:] {
		changed = append(changed, later.Changed...)
	}
	return l.versions[i], changed
}

// add returns a log with one more version. The oldest ones go until the bounds are
// kept, and no more than maxNames have changed. The new one always stays.
func (l *Log[V]) add(v *Version[V], maxNames int) Log[V] {
	first, names, octets := len(l.versions), len(v.Changed), v.Octets
	for first > max(0, len(l.versions)+1-maxVersions) && names <= maxNames && octets <= maxOctets &&
		v.At.Sub(l.versions[first-1].At) <= maxAge {
		first--
		names += len(l.versions[first].Changed)
		octets += l.versions[first].Octets
	}
	// A copy, because what goes must not be held by an array that is shared.
	return Log[V]{append(slices.Clone(l.versions[first:]), v)}
}
