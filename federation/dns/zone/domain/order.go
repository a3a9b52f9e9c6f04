package domain

import (
	"container/heap"
	"slices"
	"strings"
)

// Ordered is a name with a key that sorts in canonical order (RFC 4034
// section 6.1): its labels from the last to the first, each with a NUL behind it.
type Ordered struct{ Name, key string }

// Order returns a name with its key.
func Order(name string) Ordered {
	var key strings.Builder
	for end := len(name) - 1; end > 0; {
		start := strings.LastIndexByte(name[:end], '.') + 1
		key.WriteString(name[start:end])
		key.WriteByte(0)
		end = start - 1
	}
	return Ordered{name, key.String()}
}

// Sort sorts names canonically.
func Sort(names []Ordered) {
	slices.SortFunc(names, func(a, b Ordered) int { return strings.Compare(a.key, b.key) })
}

// Queue holds names and gives them back in canonical order.
type Queue struct{ names byKey }

// Push adds a name.
func (q *Queue) Push(name string) { heap.Push(&q.names, Order(name)) }

// Pop takes the first name, unless there is none or it comes after until. A nil
// until is the end of all names.
func (q *Queue) Pop(until *Ordered) (string, bool) {
	if len(q.names) == 0 || until != nil && q.names[0].key > until.key {
		return "", false
	}
	return heap.Pop(&q.names).(Ordered).Name, true
}

// byKey is a heap of names.
type byKey []Ordered

func (h byKey) Len() int           { return len(h) }
func (h byKey) Less(i, j int) bool { return h[i].key < h[j].key }
func (h byKey) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push appends a name, for container/heap.
func (h *byKey) Push(x any) { *h = append(*h, x.(Ordered)) }

// Pop takes the last name, for container/heap.
func (h *byKey) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
