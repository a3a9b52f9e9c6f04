package trie

import (
	"hash/maphash"
	"iter"
	"slices"
)

// Item is a name and its value. A Map points to the items that it was given, so
// an item must not change once it has been set.
type Item[V any] struct {
	Name  string
	Value V
}

// Map is one version of the index. Only [Writer.Publish] makes one: the zero Map
// has no seed to hash with. Many goroutines may read it at once.
type Map[V any] struct {
	seed maphash.Seed // random, so that a peer cannot choose names that collide
	root hashSlot[V]
}

// hashSlot has all names whose hashes begin with the same bits: a branch or a list.
type hashSlot[V any] struct {
	kids   *[fan]hashSlot[V] // a branch, or
	leaves []hashedItem[V]   // a list
}

type hashedItem[V any] struct {
	hash uint64
	item *Item[V]
}

const (
	hashBits = 64
	width    = 4 // bits of a hash that choose one of the slots of a branch
	fan      = 1 << width

	// maxLeaves is the longest list; a longer one becomes a branch. With lists of
	// 64 and branches of 32 a lookup costs the same and an update more.
	maxLeaves = 32
)

// slotIndex returns the slot of a branch that a hash belongs to. The first bits of the hash have
// led to the branch.
func slotIndex(hash uint64, bits int) uint64 { return hash << bits >> (hashBits - width) }

func (m *Map[V]) hashName(name string) uint64 { return maphash.String(m.seed, name) }

// Get returns the value of a name, or nil. The caller must not change it.
func (m *Map[V]) Get(name string) *V {
	hash := m.hashName(name)
	s := &m.root
	for bits := 0; s.kids != nil; bits += width {
		s = &s.kids[slotIndex(hash, bits)]
	}
	for i := range s.leaves {
		if l := &s.leaves[i]; l.hash == hash && l.item.Name == name {
			return &l.item.Value
		}
	}
	return nil
}

// All returns every item, in no particular order.
func (m *Map[V]) All() iter.Seq[*Item[V]] {
	return func(yield func(*Item[V]) bool) { m.root.yieldItems(yield) }
}

func (s *hashSlot[V]) yieldItems(yield func(*Item[V]) bool) bool {
	if s.kids != nil {
		for i := range s.kids {
			if !s.kids[i].yieldItems(yield) {
				return false
			}
		}
	}
	for i := range s.leaves {
		if !yield(s.leaves[i].item) {
			return false
		}
	}
	return true
}

// Differences returns the items that differ between this version and a later one of the same
// [Writer], in no particular order. An item is nil where a version does not have the name.
// Differences passes over what the versions share.
func (m *Map[V]) Differences(later *Map[V]) iter.Seq2[*Item[V], *Item[V]] {
	return func(yield func(was, is *Item[V]) bool) { m.root.yieldDifferences(&later.root, yield) }
}

func (s *hashSlot[V]) yieldDifferences(later *hashSlot[V], yield func(was, is *Item[V]) bool) bool {
	if s.kids != nil { // and so has later, because a branch stays one
		if s.kids == later.kids {
			return true
		}
		for i := range s.kids {
			if !s.kids[i].yieldDifferences(&later.kids[i], yield) {
				return false
			}
		}
		return true
	}
	if len(s.leaves) > 0 && len(later.leaves) > 0 && &s.leaves[0] == &later.leaves[0] {
		return true
	}
	gone := slices.Clone(s.leaves)
	more := later.yieldItems(func(is *Item[V]) bool {
		i := slices.IndexFunc(gone, func(l hashedItem[V]) bool { return l.item == is }) // without a look at the names, as mostly
		if i < 0 {
			i = slices.IndexFunc(gone, func(l hashedItem[V]) bool { return l.item.Name == is.Name })
		}
		if i < 0 {
			return yield(nil, is)
		}
		was := gone[i].item
		gone = slices.Delete(gone, i, i+1)
		return was == is || yield(was, is)
	})
	for i := 0; more && i < len(gone); i++ {
		more = yield(gone[i].item, nil)
	}
	return more
}

// itemChange is a name with its new item, or with nil when the name is gone.
type itemChange[V any] struct {
	hash uint64
	name string
	item *Item[V]
}

// withChanges returns a copy of the slot with these changes, which are sorted by hash and have no
// name twice. Every branch and list is copied once, however many of the changes it gets. A branch
// stays a branch when its leaves go, because it is small and may fill again.
func (s *hashSlot[V]) withChanges(changes []itemChange[V], bits int) hashSlot[V] {
	if s.kids != nil {
		kids := *s.kids
		for len(changes) > 0 {
			at, n := slotIndex(changes[0].hash, bits), 1
			for n < len(changes) && slotIndex(changes[n].hash, bits) == at {
				n++
			}
			kids[at] = kids[at].withChanges(changes[:n], bits+width)
			changes = changes[n:]
		}
		return hashSlot[V]{kids: &kids}
	}
	var buf [2 * maxLeaves]hashedItem[V] // mostly enough to count the leaves
	leaves := buf[:0]
	for i := range s.leaves {
		if l := &s.leaves[i]; !l.isChangedBy(changes) {
			leaves = append(leaves, *l)
		}
	}
	for i := range changes {
		if c := &changes[i]; c.item != nil {
			leaves = append(leaves, hashedItem[V]{c.hash, c.item})
		}
	}
	return splitLeaves(leaves, bits)
}

// isChangedBy reports whether one of the changes has the name of the leaf.
func (l *hashedItem[V]) isChangedBy(changes []itemChange[V]) bool {
	return slices.ContainsFunc(changes, func(c itemChange[V]) bool { return c.hash == l.hash && c.name == l.item.Name })
}

// splitLeaves returns the slot of these leaves. It does not keep the slice.
func splitLeaves[V any](leaves []hashedItem[V], bits int) hashSlot[V] {
	if len(leaves) <= maxLeaves || bits+width > hashBits {
		own := make([]hashedItem[V], len(leaves)) // slices.Clone would keep the memory of the caller alive
		copy(own, leaves)
		return hashSlot[V]{leaves: own}
	}
	var parts [fan][]hashedItem[V]
	for _, l := range leaves {
		at := slotIndex(l.hash, bits)
		parts[at] = append(parts[at], l)
	}
	var kids [fan]hashSlot[V]
	for i := range kids {
		kids[i] = splitLeaves(parts[i], bits+width)
	}
	return hashSlot[V]{kids: &kids}
}
