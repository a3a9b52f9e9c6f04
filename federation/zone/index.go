package zone

import (
	"hash/maphash"
	"iter"
)

// index maps names to nodes. It is immutable: a change copies the few branches
// on the way to a name, and shares the others with the versions before.
//
// It is a trie over the hashes of names that ends in lists. In a large catalog
// almost all of the time of a look-up is that of the memory which is in no cache,
// and here that is one list: the branches above all lists of a million names
// take two megabytes. test/indexbench compares it with other indexes.
type index struct {
	seed maphash.Seed // random, so that an owner cannot choose names that collide
	root slot
}

// slot is what stands for all names whose hashes begin with the same bits.
type slot struct {
	kids   *[fan]slot // a branch, or
	leaves []leaf     // a list
}

type leaf struct {
	hash uint64
	node *node
}

const (
	hashBits = 64
	width    = 4 // bits of a hash that choose one of the slots of a branch
	fan      = 1 << width

	// maxLeaves is the length from which on a list becomes a branch.
	maxLeaves = 32
)

// place returns which slot of a branch a hash belongs to, after the first bits
// have chosen the branch.
func place(hash uint64, bits int) uint64 { return hash << bits >> (hashBits - width) }

func (x *index) hash(name string) uint64 { return maphash.String(x.seed, name) }

// get returns the node of a name, or nil.
func (x *index) get(name string) *node {
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

// all yields every node in no particular order.
func (x *index) all() iter.Seq[*node] {
	return func(yield func(*node) bool) { x.root.all(yield) }
}

func (s *slot) all(yield func(*node) bool) bool {
	if s.kids != nil {
		for i := range s.kids {
			if !s.kids[i].all(yield) {
				return false
			}
		}
	}
	for i := range s.leaves {
		if !yield(s.leaves[i].node) {
			return false
		}
	}
	return true
}

// set puts the node in the place of the one of its name, if there is one. Copies
// of x stay what they are.
func (x *index) set(n *node) { x.root = x.root.change(x.hash(n.name), n.name, n, 0) }

// delete removes a name. Copies of x stay what they are.
func (x *index) delete(name string) { x.root = x.root.change(x.hash(name), name, nil, 0) }

// change returns the slot with the node in the place of the one of its name, or
// with none of that name when the node is nil. A branch stays one when its leaves
// go: it is small, and may fill again.
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

// indexWriter changes the index. What it published before stays as it is.
type indexWriter struct {
	published index
	size      int              // of published
	pending   map[string]*node // changes since; nil where a name is gone
}

func newIndexWriter() *indexWriter {
	return &indexWriter{published: index{seed: maphash.MakeSeed()}, pending: make(map[string]*node)}
}

func (w *indexWriter) get(name string) *node {
	if n, ok := w.pending[name]; ok {
		return n
	}
	return w.published.get(name)
}

func (w *indexWriter) set(n *node)        { w.pending[n.name] = n }
func (w *indexWriter) delete(name string) { w.pending[name] = nil }

// rebuildShare is the part of an index from which on a new one costs less than
// to change it name by name.
const rebuildShare = 8

func (w *indexWriter) publish() index {
	if len(w.pending) > w.size/rebuildShare {
		w.rebuild()
	} else {
		w.change()
	}
	w.pending = make(map[string]*node) // clear takes as long as the largest that there was
	return w.published
}

// change carries out what is pending, name by name.
func (w *indexWriter) change() {
	for name, n := range w.pending {
		if w.published.get(name) != nil {
			w.size--
		}
		if n != nil {
			w.size++
			w.published.set(n)
		} else {
			w.published.delete(name)
		}
	}
}

// rebuild carries out what is pending in a new index.
func (w *indexWriter) rebuild() {
	leaves := make([]leaf, 0, w.size+len(w.pending))
	for n := range w.published.all() {
		if _, changed := w.pending[n.name]; !changed {
			leaves = append(leaves, leaf{w.published.hash(n.name), n})
		}
	}
	for _, n := range w.pending {
		if n != nil {
			leaves = append(leaves, leaf{w.published.hash(n.name), n})
		}
	}
	w.size = len(leaves)
	w.published.root = split(leaves, 0)
}
