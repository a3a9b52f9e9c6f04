package registry

import (
	"cmp"
	"iter"
	"slices"
)

// bucket has the entries of the names that package resume has in one leaf, in the order of
// the names. It never changes. One bucket of a million services has two thousand entries, so
// they are in chunks: the next bucket shares those in which nothing is different. A bucket
// that is nil is empty.
type bucket struct{ chunks [][]*entry } // none of them is empty

// chunkEntries is how many entries a chunk has that was split off. Two neighbours have more
// than that together, and no chunk has more than twice as many.
const chunkEntries = 64

// edit is another entry for a name; nil for one that goes.
type edit struct {
	name  string
	entry *entry
}

// list returns the chunks.
func (b *bucket) list() [][]*entry {
	if b == nil {
		return nil
	}
	return b.chunks
}

// len returns how many entries there are.
func (b *bucket) len() (n int) {
	for _, c := range b.list() {
		n += len(c)
	}
	return n
}

// all yields the entries.
func (b *bucket) all() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for _, c := range b.list() {
			for _, e := range c {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// find returns the entry of that name, or nil.
func (b *bucket) find(name string) *entry {
	chunks := b.list()
	at, first := slices.BinarySearchFunc(chunks, name, func(c []*entry, name string) int { return cmp.Compare(c[0].service.Name(), name) })
	switch {
	case first:
		return chunks[at][0]
	case at == 0:
		return nil
	}
	i, found := search(chunks[at-1], name)
	if !found {
		return nil
	}
	return chunks[at-1][i]
}

// search returns where in a chunk the name is, or would be.
func search(entries []*entry, name string) (int, bool) {
	return slices.BinarySearchFunc(entries, name, func(e *entry, name string) int { return cmp.Compare(e.service.Name(), name) })
}

// with returns a bucket with other entries, which are in the order of their names.
func (b *bucket) with(edits []edit) *bucket {
	chunks := b.list()
	next := &bucket{make([][]*entry, 0, len(chunks)+1)}
	if len(chunks) == 0 {
		chunks = [][]*entry{nil}
	}
	for i, c := range chunks {
		n := len(edits)
		if i+1 < len(chunks) {
			n, _ = slices.BinarySearchFunc(edits, chunks[i+1][0].service.Name(), func(e edit, name string) int { return cmp.Compare(e.name, name) })
		}
		if n > 0 {
			c, edits = merged(c, edits[:n]), edits[n:]
		}
		next.add(c)
	}
	return next
}

// merged returns a chunk with other entries.
func merged(old []*entry, edits []edit) []*entry {
	entries := make([]*entry, 0, len(old)+len(edits))
	for _, e := range edits {
		i, known := search(old, e.name)
		entries = append(entries, old[:i]...)
		if old = old[i:]; known {
			old = old[1:]
		}
		if e.entry != nil {
			entries = append(entries, e.entry)
		}
	}
	return append(entries, old...)
}

// add appends entries to a bucket that nobody else has yet. A part of a chunk gets memory of
// its own, lest it keep entries alive that are gone from the other part.
func (b *bucket) add(entries []*entry) {
	switch last := len(b.chunks) - 1; {
	case len(entries) == 0:
	case last >= 0 && len(b.chunks[last])+len(entries) <= chunkEntries:
		b.chunks[last] = slices.Concat(b.chunks[last], entries)
	case len(entries) <= 2*chunkEntries:
		b.chunks = append(b.chunks, entries)
	default:
		for part := range slices.Chunk(entries, chunkEntries) {
			b.add(slices.Clone(part))
		}
	}
}

// pair is what becomes of a service: its entries in one version and in another one, which
// are not the same.
type pair struct{ before, after *entry }

func (p pair) name() string {
	if p.after != nil {
		return p.after.service.Name()
	}
	return p.before.service.Name()
}

// differ returns what becomes of the services of one bucket in another one.
func differ(before, after *bucket) []pair {
	if before == after {
		return nil
	}
	var pairs []pair
	if before.len() == 0 || after.len() == 0 {
		pairs = make([]pair, 0, before.len()+after.len())
	}
	as, bs := before.list(), after.list()
	var a, b []*entry // what is left of a chunk of each
	for {
		a, as = begun(a, as)
		b, bs = begun(b, bs)
		switch {
		case len(a) == 0 && len(b) == 0:
			return pairs
		case len(a) > 0 && len(b) > 0 && &a[0] == &b[0]:
			a, b = nil, nil // it is the same chunk
			continue
		}
		switch order := compareFirst(a, b); {
		case order == 0 && a[0] == b[0]:
			a, b = a[1:], b[1:]
		case order == 0:
			pairs = append(pairs, pair{a[0], b[0]})
			a, b = a[1:], b[1:]
		case order < 0:
			pairs, a = append(pairs, pair{before: a[0]}), a[1:]
		default:
			pairs, b = append(pairs, pair{after: b[0]}), b[1:]
		}
	}
}

// begun returns what is left of a chunk, or the next one where nothing is.
func begun(chunk []*entry, chunks [][]*entry) (now []*entry, later [][]*entry) {
	if len(chunk) > 0 || len(chunks) == 0 {
		return chunk, chunks
	}
	return chunks[0], chunks[1:]
}

// compareFirst compares the names of the first entries. What is at its end comes last.
func compareFirst(a, b []*entry) int {
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
