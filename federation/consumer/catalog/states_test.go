package catalog

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
)

// The tests of this file are those of the states that a Catalog is made of, each alone. The
// stories of a whole one are in testdata.

// TestCounts counts records of three generations, of which the first is stale, and takes them
// away again.
func TestCounts(t *testing.T) {
	p := packed.Of(&federation.Service{Name: "web"})
	records := []record{
		{service: p, generation: 1, octets: 10, instances: 2},
		{service: p, generation: 2, octets: 20, instances: 1, admission: nameNotAdmitted},
		{generation: 3, octets: 5, admission: addressNotAdmitted},
		{service: p, octets: 7},
		{},
	}
	var c counts
	for _, r := range records {
		c.add(r, +1, 3, 2)
	}
	want := counts{
		services: 3, instances: 3, stale: 2, notAdmitted: [admissions]int{nameNotAdmitted: 1, addressNotAdmitted: 1},
		octets: 42, current: 5,
	}
	if c != want {
		t.Errorf("%+v, want %+v", c, want)
	}
	for _, r := range records {
		c.add(r, -1, 3, 2)
	}
	if c != (counts{}) {
		t.Errorf("%+v is left of nothing", c)
	}
}

// TestRetention has the clocks when a stream of generation 5 ends at 9.
func TestRetention(t *testing.T) {
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	held, ended := loss{2, at(1)}, loss{5, at(9)}
	for name, tt := range map[string]struct {
		before            retention
		vouched, services bool
		want              []loss
	}{
		"of a first catalog":           {retention{}, true, true, []loss{ended}},
		"while the guard holds some":   {retention{losses: []loss{held}}, true, true, []loss{held, ended}},
		"before it was complete":       {retention{losses: []loss{held}}, false, true, []loss{{5, at(1)}}},
		"after the retention was over": {retention{[]loss{held}, true}, false, true, []loss{ended}},
		"without services":             {retention{[]loss{held}, true}, false, false, []loss{held}},
	} {
		if d := cmp.Diff(tt.want, tt.before.lost(5, at(9), tt.vouched, tt.services), cmp.AllowUnexported(loss{})); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	r := retention{losses: []loss{held, {4, at(5)}, ended}}
	r.hold(3)
	if due, ok := r.due(time.Minute); !ok || len(r.losses) != 2 || !due.Equal(at(61)) {
		t.Errorf("%d clocks, the first due at %v, %v", len(r.losses), due, ok)
	}
	r.expired()
	if r.expired(); !r.over || len(r.losses) != 1 {
		t.Errorf("%+v after the last clock", r)
	}
	if _, ok := r.due(time.Minute); ok {
		t.Error("a clock runs when all are over")
	}
}

// TestIDs has the last service take an ID over.
func TestIDs(t *testing.T) {
	i := newIDs()
	i.identify("web", "7")
	i.identify("api", "7")
	i.identify("db", "api")
	i.identify("api", "")
	if d := cmp.Diff(map[string]string{}, i.of); d != "" {
		t.Errorf("IDs that are not names (-want +got):\n%s", d)
	}
}
