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
type bucket struct{ chunks [][]*serviceEntry } // none of them is empty

// chunkEntries is how many entries a chunk has that was split off. Two neighbours have more
// than that together, and no chunk has more than twice as many.
const chunkEntries = 64

// entryEdit is another entry for a name; nil for one that goes.
type entryEdit struct {
	name  string
	entry *serviceEntry
}

// listChunks returns the chunks.
func (b *bucket) listChunks() [][]*serviceEntry {
	if b == nil {
		return nil
	}
	return b.chunks
}

// len returns how many entries there are.
func (b *bucket) len() (n int) {
	for _, c := range b.listChunks() {
		n += len(c)
	}
	return n
}

// allEntries yields the entries.
func (b *bucket) allEntries() iter.Seq[*serviceEntry] {
	return func(yield func(*serviceEntry) bool) {
		for _, c := range b.listChunks() {
			for _, e := range c {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// findEntry returns the entry of that name, or nil.
func (b *bucket) findEntry(name string) *serviceEntry {
	chunks := b.listChunks()
	at, first := slices.BinarySearchFunc(chunks, name, func(c []*serviceEntry, name string) int { return cmp.Compare(c[0].service.Name(), name) })
	switch {
	case first:
		return chunks[at][0]
	case at == 0:
		return nil
	}
	i, found := searchChunk(chunks[at-1], name)
	if !found {
		return nil
	}
	return chunks[at-1][i]
}

// searchChunk returns where in a chunk the name is, or would be.
func searchChunk(entries []*serviceEntry, name string) (int, bool) {
	return slices.BinarySearchFunc(entries, name, func(e *serviceEntry, name string) int { return cmp.Compare(e.service.Name(), name) })
}

// withEdits returns a bucket with other entries, which are in the order of their names.
func (b *bucket) withEdits(edits []entryEdit) *bucket {
	chunks := b.listChunks()
	next := &bucket{make([][]*serviceEntry, 0, len(chunks)+1)}
	if len(chunks) == 0 {
		chunks = [][]*serviceEntry{nil}
	}
	for i, c := range chunks {
		n := len(edits)
		if i+1 < len(chunks) {
			n, _ = slices.BinarySearchFunc(edits, chunks[i+1][0].service.Name(), func(e entryEdit, name string) int { return cmp.Compare(e.name, name) })
		}
		if n > 0 {
			c, edits = mergeEdits(c, edits[:n]), edits[n:]
		}
		next.appendEntries(c)
	}
	return next
}

// mergeEdits returns a chunk with other entries.
func mergeEdits(old []*serviceEntry, edits []entryEdit) []*serviceEntry {
	entries := make([]*serviceEntry, 0, len(old)+len(edits))
	for _, e := range edits {
		i, known := searchChunk(old, e.name)
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

// appendEntries appends entries to a bucket that nobody else has yet. A part of a chunk gets memory of
// its own, lest it keep entries alive that are gone from the other part.
func (b *bucket) appendEntries(entries []*serviceEntry) {
	switch last := len(b.chunks) - 1; {
	case len(entries) == 0:
	case last >= 0 && len(b.chunks[last])+len(entries) <= chunkEntries:
		b.chunks[last] = slices.Concat(b.chunks[last], entries)
	case len(entries) <= 2*chunkEntries:
		b.chunks = append(b.chunks, entries)
	default:
		for part := range slices.Chunk(entries, chunkEntries) {
			b.appendEntries(slices.Clone(part))
		}
	}
}

// entryPair is what becomes of a service: its entries in one version and in another one, which
// are not the same.
type entryPair struct{ before, after *serviceEntry }

func (p entryPair) serviceName() string {
	if p.after != nil {
		return p.after.service.Name()
	}
	return p.before.service.Name()
}

// diffBuckets returns what becomes of the services of one bucket in another one.
func diffBuckets(before, after *bucket) []entryPair {
	if before == after {
		return nil
	}
	var pairs []entryPair
	if before.len() == 0 || after.len() == 0 {
		pairs = make([]entryPair, 0, before.len()+after.len())
	}
	as, bs := before.listChunks(), after.listChunks()
	var a, b []*serviceEntry // what is left of a chunk of each
	for {
		a, as = nextChunk(a, as)
		b, bs = nextChunk(b, bs)
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
			pairs = append(pairs, entryPair{a[0], b[0]})
			a, b = a[1:], b[1:]
		case order < 0:
			pairs, a = append(pairs, entryPair{before: a[0]}), a[1:]
		default:
			pairs, b = append(pairs, entryPair{after: b[0]}), b[1:]
		}
	}
}

// nextChunk returns what is left of a chunk, or the next one where nothing is.
func nextChunk(chunk []*serviceEntry, chunks [][]*serviceEntry) (now []*serviceEntry, later [][]*serviceEntry) {
	if len(chunk) > 0 || len(chunks) == 0 {
		return chunk, chunks
	}
	return chunks[0], chunks[1:]
}

// compareFirst compares the names of the first entries. What is at its end comes last.
func compareFirst(a, b []*serviceEntry) int {
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
