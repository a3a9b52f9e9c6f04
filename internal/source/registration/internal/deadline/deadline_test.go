package deadline_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/source/registration/internal/deadline"
)

// naive is a queue that looks at everything.
type naive map[int]time.Duration

// due takes out the items whose deadline is at now or before, and returns the deadlines,
// the earliest first.
func (n naive) due(now time.Duration) []time.Duration {
	var list []time.Duration
	for i, at := range n {
		if at <= now {
			list = append(list, at)
			delete(n, i)
		}
	}
	slices.Sort(list)
	return list
}

// A queue does what a naive one does, whatever is put off, moved up and removed.
func TestRandom(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		var q deadline.Queue[int]
		items := make([]deadline.Item[int], 40)
		want := make(naive)
		now := time.Duration(0)
		for range 1000 {
			i := random.IntN(len(items))
			items[i].Value = i
			switch random.IntN(10) {
			case 0, 1:
				q.Remove(&items[i])
				delete(want, i)
			case 2:
				now += time.Duration(random.IntN(30))
				before := maps.Clone(want)
				var got []time.Duration
				for item := q.Pop(now); item != nil; item = q.Pop(now) {
					at, in := item.Deadline()
					if in || at != before[item.Value] {
						t.Fatalf("seed %d: item %d came with %d, in a queue: %t; its deadline is %d", seed, item.Value, at, in, before[item.Value])
					}
					got = append(got, at)
				}
				if due := want.due(now); !slices.Equal(got, due) {
					t.Fatalf("seed %d: at %d came %d, expected %d", seed, now, got, due)
				}
			default:
				at := now + time.Duration(random.IntN(100)) - 10
				q.SetDeadline(&items[i], at)
				want[i] = at
			}
			next, ok := q.NextDeadline()
			if ok != (len(want) > 0) {
				t.Fatalf("seed %d: Next reports %t, there are %d", seed, ok, len(want))
			}
			for i := range items {
				at, in := items[i].Deadline()
				if wanted, there := want[i]; in != there || in && (at != wanted || at < next) {
					t.Fatalf("seed %d: item %d has %d, %t, expected %d, %t; the next is at %d", seed, i, at, in, wanted, there, next)
				}
			}
		}
	}
}

// Heartbeats put a deadline off again and again.
func TestPutOff(t *testing.T) {
	var q deadline.Queue[string]
	i := deadline.Item[string]{Value: "beats"}
	for at := time.Duration(0); at < time.Minute; at += time.Second {
		q.SetDeadline(&i, at+2*time.Second)
		if q.Pop(at+time.Second) != nil {
			t.Fatalf("it came at %s", at)
		}
	}
	if q.Pop(61*time.Second) != &i || q.Pop(time.Hour) != nil {
		t.Error("it does not come once at its last deadline")
	}
}
