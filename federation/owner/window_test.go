package owner

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
)

// fill adds as many responses as there is room for, and returns their nonces.
func fill(t *testing.T, w *window) []string {
	t.Helper()
	var nonces []string
	for w.free() > 0 {
		name := fmt.Sprintf("s%d", len(nonces))
		nonces = append(nonces, w.add(registry.Update{Event: federation.Event{Operation: federation.Upsert, Name: name}}))
	}
	return nonces
}

func TestWindowSlides(t *testing.T) {
	w := newWindow(4)
	first := fill(t, w)
	if len(first) != 4 {
		t.Fatalf("%d responses are in flight, expected 4", len(first))
	}
	steps := []struct {
		acknowledge int // of first
		inFlight    int
		room        int
	}{{2, 3, 0}, {1, 2, 0}, {0, 1, 3}, {3, 3, 1}}
	for _, step := range steps {
		got, ok := w.acknowledge(first[step.acknowledge])
		if want := fmt.Sprintf("s%d", step.acknowledge); !ok || got.name != want {
			t.Errorf("response %d is %q (%v), expected %q", step.acknowledge, got.name, ok, want)
		}
		if _, again := w.acknowledge(first[step.acknowledge]); again {
			t.Errorf("response %d is acknowledged twice", step.acknowledge)
		}
		if n, _ := w.inFlight(); n != step.inFlight {
			t.Errorf("%d responses are in flight after %d, expected %d", n, step.acknowledge, step.inFlight)
		}
		if n := len(fill(t, w)); n != step.room {
			t.Errorf("there is room for %d after %d, expected %d", n, step.acknowledge, step.room)
		}
	}
}

func TestWindowRefusesUnknownNonces(t *testing.T) {
	w := newWindow(2)
	fill(t, w)
	for _, nonce := range []string{"", "0", "3", "-1", "x", "1.0", " 1", "18446744073709551615", "18446744073709551617"} {
		if got, ok := w.acknowledge(nonce); ok {
			t.Errorf("nonce %q is that of %+v, expected none", nonce, got)
		}
	}
	if n, _ := w.inFlight(); n != 2 {
		t.Errorf("%d responses are in flight, expected 2", n)
	}
}

// TestWindowRouses acknowledges a response while room is waited for, and while it is not.
func TestWindowRouses(t *testing.T) {
	w := newWindow(2)
	for _, full := range []bool{false, true} {
		nonces := []string{w.add(registry.Update{}), w.add(registry.Update{})}
		if full && w.free() > 0 {
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

// TestWindowOracle acknowledges at random, and compares the window with a map.
func TestWindowOracle(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		size := 1 + rnd.IntN(9)
		w := newWindow(size)
		inFlight := make(map[string]string) // names by nonce
		sent := 0
		for range 500 {
			if rnd.IntN(2) == 0 && w.free() > 0 {
				name := strconv.Itoa(sent)
				sent++
				inFlight[w.add(registry.Update{Event: federation.Event{Name: name}})] = name
			}
			nonce := strconv.Itoa(max(0, sent-rnd.IntN(size+2)))
			got, ok := w.acknowledge(nonce)
			want, known := inFlight[nonce]
			delete(inFlight, nonce)
			if ok != known || got.name != want {
				t.Fatalf("seed %d: nonce %s is %q (%v), expected %q (%v)", seed, nonce, got.name, ok, want, known)
			}
			if n, _ := w.inFlight(); n != len(inFlight) {
				t.Fatalf("seed %d: %d are in flight, expected %d", seed, n, len(inFlight))
			}
		}
	}
}

// TestWindowGivesBack fills a large window again and again. Its memory is given back when
// nothing is in flight.
func TestWindowGivesBack(t *testing.T) {
	w := newWindow(100)
	for range 3 {
		nonces := fill(t, w)
		if len(nonces) != 100 || len(w.flights) != 100 {
			t.Fatalf("%d responses are in flight of %d that are kept, expected 100", len(nonces), len(w.flights))
		}
		for i := range nonces {
			if got, ok := w.acknowledge(nonces[(i+50)%100]); !ok || got.name != fmt.Sprintf("s%d", (i+50)%100) {
				t.Fatalf("response %d is %q (%v)", (i+50)%100, got.name, ok)
			}
		}
		if w.flights != nil || w.free() != 100 {
			t.Errorf("at rest there is room for %d, and memory: %v, expected 100 and none", w.free(), w.flights != nil)
		}
	}
}
