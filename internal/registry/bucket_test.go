package registry

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// TestBuckets makes one bucket after another, and compares each with a map, and what differs
// between any two of them with what differs between the maps.
func TestBuckets(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	entryOf := func(name string) *serviceEntry {
		s := services.At("web.example.org", "192.0.2.1")
		s.Name = name
		return &serviceEntry{service: must.Get(wire.NewEncoded(s))(t)}
	}
	type version struct {
		bucket bucket
		want   map[string]*serviceEntry
	}
	versions := []version{{nil, map[string]*serviceEntry{}}}
	for round := range 60 {
		last := versions[len(versions)-1]
		want := maps.Clone(last.want)
		edits := make(map[string]entryEdit)
		most := 1 + random.IntN([]int{1, 3, 1000}[random.IntN(3)])
		for range most {
			name := fmt.Sprintf("s%04d", random.IntN(2000))
			e := entryEdit{name: name}
			if delete(want, name); random.IntN(4) < 2+round/30%2*2-1 { // it grows for 30 rounds, and shrinks for 30
				e.entry = entryOf(name)
				want[name] = e.entry
			}
			edits[name] = e
		}
		sorted := make([]entryEdit, 0, len(edits))
		for _, name := range slices.Sorted(maps.Keys(edits)) {
			sorted = append(sorted, edits[name])
		}
		versions = append(versions, version{last.bucket.withEdits(sorted), want})
		for _, other := range []version{last, versions[random.IntN(len(versions))], versions[len(versions)-1]} {
			compareBuckets(t, other.bucket, versions[len(versions)-1].bucket, other.want, want)
		}
	}
	for _, v := range versions {
		compareBuckets(t, v.bucket, v.bucket, v.want, v.want) // nobody has changed it since
	}
}

// compareBuckets checks that a bucket has what it should, and how it differs from another one.
func compareBuckets(t *testing.T, before, after bucket, had, has map[string]*serviceEntry) {
	t.Helper()
	names := slices.Sorted(maps.Keys(has))
	if len(after) != len(names) {
		t.Fatalf("%d entries of %d", len(after), len(names))
	}
	for i, name := range names {
		if after[i] != has[name] || after.findEntry(name) != has[name] {
			t.Fatalf("entry %d is %s, not %s", i, after[i].service.Name(), name)
		}
	}
	if e := after.findEntry("s0000a"); e != nil {
		t.Fatalf("found %s", e.service.Name())
	}
	all := maps.Clone(had)
	maps.Copy(all, has)
	var want []entryPair
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if had[name] != has[name] {
			want = append(want, entryPair{had[name], has[name]})
		}
	}
	if !slices.Equal(diffBuckets(before, after), want) {
		t.Fatalf("%d entries differ, not %d", len(diffBuckets(before, after)), len(want))
	}
}
