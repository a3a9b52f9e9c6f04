package wire

import (
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// TestWordLength shares strings of up to 64 bytes.
func TestWordLength(t *testing.T) {
	for n, want := range map[int]bool{1: true, 64: true, 65: false} {
		first, second := strings.Repeat("w", n), strings.Repeat("w", n)
		one, other := word(first), word(second)
		if one != first || other != first {
			t.Errorf("of %d bytes: the words are %q and %q", n, one, other)
		}
		if shared := unsafe.StringData(one) == unsafe.StringData(other); shared != want {
			t.Errorf("of %d bytes: shared is %v, expected %v", n, shared, want)
		}
	}
}

// TestShareCopies shares the strings of lists with more and less unused room.
func TestShareCopies(t *testing.T) {
	for _, tt := range []struct {
		length, room int
		copied       bool
	}{{8, 0, false}, {8, 1, false}, {8, 2, true}, {7, 1, true}, {16, 2, false}, {16, 3, true}} {
		list := slices.Repeat([]string{"eu"}, tt.length+tt.room)[:tt.length]
		got := share(list)
		if !slices.Equal(got, list) || cap(got) > tt.length+1 {
			t.Errorf("%+v: the list is %q with room for %d", tt, got, cap(got))
		}
		if copied := &got[0] != &list[0]; copied != tt.copied {
			t.Errorf("%+v: copied is %v", tt, copied)
		}
		if !tt.copied && cap(got) != tt.length {
			t.Errorf("%+v: who appends to the list writes into the message", tt)
		}
	}
	if got := share(nil); got != nil {
		t.Errorf("no list became %q", got)
	}
}

// TestShareListsOfOneEach has nothing to share: no map is made for one endpoint and
// one instance, which most services have.
func TestShareListsOfOneEach(t *testing.T) {
	endpoints := []federation.Endpoint{{Labels: []string{"eu"}}}
	instances := []federation.Instance{{EndpointSelector: []string{"eu"}}}
	if n := testing.AllocsPerRun(10, func() { shareLists(endpoints, instances) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	// Two instances are worth it.
	instances = append(instances, federation.Instance{EndpointSelector: []string{"eu"}})
	shareLists(endpoints, instances)
	if &instances[0].EndpointSelector[0] != &endpoints[0].Labels[0] || &instances[1].EndpointSelector[0] != &endpoints[0].Labels[0] {
		t.Error("three equal lists are not one")
	}
}

func TestHashList(t *testing.T) {
	lists := [][]string{{"ab", "c"}, {"a", "bc"}, {"abc"}, {"ab", "d"}, {"ab"}, {"ab", "c", ""}}
	hashes := make(map[uint64][]string)
	for _, list := range lists {
		hash := hashList(list)
		if other, ok := hashes[hash]; ok {
			t.Errorf("%q and %q have one hash", list, other)
		}
		if hash != hashList(slices.Clone(list)) {
			t.Errorf("%q has two hashes", list)
		}
		hashes[hash] = list
	}
}
