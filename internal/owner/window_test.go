package owner

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

func TestWindowRefusesUnknownNonces(t *testing.T) {
	w := newSendWindow(2)
	w.addResponse(registry.Update{})
	for _, nonce := range []string{"", "0", "2", "-1", "x", "1.0", " 1", "18446744073709551615", "18446744073709551617"} {
		if got, ok := w.acknowledge(nonce); ok {
			t.Errorf("nonce %q is that of %+v, expected none", nonce, got)
		}
	}
}

// TestWindowRouses acknowledges a response while room is waited for, and while it is not.
func TestWindowRouses(t *testing.T) {
	w := newSendWindow(2)
	for _, full := range []bool{false, true} {
		nonces := []string{w.addResponse(registry.Update{}), w.addResponse(registry.Update{})}
		if full && w.freeRoom() > 0 {
			t.Error("there is room in a full window")
		}
		for _, nonce := range nonces {
			w.acknowledge(nonce)
		}
		if roused := len(w.room) > 0; roused != full {
			t.Errorf("room was waited for: %v, and there is word of some: %v", full, roused)
		}
	}
}

// TestWindowOracle acknowledges at random, and compares the window with a map. It slides: what is
// sent is within its size of the oldest that is in flight. At rest it takes no memory.
func TestWindowOracle(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		size := 1 + rnd.IntN(9)
		w := newSendWindow(size)
		inFlight := make(map[string]string) // names by nonce
		sent := 0
		for range 500 {
			if rnd.IntN(2) == 0 && w.freeRoom() > 0 {
				name := strconv.Itoa(sent)
				sent++
				inFlight[w.addResponse(registry.Update{Event: wire.Event{Name: name}})] = name
			}
			nonce := strconv.Itoa(max(0, sent-rnd.IntN(size+2)))
			got, ok := w.acknowledge(nonce)
			want, known := inFlight[nonce]
			delete(inFlight, nonce)
			if ok != known || got.name != want {
				t.Fatalf("seed %d: nonce %s is %q (%v), expected %q (%v)", seed, nonce, got.name, ok, want, known)
			}
			oldest := sent + 1
			for nonce := range inFlight {
				oldest = min(oldest, must.Get(strconv.Atoi(nonce))(t))
			}
			if n, _ := w.inFlight(); n != len(inFlight) || w.freeRoom() != size-(sent+1-oldest) || n == 0 && w.flights != nil {
				t.Fatalf("seed %d: %d are in flight, with room for %d, expected %d from %d on", seed, n, w.freeRoom(), len(inFlight), oldest)
			}
		}
	}
}
