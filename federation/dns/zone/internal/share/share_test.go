package share_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/internal/share"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// observation is what is known of a name, or of an owner, at a time.
type observation struct {
	at     time.Time
	wanted share.Rank
	forget bool      // nothing is held
	lost   time.Time // zero: the owner is there
}

// FuzzShare does the same with the rule and with one that looks at all that ever was.
func FuzzShare(f *testing.F) {
	f.Add([]byte{1, 30, 60, 5, 0x00, 2, 3, 0x41, 0x92, 0, 1, 31, 2, 1, 0x11, 200})
	f.Fuzz(compare)
}

// TestShare is FuzzShare with random data.
func TestShare(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		data := make([]byte, 300)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		compare(t, data)
	}
}

// compare has data say what happens to a name and to an owner, for some steps.
func compare(t *testing.T, data []byte) {
	t.Helper()
	next := func(n int) int {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return int(b) % n
	}
	enough, hold, after := 1+next(4), time.Duration(next(60))*time.Second, time.Duration(next(90)-1)*time.Second
	var (
		level    share.Level
		demotion share.Demotion
		seen     []observation
		now      = noon
		lost     time.Time
	)
	for len(data) > 0 && len(seen) < 30 {
		now = now.Add(time.Duration(next(40)) * time.Second)
		var all []share.Candidate
		for range next(5) {
			all = append(all, candidate(t, next(share.MaxTier+1), next(8)))
		}
		wanted := share.Wanted(all, enough)
		if naive := leastRank(all, enough); wanted != naive {
			t.Fatalf("of %v with %d enough, %d is wanted, and not %d", all, enough, wanted, naive)
		}
		switch next(4) {
		case 0:
			lost = time.Time{}
		case 1:
			lost = now
		}
		o := observation{at: now, wanted: wanted, forget: next(8) == 0, lost: lost}
		seen = append(seen, o)
		holding := hold
		if o.forget {
			holding = 0
		}

		level = level.Next(wanted, now, holding)
		if want := heldRank(seen, now, hold); level.Rank() != want || level.Wanted() != wanted {
			t.Fatalf("%+v: rank %d, and not %d", seen, level.Rank(), want)
		}
		checkDue(t, level.Due(hold), now, func(at time.Time) bool { return heldRank(seen, at, hold) != level.Rank() })

		var due time.Time
		demotion, due = demotion.Next(lost, now, after, hold)
		demoted := func(at time.Time) bool { return isDemoted(append(seen, observation{at: at, lost: lost}), after, hold) }
		if demotion.Demoted != demoted(now) {
			t.Fatalf("%+v: demoted is %v, after %s, with hold %s", seen, demotion.Demoted, after, hold)
		}
		checkDue(t, due, now, func(at time.Time) bool { return demoted(at) != demotion.Demoted })
	}
}

// candidate makes an endpoint, and checks that its rank says what it is made of.
func candidate(t *testing.T, tier, bits int) share.Candidate {
	t.Helper()
	demoted, last := bits&1 != 0, bits&2 != 0
	r := share.RankOf(tier, demoted, last)
	if r.Tier() != tier || r.Demoted() != demoted || r.Last() != last {
		t.Fatalf("the rank of tier %d, demoted %v, last %v is %d", tier, demoted, last, r)
	}
	return share.Candidate{Rank: r, Live: bits&4 != 0}
}

// leastRank tries every rank, the best first.
func leastRank(all []share.Candidate, enough int) share.Rank {
	for r := range share.All {
		live := slices.DeleteFunc(slices.Clone(all), func(c share.Candidate) bool { return !c.Live || c.Rank > r })
		if len(live) >= enough {
			return r
		}
	}
	return share.All
}

// heldRank returns the most that was wanted less than hold ago, since something was forgotten.
func heldRank(seen []observation, at time.Time, hold time.Duration) share.Rank {
	most := seen[len(seen)-1].wanted
	for i := len(seen) - 1; i > 0 && !seen[i].forget; i-- {
		if at.Sub(seen[i].at) < hold { // until when the one before was wanted
			most = max(most, seen[i-1].wanted)
		}
	}
	return most
}

// isDemoted looks for an observation of an owner that had been lost for long enough, after which it
// was not there for the time of hold.
func isDemoted(seen []observation, after, hold time.Duration) bool {
	var there time.Time // until when it was there without a break, looking back
	for _, o := range slices.Backward(seen) {
		switch {
		case !o.lost.IsZero():
			if after >= 0 && o.at.Sub(o.lost) >= after {
				return true
			}
			there = time.Time{}
		case there.IsZero():
			there = o.at
		}
		if !there.IsZero() && there.Sub(o.at) >= hold {
			return false
		}
	}
	return false
}

// checkDue checks that something changes at a time, and not before; never if that is zero.
func checkDue(t *testing.T, due, now time.Time, changed func(time.Time) bool) {
	t.Helper()
	for at := now; at.Before(now.Add(2 * time.Minute)); at = at.Add(time.Second) {
		if got := changed(at); got {
			if !at.Equal(due) {
				t.Fatalf("it changes after %s, and is due at %s", at.Sub(now), due.Sub(now))
			}
			return
		}
	}
	if !due.IsZero() {
		t.Fatalf("it is due after %s, and does not change", due.Sub(now))
	}
}
