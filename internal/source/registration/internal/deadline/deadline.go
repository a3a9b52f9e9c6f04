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
type Queue[T any] struct{ list itemHeap[T] }

// SetDeadline puts the item into the queue, or changes its deadline.
func (q *Queue[T]) SetDeadline(i *Item[T], at time.Duration) {
	i.at = at
	if i.place == 0 {
		heap.Push(&q.list, i)
	} else {
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
	if next, ok := q.NextDeadline(); !ok || next > now {
		return nil
	}
	return heap.Pop(&q.list).(*Item[T])
}

// NextDeadline returns the earliest deadline, and whether there is one.
func (q *Queue[T]) NextDeadline() (time.Duration, bool) {
	if len(q.list) == 0 {
		return 0, false
	}
	return q.list[0].at, true
}

// itemHeap implements heap.Interface.
type itemHeap[T any] []*Item[T]

func (l itemHeap[T]) Len() int           { return len(l) }
func (l itemHeap[T]) Less(i, j int) bool { return l[i].at < l[j].at }

func (l itemHeap[T]) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].place, l[j].place = i+1, j+1
}

func (l *itemHeap[T]) Push(x any) {
	i := x.(*Item[T])
	*l = append(*l, i)
	i.place = len(*l)
}

func (l *itemHeap[T]) Pop() any {
	last := len(*l) - 1
	i := (*l)[last]
	(*l)[last] = nil
	*l = (*l)[:last]
	i.place = 0
	return i
}
