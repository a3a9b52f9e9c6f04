package catalog

import (
	"hash/maphash"
	"iter"
	"slices"
)

// recordTable keeps the records of a catalog by name. With a million services every word counts: a
// record with a service is found by the name that is in the service, so that no key is stored.
// These records are a list, and the index has their places by the hash of the name, with open
// addressing. Records without a service are in a map. The table grows with the catalog and has no
// limit of its own, because the catalog asks exceededRule before it adds a record. Its memory is
// freed when the list is empty.
type recordTable struct {
	list  []nameRecord
	index []indexSlot              // a power of two, at most three quarters of them taken; nil without a list
	hash  func(name string) uint32 // random, so that a peer cannot choose names that collide

	names map[string]nameRecord // those without a service
}

// indexSlot is the place of one record in the list. A zero place is a free slot.
type indexSlot struct {
	hash uint32 // of the name: most other names are passed over, and the index grows, without a look at the record
	next uint32 // place in the list, plus 1
}

func newRecordTable() recordTable {
	seed := maphash.MakeSeed()
	hash := func(name string) uint32 { return uint32(maphash.String(seed, name)) } //nolint:gosec // a part is enough
	return recordTable{hash: hash, names: make(map[string]nameRecord)}
}

// reserve makes room for so many records with a service in all.
func (t *recordTable) reserve(records int) {
	t.list = slices.Grow(t.list, max(0, records-len(t.list)))
	size := max(8, len(t.index))
	for size/4*3 < records {
		size *= 2
	}
	if size == len(t.index) {
		return
	}
	before := t.index
	t.index = make([]indexSlot, size)
	for _, p := range before {
		if p.next > 0 {
			at := p.hash & t.indexMask()
			for t.index[at].next > 0 {
				at = (at + 1) & t.indexMask()
			}
			t.index[at] = p
		}
	}
}

func (t *recordTable) indexMask() uint32 { return uint32(len(t.index) - 1) } //nolint:gosec // far below 1<<32

// findSlot returns the slot of the name with that hash, or the free slot that the name would get.
// The index is not nil.
func (t *recordTable) findSlot(name string, hash uint32) (at uint32, ok bool) {
	for at = hash & t.indexMask(); t.index[at].next > 0; at = (at + 1) & t.indexMask() {
		if p := t.index[at]; p.hash == hash && t.list[p.next-1].service.Name() == name {
			return at, true
		}
	}
	return at, false
}

// get returns the record of a name, and whether there is one.
func (t *recordTable) get(name string) (nameRecord, bool) {
	if len(t.list) > 0 {
		if at, ok := t.findSlot(name, t.hash(name)); ok {
			return t.list[t.index[at].next-1], true
		}
	}
	r, ok := t.names[name]
	return r, ok
}

// setRecord stores the record of a name, in place of the previous one. The table keeps the name
// only of a record without a service.
func (t *recordTable) setRecord(name string, r nameRecord) {
	if r.service.IsZero() {
		t.deleteRecord(name)
		t.names[name] = r
		return
	}
	delete(t.names, name)
	t.reserve(len(t.list) + 1)
	hash := t.hash(name)
	at, ok := t.findSlot(name, hash)
	if !ok {
		t.list = append(t.list, r)
		t.index[at] = indexSlot{hash, uint32(len(t.list))} //nolint:gosec // far below 1<<32
	}
	t.list[t.index[at].next-1] = r
}

// deleteRecord removes the record of a name, if there is one. The last record of the list takes its
// place.
func (t *recordTable) deleteRecord(name string) {
	delete(t.names, name)
	if len(t.list) == 0 {
		return
	}
	at, ok := t.findSlot(name, t.hash(name))
	if !ok {
		return
	}
	end := len(t.list) - 1
	last, _ := t.findSlot(t.list[end].service.Name(), t.hash(t.list[end].service.Name()))
	t.list[t.index[at].next-1], t.index[last].next = t.list[end], t.index[at].next
	t.list[end] = nameRecord{}
	if t.list = t.list[:end]; end == 0 {
		t.list, t.index = nil, nil // a catalog that was large does not stay so
		return
	}
	// What stands behind goes to the free place, where that is not before its own first choice.
	for from := (at + 1) & t.indexMask(); t.index[from].next > 0; from = (from + 1) & t.indexMask() {
		if (from-t.index[from].hash)&t.indexMask() >= (from-at)&t.indexMask() {
			t.index[at], at = t.index[from], from
		}
	}
	t.index[at] = indexSlot{}
}

// allRecords returns all names with their records, in no order. The caller may remove or replace
// the record that it has just got.
func (t *recordTable) allRecords() iter.Seq2[string, nameRecord] {
	return func(yield func(string, nameRecord) bool) {
		for name, r := range t.names {
			if !yield(name, r) {
				return
			}
		}
		for _, r := range slices.Backward(t.list) { // what takes the place of one that goes was yielded before
			if !yield(r.service.Name(), r) {
				return
			}
		}
	}
}
