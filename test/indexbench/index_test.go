package indexbench

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestVersions makes random changes to every candidate beside a map, and checks
// that every version, also the ones before, holds what the map held then.
func TestVersions(t *testing.T) {
	for _, c := range candidates {
		t.Run(c.name, func(t *testing.T) {
			type step struct {
				index version
				want  map[string]*node
			}
			r := rand.New(rand.NewPCG(5, 6))
			want := make(map[string]*node)
			var keys []string
			var nodes []*node
			for i := range 200 {
				n := &node{Name: fmt.Sprintf("%d.example.", i), Value: i}
				keys, nodes, want[n.Name] = append(keys, n.Name), append(nodes, n), n
			}
			v := c.build(keys, nodes)
			steps := []step{{v, maps.Clone(want)}}
			for i := range 2000 {
				name := fmt.Sprintf("%d.example.", r.IntN(400))
				if r.IntN(2) == 0 {
					v = v.delete(name)
					delete(want, name)
				} else {
					n := &node{Name: name, Value: 1000 + i}
					v = v.set(name, n)
					want[name] = n
				}
				if i%20 == 0 {
					steps = append(steps, step{v, maps.Clone(want)})
				}
			}
			for name := range want {
				v = v.delete(name)
			}
			steps = append(steps, step{v, map[string]*node{}})
			for _, s := range steps {
				got := maps.Collect(s.index.all())
				if diff := cmp.Diff(s.want, got, cmp.Comparer(func(a, b *node) bool { return a == b })); diff != "" {
					t.Fatalf("a version changed (-want +got):\n%s", diff)
				}
				for i := range 400 {
					name := fmt.Sprintf("%d.example.", i)
					if got, want := s.index.get(name), value(s.want[name]); got != want {
						t.Fatalf("get %q: %p, want %p", name, got, want)
					}
				}
			}
		})
	}
}

// TestReadersBesideWriter is for the race detector: a version that readers hold
// must not be written by the change that makes the next one.
func TestReadersBesideWriter(t *testing.T) {
	for _, c := range candidates {
		t.Run(c.name, func(t *testing.T) {
			var keys []string
			var nodes []*node
			for i := range 1000 {
				n := &node{Name: fmt.Sprintf("%d.example.", i), Value: i}
				keys, nodes = append(keys, n.Name), append(nodes, n)
			}
			v := c.build(keys, nodes)
			done := make(chan struct{})
			go func(v version) {
				defer close(done)
				for range v.all() {
				}
				for i, key := range keys {
					if v.get(key) != &nodes[i].Value {
						t.Errorf("get %q: the version changed", key)
					}
				}
			}(v)
			for i, key := range keys {
				v = v.set(key, &node{Name: key, Value: -1})
				if i%3 == 0 {
					v = v.delete(key)
				}
			}
			<-done
		})
	}
}
