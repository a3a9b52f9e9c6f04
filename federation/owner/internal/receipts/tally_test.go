package receipts

import (
	"math/rand/v2"
	"strconv"
	"testing"
)

// TestTally compares a tally with a map, with so many keys that halves of their hashes are the
// same: of 200,000 some five pairs.
func TestTally(t *testing.T) {
	t.Parallel()
	const keys = 200_000
	random := rand.New(rand.NewPCG(1, 0))
	tally, model := NewTally(), make(map[int]int)
	for i := range keys {
		tally.Add(strconv.Itoa(i))
		model[i]++
	}
	if len(tally.again) == 0 {
		t.Error("no two keys share a half of their hashes")
	}
	for range 2 * keys {
		i := random.IntN(keys)
		if random.IntN(2) == 0 {
			tally.Add(strconv.Itoa(i))
			model[i]++
			continue
		}
		if model[i] == 0 {
			continue
		}
		model[i]--
		if last := tally.Remove(strconv.Itoa(i)); last != (model[i] == 0) {
			t.Fatalf("%d has %d streams left; that it was the last is %t", i, model[i], last)
		}
	}
	for i, n := range model {
		for ; n > 0; n-- {
			if last := tally.Remove(strconv.Itoa(i)); last != (n == 1) {
				t.Fatalf("%d had %d streams; that it was the last is %t", i, n, last)
			}
		}
	}
	if len(tally.once)+len(tally.again) != 0 {
		t.Errorf("%d and %d are left", len(tally.once), len(tally.again))
	}
}
