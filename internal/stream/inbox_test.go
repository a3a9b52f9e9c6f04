package stream

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/semaphore"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// filled starts an inbox with responses of these sizes, which are called a, b, c
// and so on, and then ends with io.EOF.
func filled(ctx context.Context, t *testing.T, sizes ...int) (in *inbox, received *int) {
	t.Helper()
	in, received = newInbox(), new(int)
	done := make(chan struct{})
	go func() {
		defer close(done)
		in.fillFrom(ctx, func() (Update, int, error) {
			if *received == len(sizes) {
				return Update{}, 0, io.EOF
			}
			*received++
			return Update{nonce: string(rune('a' + *received - 1))}, sizes[*received-1], nil
		})
	}()
	t.Cleanup(func() { <-done })
	return in, received
}

// take takes what is there, or fails with why the stream has ended.
func take(in *inbox) ([]Update, error) {
	update, ok := <-in.updates
	if !ok {
		return nil, in.err
	}
	return in.takeWaiting(update), nil
}

func nonces(updates []Update) (all string) {
	for i := range updates {
		all += updates[i].nonce
	}
	return all
}

// What came meanwhile is taken together, in order, and the end comes last.
func TestInbox(t *testing.T) {
	const part = roomBytes
	for name, tc := range map[string]struct {
		sizes []int
		want  []string // what each call of take returns when all that has room is there
	}{
		"nothing":                  {nil, nil},
		"one":                      {[]int{0}, []string{"a"}},
		"a burst":                  {[]int{0, 1, 2, part - 1}, []string{"abcd"}},
		"one fills the room":       {[]int{0, part * maxUpdates, 0}, []string{"a", "b", "c"}},
		"larger than the room":     {[]int{part * maxUpdates * 9, 0}, []string{"a", "b"}},
		"two share the room":       {[]int{part*maxUpdates/2 - 1, part*maxUpdates/2 - 1, 0}, []string{"ab", "c"}},
		"two are more than it has": {[]int{part * maxUpdates / 2, part * maxUpdates / 2, 0}, []string{"a", "bc"}},
		"more than may wait":       {make([]int, maxUpdates+1), []string{nonces(numbered(0, maxUpdates)), nonces(numbered(maxUpdates, maxUpdates+1))}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in, _ := filled(t.Context(), t, tc.sizes...)
				var got []string
				for {
					synctest.Wait()
					updates, err := take(in)
					if err != nil {
						if !errors.Is(err, io.EOF) || updates != nil {
							t.Errorf("the end is %v with %v", err, updates)
						}
						break
					}
					got = append(got, nonces(updates))
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			})
		})
	}
}

func numbered(from, to int) (updates []Update) {
	for i := from; i < to; i++ {
		updates = append(updates, Update{nonce: string(rune('a' + i))})
	}
	return updates
}

// An owner that floods is read no faster than its updates are applied.
func TestInboxIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		in, received := filled(ctx, t, make([]int, 10*maxUpdates)...)
		taken := 0
		for range 5 {
			synctest.Wait()
			if want := taken + maxUpdates + 1; *received != want { // one has no room yet
				t.Fatalf("%d responses were received, want %d", *received, want)
			}
			updates, err := take(in)
			if len(updates) != maxUpdates || err != nil {
				t.Fatalf("%d updates with %v", len(updates), err)
			}
			taken += len(updates)
		}
		cancel()
		synctest.Wait()
		for {
			if _, err := take(in); err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("the end is %v", err)
				}
				return
			}
		}
	})
}

// What was taken counts as pending until it was applied, and no more is taken at a
// time than may wait.
func TestInboxPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(Consumer)
		in := &inbox{updates: make(chan Update, maxUpdates+2), room: semaphore.NewWeighted(maxUpdates + 2)}
		c.inbox.Store(in)
		for _, update := range numbered(0, maxUpdates+2) {
			update.room = 1
			in.updates <- update
			must.Do(t, in.room.Acquire(t.Context(), 1))
			in.pending.Add(1)
		}
		close(in.updates)
		for _, want := range []int{maxUpdates, 2} {
			updates, err := take(in)
			if len(updates) != want || err != nil {
				t.Errorf("%d updates are taken: %v", len(updates), err)
			}
			if !c.HasPending() {
				t.Error("nothing is pending before it is applied")
			}
			in.markApplied()
		}
		if c.HasPending() {
			t.Errorf("%d are pending in the end", in.pending.Load())
		}
	})
}

// To drain an inbox is to make room for all that is still to come.
func TestInboxDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, received := filled(t.Context(), t, make([]int, 3*maxUpdates)...)
		in.drain()
		if _, err := take(in); !errors.Is(err, io.EOF) || *received != 3*maxUpdates || !in.room.TryAcquire(maxUpdates) {
			t.Errorf("after %d responses there is not room for all: %v", *received, err)
		}
	})
}
