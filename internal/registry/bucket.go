package registry

import (
	"cmp"
	"iter"
	"slices"
)

// bucket has the entries of the names that belong to one leaf of package resume, in the order of
// the names. A bucket never changes; withEdits makes the next one. One bucket of a million services
// has two thousand entries, so they are in chunks, and the next bucket shares the chunks in which
// nothing is different. A nil bucket is empty.
type bucket struct{ chunks [][]*serviceEntry } // none of them is empty

// chunkEntries is how many entries a chunk has that was split off. Two neighbours have more entries
// together, and no chunk has more than twice as many.
const chunkEntries = 64

// entryEdit is another entry for a name, or nil for an entry that goes.
type entryEdit struct {
	name  string
	entry *serviceEntry
}

// listChunks returns the chunks of the bucket, which may be nil.
func (b *bucket) listChunks() [][]*serviceEntry {
	if b == nil {
		return nil
	}
	return b.chunks
}

// len returns the number of entries.
func (b *bucket) len() (n int) {
	for _, c := range b.listChunks() {
		n += len(c)
	}
	return n
}

// allEntries returns the entries in the order of their names.
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

// searchChunk returns the place of the name in a chunk, or where it would be, and whether it is
// there.
func searchChunk(entries []*serviceEntry, name string) (int, bool) {
	return slices.BinarySearchFunc(entries, name, func(e *serviceEntry, name string) int { return cmp.Compare(e.service.Name(), name) })
}

// withEdits returns a bucket with the edits applied. The edits are in the order of their names.
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

// mergeEdits returns a chunk with the edits applied.
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

// appendEntries appends entries to a bucket that nobody else has seen. A part of a chunk gets
// memory of its own, because it would otherwise keep entries of the other part alive.
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

// nextChunk returns the rest of a chunk, or the next chunk where nothing is left of it, and the
// later chunks.
func nextChunk(chunk []*serviceEntry, chunks [][]*serviceEntry) (now []*serviceEntry, later [][]*serviceEntry) {
	if len(chunk) > 0 || len(chunks) == 0 {
		return chunk, chunks
	}
	return chunks[0], chunks[1:]
}

// compareFirst compares the names of the first entries. An empty list comes last.
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
