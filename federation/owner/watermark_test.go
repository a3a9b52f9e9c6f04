package owner

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
)

// TestWatermark compares a watermark with a list of all versions and of all acknowledgements.
func TestWatermark(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(200) {
			random := rand.New(rand.NewPCG(seed, 0))
			w := newWindow(1 + random.IntN(8))
			var marks []mark // of all versions
			var inFlight []string
			version, first := uint64(0), uint64(1)
			done := make(map[uint64]time.Time) // when all responses before one were acknowledged
			done[1] = time.Now()
			acked := make(map[uint64]bool)
			for range 300 {
				switch {
				case random.IntN(2) == 0 && w.free() > 0:
					inFlight = append(inFlight, w.add(registry.Update{Event: federation.Event{Operation: federation.Upsert, Name: "s"}}))
				case random.IntN(2) == 0:
					version += uint64(1 + random.IntN(3))
					marks = append(marks, w.told(version))
				case len(inFlight) > 0:
					at := random.IntN(len(inFlight))
					if random.IntN(2) == 0 {
						at = 0
					}
					n, err := strconv.ParseUint(inFlight[at], 10, 64)
					if err != nil {
						t.Fatal(err)
					}
					w.acknowledge(inFlight[at])
					inFlight = append(inFlight[:at], inFlight[at+1:]...)
					for acked[n] = true; acked[first]; first++ {
						done[first+1] = time.Now()
					}
				}
				got := w.answered
				var newest mark
				for _, m := range marks {
					if m.end <= first {
						newest = m
					}
				}
				switch {
				case got.version > newest.version:
					t.Fatalf("seed %d: version %d is done, and %d in truth", seed, got.version, newest.version)
				case len(inFlight) == 0 && got.version != newest.version:
					t.Fatalf("seed %d: nothing is in flight, and version %d is done of %d", seed, got.version, newest.version)
				}
				for _, m := range marks {
					if m.version == got.version && got.at.Before(done[m.end]) {
						t.Fatalf("seed %d: version %d was done at %v, and in truth at %v", seed, m.version, got.at, done[m.end])
					}
				}
				time.Sleep(time.Second)
			}
		}
	})
}
