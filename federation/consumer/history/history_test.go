package history_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/history"
	"github.com/hamlet-federation/coredns-federation/federation/status/recent"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
)

// TestLeftOut has services that are not imported: until they are offered, or their owner deletes
// them, and as many as are remembered.
func TestLeftOut(t *testing.T) {
	var log history.Log
	names := func() (all []string) {
		for _, l := range log.AllLeftOut() {
			all = append(all, l.Service+" "+l.FQDN)
		}
		return all
	}
	expect := func(want ...string) {
		t.Helper()
		if got := names(); !slices.Equal(got, want) {
			t.Errorf("left out are %q, want %q", got, want)
		}
	}
	expect()
	const one, two = "service-000001 s1.example.", "service-000002 s2.example."
	log.LeftOut(numbered(1), epoch)
	log.Responded(federation.Upsert, "service-000001", epoch)
	log.LeftOut(numbered(2), epoch.Add(time.Second))
	expect(two, one)
	log.LeftOut(numbered(1), epoch.Add(time.Minute))
	expect(one, two)
	log.Published([]catalog.Change{{Name: "service-000001", Was: packed.Of(numbered(1))}, {Name: "service-000003", Packed: packed.Of(numbered(3))}}, epoch)
	expect(one, two) // that it is gone here is why it is left out
	log.Published([]catalog.Change{{Name: "service-000001", Packed: packed.Of(numbered(1))}}, epoch)
	expect(two)
	log.Responded(federation.Delete, "service-000002", epoch)
	expect()

	for i := range 2 * recent.Limit {
		log.LeftOut(numbered(i), epoch)
	}
	if all := names(); len(all) != recent.Limit || all[0] != fmt.Sprintf("service-%06d s%[1]d.example.", 2*recent.Limit-1) {
		t.Errorf("%d are remembered, first %q", len(all), all[0])
	}
}
