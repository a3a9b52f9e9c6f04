package turnstile_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation/owner/internal/turnstile"
)

// state returns what became of a visit.
func state(v *turnstile.Visit) string {
	select {
	case <-v.Turn:
	default:
		return "waits"
	}
	if err := v.Err(); err != nil {
		return err.Error()
	}
	return "has its turn"
}

// TestFair has one sender with many visitors and two with a few. The slots go round, and
// each sender's visitors come in their order.
func TestFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := turnstile.New[string](turnstile.Config{Slots: 1, Hold: time.Hour, Wait: time.Hour})
		type visitor struct {
			name  string
			visit *turnstile.Visit
		}
		var all []visitor
		for _, name := range []string{"a0", "a1", "a2", "a3", "b1", "b2", "c1"} {
			all = append(all, visitor{name, turns.Enter(name[:1])})
		}
		var order []string
		for range all {
			for i, v := range all {
				if state(v.visit) == "has its turn" && !slices.Contains(order, v.name) {
					order = append(order, v.name)
					all[i].visit.Leave()
					all[i].visit.Leave()
					break
				}
			}
		}
		if diff := cmp.Diff([]string{"a0", "a1", "b1", "c1", "a2", "b2", "a3"}, order); diff != "" {
			t.Errorf("unexpected order (-want +got):\n%s", diff)
		}
		if inside, waiting := turns.Len(); inside != 0 || waiting != 0 {
			t.Errorf("%d are inside and %d wait, expected none", inside, waiting)
		}
	})
}

// TestSlotIsLost has a visitor that never leaves. After a while it does not count any more,
// and that it leaves then changes nothing.
func TestSlotIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := turnstile.New[int](turnstile.Config{Slots: 1, Hold: time.Second, Wait: time.Minute})
		stuck, second, third := turns.Enter(1), turns.Enter(1), turns.Enter(2)
		time.Sleep(time.Second - 1)
		synctest.Wait()
		if got := state(second); got != "waits" {
			t.Errorf("within a second the second one %s", got)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if got := state(second); got != "has its turn" {
			t.Errorf("after a second the second one %s", got)
		}
		stuck.Leave()
		if got := state(third); got != "waits" {
			t.Errorf("beside the second one the third one %s", got)
		}
		second.Leave()
		third.Leave()
	})
}

// TestLate has visitors wait for too long, and one that gives up before.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := turnstile.New[int](turnstile.Config{Slots: 1, Hold: time.Hour, Wait: time.Second})
		first, late, impatient := turns.Enter(1), turns.Enter(1), turns.Enter(2)
		impatient.Leave()
		if got := state(impatient); got != "has its turn" { // nobody is told of it
			t.Errorf("one that has given up %s", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if err := late.Err(); !errors.Is(err, turnstile.ErrLate) {
			t.Errorf("one that has waited for too long ends with %v", err)
		}
		late.Leave()
		if inside, waiting := turns.Len(); inside != 1 || waiting != 0 {
			t.Errorf("%d are inside and %d wait, expected 1 and none", inside, waiting)
		}
		first.Leave()
	})
}

// TestModel has visitors of some senders come, go, hang and give up at random. There are
// never more inside than there are slots, no slot is free while somebody waits, nobody
// waits for longer than allowed, and each sender's visitors come in their order.
func TestModel(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			c := turnstile.Config{Slots: 1 + random.IntN(4), Hold: 5 * time.Second, Wait: 8 * time.Second}
			turns := turnstile.New[int](c)
			type visitor struct {
				*turnstile.Visit

				key           int
				came, entered time.Time
			}
			var open []*visitor
			for range 300 {
				switch random.IntN(4) {
				case 0, 1:
					v := &visitor{key: random.IntN(4), came: time.Now()}
					v.Visit = turns.Enter(v.key)
					open = append(open, v)
				case 2:
					if len(open) > 0 {
						i := random.IntN(len(open))
						open[i].Leave()
						open = slices.Delete(open, i, i+1)
					}
				case 3:
					time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond)
				}
				synctest.Wait()
				inside, waiting := 0, 0
				blocked := make(map[int]bool) // senders of whom somebody waits
				open = slices.DeleteFunc(open, func(v *visitor) bool {
					now := state(v.Visit)
					switch {
					case now == "waits":
						waiting++
						blocked[v.key] = true
						if time.Since(v.came) >= c.Wait {
							t.Errorf("seed %d: a visitor waits for %v", seed, time.Since(v.came))
						}
					case now != "has its turn":
						return true
					case v.entered.IsZero():
						v.entered = time.Now()
						if blocked[v.key] {
							t.Errorf("seed %d: a visitor is ahead of one of the same sender that came before", seed)
						}
						fallthrough
					case time.Since(v.entered) < c.Hold:
						inside++
					}
					return false
				})
				gotInside, gotWaiting := turns.Len()
				if gotInside > c.Slots || gotInside > inside || gotWaiting != waiting || waiting > 0 && gotInside < c.Slots {
					t.Fatalf("seed %d: %d are inside %d slots and %d wait, expected up to %d and %d", seed, gotInside, c.Slots, gotWaiting, inside, waiting)
				}
			}
			for _, v := range open {
				v.Leave()
			}
			if inside, waiting := turns.Len(); inside != 0 || waiting != 0 {
				t.Errorf("seed %d: %d are inside and %d wait after all have left", seed, inside, waiting)
			}
		})
	}
}
