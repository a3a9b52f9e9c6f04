package trie

import "hash/maphash"

// Writer collects changes and publishes them. It belongs to one goroutine. What
// it has published does not change.
type Writer[V any] struct {
	published Map[V]
	size      int                 // of published, in names
	pending   map[string]*Item[V] // changes since then; nil where a name is gone
}

// NewWriter returns a writer without names.
func NewWriter[V any]() *Writer[V] {
	return &Writer[V]{published: Map[V]{seed: maphash.MakeSeed()}, pending: make(map[string]*Item[V])}
}

// Get returns the value of a name, or nil. Changes that are not yet published
// count. The caller must not change the value.
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

// Set adds an item, or replaces the one of the same name. The item must not
// change from then on.
func (w *Writer[V]) Set(item *Item[V]) { w.pending[item.Name] = item }

// Delete removes a name, if it is there.
func (w *Writer[V]) Delete(name string) { w.pending[name] = nil }

// rebuildShare is the share of all names, one in so many, above which a new trie
// costs less than changing the old one name by name.
const rebuildShare = 8

// Publish returns the version with all changes so far.
func (w *Writer[V]) Publish() Map[V] {
	if len(w.pending) > w.size/rebuildShare {
		w.rebuild()
	} else {
		w.change()
	}
	w.pending = make(map[string]*Item[V]) // clear takes as long as for the most names it ever held
	return w.published
}

// change applies the pending changes name by name.
func (w *Writer[V]) change() {
	for name, item := range w.pending {
		if w.published.Get(name) != nil {
			w.size--
		}
		if item != nil {
			w.size++
			w.published.set(item)
		} else {
			w.published.delete(name)
		}
	}
}

// rebuild applies the pending changes by making a new trie.
func (w *Writer[V]) rebuild() {
	leaves := make([]leaf[V], 0, w.size+len(w.pending))
	for item := range w.published.All() {
		if _, changed := w.pending[item.Name]; !changed {
			leaves = append(leaves, leaf[V]{w.published.hash(item.Name), item})
		}
	}
	for _, item := range w.pending {
		if item != nil {
			leaves = append(leaves, leaf[V]{w.published.hash(item.Name), item})
		}
	}
	w.size = len(leaves)
	w.published.root = split(leaves, 0)
}
