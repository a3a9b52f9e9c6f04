package recent

import "container/list"

// latest has the newest value of each key, of the keys that were put last. The zero value
// is empty.
type latest[K comparable, V any] struct {
	order  list.List // of entry[K, V], oldest first
	places map[K]*list.Element
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

// put has the value take the place of an earlier one of the key, or of the oldest one where
// there are so many.
func (l *latest[K, V]) put(key K, value V, limit int) {
	l.remove(key)
	if l.order.Len() >= limit {
		oldest, _ := l.order.Front().Value.(entry[K, V])
		l.remove(oldest.key)
	}
	if l.places == nil {
		l.places = make(map[K]*list.Element)
	}
	l.places[key] = l.order.PushBack(entry[K, V]{key, value})
}

// get returns the value of a key, or the zero value.
func (l *latest[K, V]) get(key K) V {
	var e entry[K, V]
	if at, ok := l.places[key]; ok {
		e, _ = at.Value.(entry[K, V])
	}
	return e.value
}

func (l *latest[K, V]) remove(key K) {
	if at, ok := l.places[key]; ok {
		l.order.Remove(at)
		delete(l.places, key)
	}
}

// all returns the values, newest first.
func (l *latest[K, V]) all() []V {
	all := make([]V, 0, l.order.Len())
	for at := l.order.Back(); at != nil; at = at.Prev() {
		e, _ := at.Value.(entry[K, V])
		all = append(all, e.value)
	}
	return all
}
