package serve

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/internal/owner"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/status"
)

// TestClasses has a catalog with classes beyond each of the bounds, which are shown as one.
func TestClasses(t *testing.T) {
	var long []int
	for i := range maxClassName {
		long = append(long, i+1)
	}
	got := reportClasses(owner.CatalogStats{Stats: registry.Stats{Classes: []registry.ClassStats{
		{Consumers: 1}, {Rules: []int{1, 3}, Consumers: 2, Services: 4}, {Rules: long, Consumers: 5, Services: 6},
	}}})
	want := []status.ConsumerClass{{Name: "none", Consumers: 1}, {Name: "1+3", Consumers: 2, Services: 4}, {Name: "other", Consumers: 5, Services: 6}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	var many owner.CatalogStats
	for i := range maxClasses + 2 {
		many.Classes = append(many.Classes, registry.ClassStats{Rules: []int{i}, Consumers: 2, Services: 5})
	}
	got = reportClasses(many)
	if other := got[len(got)-1]; len(got) != maxClasses+1 || other != (status.ConsumerClass{Name: "other", Consumers: 4, Services: 10}) {
		t.Errorf("%d classes are shown, the last one is %+v", len(got), other)
	}
}

// TestReportSource has a source in each state.
func TestReportSource(t *testing.T) {
	for want, of := range map[string]source.SourceStatus{
		"waiting": {Away: "no such file"}, "current": {Complete: true},
		"away": {Complete: true, Away: "no such file"}, "lapsed": {Complete: true, Away: "no such file", Lapsed: true},
	} {
		if got := reportSource(of); got.State != want || got.Away != of.Away {
			t.Errorf("%+v is reported as %+v, expected %s", of, got, want)
		}
	}
	if got := reportSource(source.SourceStatus{Lifetime: source.NoLifetime}); got.Lifetime != -1 {
		t.Errorf("no lifetime is reported as %v s", got.Lifetime)
	}
}
