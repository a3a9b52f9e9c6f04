// Package deadline keeps the deadlines of many things in one structure, for a caller
// with one timer.
package deadline

import (
	"container/heap"
	"time"
)

// Item is a thing that has a deadline while it is in a Queue, and is in one at most.
// The zero value is in none. It is not copied while it is in one.
type Item[T any] struct {
	Value T // for whoever pops it

	at    time.Duration // the deadline
	place int           // in the heap, from 1; 0: not in it
}

// Queue holds items by their deadlines, which are durations since a moment that is the
// same for all. The zero value is empty.
//
// To put a deadline off takes no time: an item whose turn comes too early is put back
// then. So the heartbeats of a hundred thousand items are cheap.
type Queue[T any] struct{ list items[T] }

// Set puts the item into the queue, or changes its deadline.
func (q *Queue[T]) Set(i *Item[T], at time.Duration) {
	i.at = at
	switch {
	case i.place == 0:
		heap.Push(&q.list, slot[T]{at, i})
	case at < q.list[i.place-1].at:
		q.list[i.place-1].at = at
		heap.Fix(&q.list, i.place-1)
	}
}

// Deadline returns the deadline of the item, and whether it is in a queue.
func (i *Item[T]) Deadline() (time.Duration, bool) { return i.at, i.place > 0 }

// Remove takes the item out of the queue, if it is in it.
func (q *Queue[T]) Remove(i *Item[T]) {
	if i.place > 0 {
		heap.Remove(&q.list, i.place-1)
	}
}

// Pop takes an item out whose deadline is at now or before, the earliest first, or
// returns nil.
func (q *Queue[T]) Pop(now time.Duration) *Item[T] {
	for len(q.list) > 0 && q.list[0].at <= now {
		first := &q.list[0]
		if first.at == first.item.at {
			return heap.Pop(&q.list).(slot[T]).item
		}
		first.at = first.item.at
		heap.Fix(&q.list, 0)
	}
	return nil
}

// Next returns a time before which Pop returns nothing, and whether there is one.
func (q *Queue[T]) Next() (time.Duration, bool) {
	if len(q.list) == 0 {
		return 0, false
	}
	return q.list[0].at, true
}

// slot is an item in the heap, with a time that is not after its deadline.
type slot[T any] struct {
	at   time.Duration
	item *Item[T]
}

// items implements heap.Interface.
type items[T any] []slot[T]

func (l items[T]) Len() int           { return len(l) }
func (l items[T]) Less(i, j int) bool { return l[i].at < l[j].at }

func (l items[T]) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].item.place, l[j].item.place = i+1, j+1
}

func (l *items[T]) Push(x any) {
	s := x.(slot[T])
	*l = append(*l, s)
	s.item.place = len(*l)
}

func (l *items[T]) Pop() any {
	last := len(*l) - 1
	s := (*l)[last]
	(*l)[last] = slot[T]{}
	*l = (*l)[:last]
	s.item.place = 0
	return s
}
