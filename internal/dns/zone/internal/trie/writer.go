package trie

import (
	"cmp"
	"hash/maphash"
	"slices"
)

// Writer collects changes and publishes them as versions. It belongs to one goroutine. It keeps the
// last version and the names that have changed since, and no earlier version: whoever needs one
// keeps the Map. What it has published does not change.
type Writer[V any] struct {
	published Map[V]
	pending   map[string]*Item[V] // changes since published; nil where a name is gone
}

// NewWriter returns a writer without names.
func NewWriter[V any]() *Writer[V] {
	return &Writer[V]{published: Map[V]{seed: maphash.MakeSeed()}, pending: make(map[string]*Item[V])}
}

// Get returns the value of a name with the changes that are not published yet, or nil. The caller
// must not change the value.
func (w *Writer[V]) Get(name string) *V {
	item, ok := w.pending[name]
	switch {
	case !ok:
		return w.published.Get(name)
	case item == nil:
		return nil
	}
	return &item.Value
}

// Set adds an item, or replaces the one of the same name. The item must not change from then on.
func (w *Writer[V]) Set(item *Item[V]) { w.pending[item.Name] = item }

// Delete removes a name, if it is there.
func (w *Writer[V]) Delete(name string) { w.pending[name] = nil }

// Publish returns the version with all changes so far.
func (w *Writer[V]) Publish() Map[V] {
	if len(w.pending) == 0 {
		return w.published
	}
	changes := make([]itemChange[V], 0, len(w.pending))
	for name, item := range w.pending {
		changes = append(changes, itemChange[V]{w.published.hashName(name), name, item})
	}
	slices.SortFunc(changes, func(a, b itemChange[V]) int { return cmp.Compare(a.hash, b.hash) })
	w.published.root = w.published.root.withChanges(changes, 0)
	w.pending = make(map[string]*Item[V], len(changes)) // clear takes as long as for the most names it ever held
	return w.published
}
