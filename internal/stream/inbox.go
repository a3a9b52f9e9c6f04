package stream

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

const (
	// maxUpdates is how many responses may wait to be applied, and so how many
	// are applied, published and answered together.
	maxUpdates = 64

	// roomBytes is how much of the room one response may take by itself: a
	// larger one takes the room of several.
	roomBytes = 16 << 10
)

// inbox keeps the responses of one stream that arrive while earlier ones are applied. One
// goroutine, in fillFrom, puts them in, and the goroutine of Run takes them out, in order. An owner
// that waits for each acknowledgement never has more than one in here. If the owner sends ahead, a
// burst is decoded on one core while another core applies what came before, and a whole burst costs
// one publication.
//
// The inbox holds maxUpdates responses, or fewer large ones, and the Sink may hold as many again.
// Beyond that fillFrom stops reading, so that the flow control of the stream slows an owner down
// that floods. Nothing is dropped, because each response is answered.
type inbox struct {
	updates chan Update         // in order; closed at the end of the stream
	ended   chan struct{}       // closed before updates is
	room    *semaphore.Weighted // for maxUpdates parts
	err     error               // why the stream ended; read-only once ended is closed
	pending atomic.Int64        // how many responses came that are not applied yet

	// Owned by the caller of takeWaiting.
	taken []Update
}

func newInbox() *inbox {
	return &inbox{updates: make(chan Update, maxUpdates), ended: make(chan struct{}), room: semaphore.NewWeighted(maxUpdates)}
}

// fillFrom puts in what receive returns, with its size in bytes, until receive fails or ctx ends.
func (in *inbox) fillFrom(ctx context.Context, receive func() (Update, int, error)) {
	defer close(in.updates)
	defer close(in.ended)
	for {
		update, size, err := receive()
		if err != nil {
			if in.err = err; ctx.Err() != nil {
				in.err = context.Cause(ctx)
			}
			return
		}
		in.pending.Add(1)
		update.room = int64(min(1+size/roomBytes, maxUpdates))
		if in.room.Acquire(ctx, update.room) != nil {
			in.err = context.Cause(ctx)
			return
		}
		in.updates <- update // for which there is room
	}
}

// takeWaiting returns an update that the caller got from updates together with those that wait
// behind it, as many as there is room for. The slice is valid until the next call.
func (in *inbox) takeWaiting(update Update) []Update {
	clear(in.taken) // keeps no service that is gone
	in.taken = in.taken[:0]
	for room, ok := int64(0), true; ok; {
		in.taken = append(in.taken, update)
		in.room.Release(update.room)
		if room += update.room; room >= maxUpdates {
			break
		}
		select {
		case update, ok = <-in.updates:
		default:
			ok = false
		}
	}
	return in.taken
}

// markApplied records that the updates of the last takeWaiting have been applied.
func (in *inbox) markApplied() { in.pending.Add(int64(-len(in.taken))) }

// drain waits for the end of the stream, and drops the updates that arrive until then.
func (in *inbox) drain() {
	for update := range in.updates {
		in.room.Release(update.room)
	}
}
