package zone

import (
	"fmt"
	"hash/maphash"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// byName is what an index holds.
func byName(t *testing.T, x *index) map[string]*node {
	t.Helper()
	all := make(map[string]*node)
	for n := range x.all() {
		if all[n.name] != nil {
			t.Fatalf("%s is there twice", n.name)
		}
		all[n.name] = n
	}
	return all
}

var sameNode = cmp.Comparer(func(a, b *node) bool { return a == b })

// TestIndexVersions makes random changes beside a map, a few or many at a time,
// and checks that every version still holds what the map held then.
func TestIndexVersions(t *testing.T) {
	type version struct {
		index index
		want  map[string]*node
	}
	r := rand.New(rand.NewPCG(1, 2))
	w, want := newIndexWriter(), make(map[string]*node)
	var versions []version
	for range 300 {
		for range 1 + r.IntN(20)*r.IntN(20) {
			name := fmt.Sprintf("%d.example.", r.IntN(4000))
			if r.IntN(3) == 0 {
				w.delete(name)
				delete(want, name)
			} else {
				n := &node{name: name}
				w.set(n)
				want[name] = n
			}
			if got := w.get(name); got != want[name] {
				t.Fatalf("%s is %v before it is published, want %v", name, got, want[name])
			}
		}
		x := w.publish()
		if w.size != len(want) || len(w.pending) != 0 {
			t.Fatalf("writer counts %d names and %d changes, want %d and 0", w.size, len(w.pending), len(want))
		}
		versions = append(versions, version{x, maps.Clone(want)})
	}
	for _, v := range versions {
		if diff := cmp.Diff(v.want, byName(t, &v.index), sameNode); diff != "" {
			t.Fatalf("a version changed (-want +got):\n%s", diff)
		}
		for i := range 4000 {
			name := fmt.Sprintf("%d.example.", i)
			if got := v.index.get(name); got != v.want[name] {
				t.Fatalf("%s is %v, want %v", name, got, v.want[name])
			}
		}
	}
}

// TestIndexCollisions has more names of one hash than a list holds otherwise.
func TestIndexCollisions(t *testing.T) {
	x := index{seed: maphash.MakeSeed()}
	hash := x.hash("0.example.")
	want := make(map[string]*node)
	for i := range 3 * maxLeaves {
		n := &node{name: fmt.Sprintf("%d.example.", i)}
		x.root = x.root.change(hash, n.name, n, 0)
		want[n.name] = n
	}
	if got := x.get("0.example."); got != want["0.example."] {
		t.Errorf("0.example. is %v, want %v", got, want["0.example."])
	}
	for i := range maxLeaves {
		name := fmt.Sprintf("%d.example.", 2*i)
		x.root = x.root.change(hash, name, nil, 0)
		delete(want, name)
	}
	if diff := cmp.Diff(want, byName(t, &x), sameNode); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
