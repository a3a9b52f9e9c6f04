package history_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/status/history"
	"github.com/hamlet-federation/coredns-federation/internal/wire/packed"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

var epoch = time.Unix(1_800_000_000, 0).UTC()

func numbered(i int) *federation.Service {
	return &federation.Service{
		Name: fmt.Sprintf("service-%06d", i), FQDN: must.Value(federation.ParseFQDN(fmt.Sprintf("s%d.example", i))),
		Endpoints: []federation.Endpoint{{Address: must.Value(federation.ParseAddress("192.0.2.1")), Port: 80}},
		Instances: []federation.Instance{{ID: "i", Protocol: federation.HTTP}},
	}
}

// gone makes the changes with which services are gone.
func gone(n int) []catalog.Change {
	changes := make([]catalog.Change, n)
	for i := range changes {
		s := numbered(i)
		changes[i] = catalog.Change{Name: s.Name, Was: packed.PackService(s), Cause: catalog.CauseExpired}
	}
	return changes
}

// TestPublished tells of changes: of services that are gone, of one that moves, and of such
// as stay.
func TestPublished(t *testing.T) {
	var log history.ServiceLog
	one, two := packed.PackService(numbered(1)), numbered(1)
	two.FQDN = must.Value(federation.ParseFQDN("moved.example"))
	three := numbered(1)
	three.Description = "another one"
	log.NotePublished([]catalog.Change{
		{Name: "service-000001", Packed: one},
		{Name: "service-000001", Packed: one, Was: one},
		{Name: "service-000001", Packed: packed.PackService(three), Was: one},
	}, epoch)
	if all := log.GoneServices(); len(all) != 0 {
		t.Errorf("nothing is gone: %+v", all)
	}
	log.NotePublished([]catalog.Change{{Name: "service-000001", Packed: packed.PackService(two), Was: one}}, epoch)
	if all := log.GoneServices(); len(all) != 1 || all[0].Cause != "moved" || all[0].FQDN != "s1.example." || all[0].Service != "service-000001" {
		t.Errorf("it has moved: %+v", all)
	}
	log.NotePublished(gone(limit+500), epoch)
	all := log.GoneServices()
	if len(all) != limit || all[0].Service != "service-001499" || all[limit-1].Service != "service-000500" || all[0].Cause != "expired" || !all[0].At.Equal(epoch) {
		t.Errorf("%d are gone, %+v first", len(all), all[0])
	}
}

func TestRetention(t *testing.T) {
	for d, want := range map[time.Duration]float64{0: 0, 24 * time.Hour: 86400, 1500 * time.Millisecond: 1.5} {
		if u := history.ReportOwner("o", new(consumer.Status), d, new(history.ServiceLog), epoch); u.Retention != want || u.ID != "o" || u.State != "connecting" {
			t.Errorf("%v: %+v", d, u)
		}
	}
}

// BenchmarkPublished tells of a catalog that is gone at once, and of one service.
func BenchmarkPublished(b *testing.B) {
	for _, n := range []int{1, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var log history.ServiceLog
			changes := gone(n)
			b.ReportAllocs()
			for b.Loop() {
				log.NotePublished(changes, epoch)
			}
		})
	}
}
