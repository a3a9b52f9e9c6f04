package indexbench

import (
	"hash/maphash"
	"iter"
)

// lists is what the zone holds: a persistent trie over the hashes of names that
// ends in lists. With branches of 32 and lists of 64 a look-up costs the same and
// an update more.
type lists struct {
	hash func(name string) uint64
	root slot
}

// slot is a branch or a list.
type slot struct {
	kids   *[fan]slot
	leaves []leaf
}

type leaf struct {
	hash uint64
	node *node
}

const (
	hashBits  = 64
	width     = 4 // bits of a hash that choose one of the slots of a branch
	fan       = 1 << width
	maxLeaves = 32
)

func place(hash uint64, bits int) uint64 { return hash << bits >> (hashBits - width) }

func buildLists(_ []string, nodes []*node) version {
	seed := maphash.MakeSeed()
	return newLists(func(name string) uint64 { return maphash.String(seed, name) }, nodes)
}

// newLists makes an index of nodes of different names.
func newLists(hash func(string) uint64, nodes []*node) lists {
	leaves := make([]leaf, len(nodes))
	for i, n := range nodes {
		leaves[i] = leaf{hash(n.name), n}
	}
	return lists{hash, split(leaves, 0)}
}

// split returns the slot of leaves, which become its own.
func split(leaves []leaf, bits int) slot {
	if len(leaves) <= maxLeaves || bits+width > hashBits {
		return slot{leaves: leaves}
	}
	var counts [fan]int
	for i := range leaves {
		counts[place(leaves[i].hash, bits)]++
	}
	var parts [fan][]leaf
	for _, l := range leaves {
		at := place(l.hash, bits)
		if parts[at] == nil {
			parts[at] = make([]leaf, 0, counts[at])
		}
		parts[at] = append(parts[at], l)
	}
	var kids [fan]slot
	for i := range kids {
		kids[i] = split(parts[i], bits+width)
	}
	return slot{kids: &kids}
}

func (x lists) get(name string) *node {
	hash := x.hash(name)
	s := &x.root
	for bits := 0; s.kids != nil; bits += width {
		s = &s.kids[place(hash, bits)]
	}
	for i := range s.leaves {
		if l := &s.leaves[i]; l.hash == hash && l.node.name == name {
			return l.node
		}
	}
	return nil
}

func (x lists) set(name string, n *node) version {
	return lists{x.hash, x.root.change(x.hash(name), name, n, 0)}
}

func (x lists) delete(name string) version {
	return lists{x.hash, x.root.change(x.hash(name), name, nil, 0)}
}

// change returns the slot with the node in the place of the one of its name, or
// with none of that name when the node is nil.
func (s *slot) change(hash uint64, name string, n *node, bits int) slot {
	if s.kids != nil {
		kids := *s.kids
		kid := &kids[place(hash, bits)]
		*kid = kid.change(hash, name, n, bits+width)
		return slot{kids: &kids}
	}
	leaves := make([]leaf, 0, len(s.leaves)+1)
	for _, l := range s.leaves {
		if l.hash != hash || l.node.name != name {
			leaves = append(leaves, l)
		}
	}
	if n == nil {
		return slot{leaves: leaves}
	}
	return split(append(leaves, leaf{hash, n}), bits)
}

func (x lists) all() iter.Seq2[string, *node] {
	return func(yield func(string, *node) bool) { x.root.all(yield) }
}

func (s *slot) all(yield func(string, *node) bool) bool {
	if s.kids != nil {
		for i := range s.kids {
			if !s.kids[i].all(yield) {
				return false
			}
		}
	}
	for _, l := range s.leaves {
		if !yield(l.node.name, l.node) {
			return false
		}
	}
	return true
}
