// Package deadline keeps the deadlines of many items in one [Queue], for a caller
// with one timer.
package deadline

import (
	"container/heap"
	"time"
)

// Item is a thing that has a deadline while it is in a Queue. It is in one queue at most, and the
// zero value is in none. An item must not be copied while it is in a queue.
type Item[T any] struct {
	Value T // for the caller of Pop

	at    time.Duration // the deadline
	place int           // in the heap, from 1; 0: not in it
}

// Queue holds items by their deadlines, which are durations since one moment. It has one place for
// each item and no limit of its own, and is not safe for concurrent use. The zero value is empty.
//
// To put a deadline off takes no time, because the item is only moved when its earlier turn comes.
// So the heartbeats of a hundred thousand items are cheap.
type Queue[T any] struct{ list itemHeap[T] }

// SetDeadline puts the item into the queue, or changes its deadline.
func (q *Queue[T]) SetDeadline(i *Item[T], at time.Duration) {
	i.at = at
	switch {
	case i.place == 0:
		heap.Push(&q.list, heapSlot[T]{at, i})
	case at < q.list[i.place-1].at:
		q.list[i.place-1].at = at
		heap.Fix(&q.list, i.place-1)
	}
}

// Deadline returns the deadline of the item, and whether it is in a queue.
func (i *Item[T]) Deadline() (time.Duration, bool) { return i.at, i.place > 0 }

// Remove takes the item out of the queue, if it is there.
func (q *Queue[T]) Remove(i *Item[T]) {
	if i.place > 0 {
		heap.Remove(&q.list, i.place-1)
	}
}

// Pop takes out and returns the item with the earliest deadline, if that is at now or before, or
// returns nil.
func (q *Queue[T]) Pop(now time.Duration) *Item[T] {
	for len(q.list) > 0 && q.list[0].at <= now {
		first := &q.list[0]
		if first.at == first.item.at {
			return heap.Pop(&q.list).(heapSlot[T]).item
		}
		first.at = first.item.at
		heap.Fix(&q.list, 0)
	}
	return nil
}

// NextDeadline returns a time before which Pop returns nothing, and whether there is one.
func (q *Queue[T]) NextDeadline() (time.Duration, bool) {
	if len(q.list) == 0 {
		return 0, false
	}
	return q.list[0].at, true
}

// heapSlot is an item in the heap, with a time that is not after its deadline.
type heapSlot[T any] struct {
	at   time.Duration
	item *Item[T]
}

// itemHeap implements heap.Interface.
type itemHeap[T any] []heapSlot[T]

func (l itemHeap[T]) Len() int           { return len(l) }
func (l itemHeap[T]) Less(i, j int) bool { return l[i].at < l[j].at }

func (l itemHeap[T]) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].item.place, l[j].item.place = i+1, j+1
}

func (l *itemHeap[T]) Push(x any) {
	s := x.(heapSlot[T])
	*l = append(*l, s)
	s.item.place = len(*l)
}

func (l *itemHeap[T]) Pop() any {
	last := len(*l) - 1
	s := (*l)[last]
	(*l)[last] = heapSlot[T]{}
	*l = (*l)[:last]
	s.item.place = 0
	return s
}
