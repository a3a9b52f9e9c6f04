package registry

import (
	"cmp"
	"slices"
)

// bucket has the entries of the names that belong to one leaf of package resume, in the order of
// the names. A bucket never changes; withEdits makes the next one.
type bucket []*serviceEntry

// entryEdit is another entry for a name, or nil for an entry that goes.
type entryEdit struct {
	name  string
	entry *serviceEntry
}

// findPlace returns the place of the name, or where it would be, and whether it is there.
func (b bucket) findPlace(name string) (int, bool) {
	return slices.BinarySearchFunc(b, name, func(e *serviceEntry, name string) int { return cmp.Compare(e.service.Name(), name) })
}

// findEntry returns the entry of that name, or nil.
func (b bucket) findEntry(name string) *serviceEntry {
	i, found := b.findPlace(name)
	if !found {
		return nil
	}
	return b[i]
}

// withEdits returns a bucket with the edits applied. The edits are in the order of their names.
func (b bucket) withEdits(edits []entryEdit) bucket {
	next := make(bucket, 0, len(b)+len(edits))
	for _, e := range edits {
		i, known := b.findPlace(e.name)
		next = append(next, b[:i]...)
		if b = b[i:]; known {
			b = b[1:]
		}
		if e.entry != nil {
			next = append(next, e.entry)
		}
	}
	return append(next, b...)
}

// entryPair is the entries of one service in two versions, which differ. A nil entry says that the
// version does not have the service.
type entryPair struct{ before, after *serviceEntry }

func (p entryPair) serviceName() string {
	if p.after != nil {
		return p.after.service.Name()
	}
	return p.before.service.Name()
}

// diffBuckets returns a pair for each service that differs between two buckets.
func diffBuckets(before, after bucket) []entryPair {
	if len(before) == len(after) && (len(before) == 0 || &before[0] == &after[0]) {
		return nil
	}
	var pairs []entryPair
	if len(before) == 0 || len(after) == 0 {
		pairs = make([]entryPair, 0, len(before)+len(after))
	}
	for len(before)+len(after) > 0 {
		switch order := compareFirst(before, after); {
		case order == 0:
			if before[0] != after[0] {
				pairs = append(pairs, entryPair{before[0], after[0]})
			}
			before, after = before[1:], after[1:]
		case order < 0:
			pairs, before = append(pairs, entryPair{before: before[0]}), before[1:]
		default:
			pairs, after = append(pairs, entryPair{after: after[0]}), after[1:]
		}
	}
	return pairs
}

// compareFirst compares the names of the first entries. An empty list comes last.
func compareFirst(a, b bucket) int {
	switch {
	case len(b) == 0:
		return -1
	case len(a) == 0:
		return 1
	case a[0] == b[0]:
		return 0
	default:
		return cmp.Compare(a[0].service.Name(), b[0].service.Name())
	}
}
