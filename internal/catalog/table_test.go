package catalog

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// numbered returns the record of a service, or of a name without one.
func numbered(name string, generation uint32, bare bool) nameRecord {
	if bare {
		return nameRecord{generation: generation, admission: nameNotAdmitted}
	}
	s := services.At("web.fed.example", "192.0.2.1")
	s.Name = name
	return nameRecord{service: packed.PackService(s), generation: generation}
}

// generations returns what a table has, and fails where that is not what it says of itself.
func generations(t *testing.T, records *recordTable) map[string]uint32 {
	t.Helper()
	all := make(map[string]uint32)
	for name, r := range records.allRecords() {
		if _, ok := all[name]; ok {
			t.Fatalf("%s is there twice", name)
		}
		if got, ok := records.get(name); !ok || got != r {
			t.Fatalf("%s is %v, %t, and %v among all", name, got, ok, r)
		}
		all[name] = r.generation
	}
	if n := len(records.list) + len(records.names); n != len(all) {
		t.Fatalf("%d records, and it says %d", len(all), n)
	}
	taken := 0
	for _, p := range records.index {
		if p.next > 0 {
			taken++
		}
	}
	if taken != len(records.list) || taken > len(records.index)/4*3 {
		t.Fatalf("%d of %d places are taken, for %d records", taken, len(records.index), len(records.list))
	}
	return all
}

// TestTable sets and deletes names, some of them without a service, beside a map. In every other
// table many have the same hash, or the same place of their first choice.
func TestTable(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 0))
		records, want := newRecordTable(), make(map[string]uint32)
		if seed%2 == 0 {
			records.hash = func(name string) uint32 { return uint32(len(name)%3) * 6 }
		}
		names := 1 + random.IntN(200)
		for step := range uint32(600) {
			name := fmt.Sprint("s", random.IntN(names))
			switch random.IntN(5) {
			case 0, 1:
				records.deleteRecord(name)
				delete(want, name)
			default:
				records.setRecord(name, numbered(name, step, random.IntN(4) == 0))
				want[name] = step
			}
			if step%20 == 0 {
				if d := cmp.Diff(want, generations(t, &records)); d != "" {
					t.Fatalf("seed %d, step %d (-want +got):\n%s", seed, step, d)
				}
			}
		}
		if r, ok := records.get("other"); ok {
			t.Errorf("a name that was never set is %v", r)
		}
		for name := range maps.Clone(want) {
			records.deleteRecord(name)
		}
		if len(generations(t, &records)) != 0 || records.list != nil || records.index != nil {
			t.Errorf("an empty table takes memory")
		}
	}
}

// TestTableChangesMeanwhile removes what is yielded, or sets it, with and without a service.
func TestTableChangesMeanwhile(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		records, want := newRecordTable(), make(map[string]uint32)
		for i := range 100 {
			name := fmt.Sprint("s", i)
			records.setRecord(name, numbered(name, 1, i%7 == 0))
		}
		seen := make(map[string]bool)
		for name := range records.allRecords() {
			if seen[name] {
				t.Fatalf("%s is yielded twice", name)
			}
			seen[name] = true
			switch random.IntN(4) {
			case 0:
				records.deleteRecord(name)
			case 1:
				records.setRecord(name, numbered(name, 2, true))
				want[name] = 2
			case 2:
				r, _ := records.get(name)
				r.generation = 3
				records.setRecord(name, r)
				want[name] = 3
			default:
				want[name] = 1
			}
		}
		if len(seen) != 100 {
			t.Errorf("%d names are yielded", len(seen))
		}
		if d := cmp.Diff(want, generations(t, &records)); d != "" {
			t.Errorf("seed %d (-want +got):\n%s", seed, d)
		}
	}
}
