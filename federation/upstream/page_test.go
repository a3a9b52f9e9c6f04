package upstream_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/mirror"
	"github.com/hamlet-federation/coredns-federation/federation/packed"
	"github.com/hamlet-federation/coredns-federation/federation/recent"
	"github.com/hamlet-federation/coredns-federation/federation/upstream"
	"github.com/hamlet-federation/coredns-federation/federation/zone"
)

var epoch = time.Unix(1_800_000_000, 0).UTC()

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func numbered(i int) *federation.Service {
	return &federation.Service{
		Name: fmt.Sprintf("service-%06d", i), FQDN: must(federation.ParseFQDN(fmt.Sprintf("s%d.example", i))),
		Endpoints: []federation.Endpoint{{Address: must(federation.ParseAddress("192.0.2.1")), Port: 80}},
		Instances: []federation.Instance{{ID: "i", Protocol: federation.HTTP}},
	}
}

// published is a zone with so many services.
func published(n int) upstream.Part {
	builder := zone.NewBuilder(zone.Config{Owners: []zone.Owner{{ID: "o", Origins: []federation.FQDN{must(federation.ParseFQDN("example"))}}}}, nil)
	for i := range n {
		builder.PutPacked(0, packed.Of(numbered(i)), 1, 1)
	}
	return upstream.Part{Zone: builder.Publish(epoch)}
}

func TestPages(t *testing.T) {
	parts := []upstream.Part{published(5000), published(3000)}
	var catalogs upstream.Catalogs
	after, n := "", 0
	for {
		services, next, err := catalogs.Page("o", parts, 0, after, 300)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range services {
			if want := numbered(n); s.Name != want.Name || s.FQDN != want.FQDN.String() || !s.Updated.Equal(time.Unix(1, 0)) {
				t.Fatalf("%d is %+v", n, s)
			}
			n++
		}
		if after = next; after == "" {
			break
		}
	}
	if n != 5000 {
		t.Errorf("%d services", n)
	}
	n = 0
	for s, err := range catalogs.Services("o", parts, 0) {
		if err != nil || s.Name != numbered(n).Name {
			t.Fatal(n, s, err)
		}
		n++
	}
	if n != 5000 {
		t.Errorf("%d services", n)
	}
	services, next, err := catalogs.Page("o", []upstream.Part{published(3)}, 0, "service-000001", 300)
	if err != nil || len(services) != 1 || services[0].Name != "service-000002" || next != "" {
		t.Errorf("of another version: %v, then %q, %v", services, next, err)
	}
}

// gone makes the changes with which services are gone.
func gone(n int) []catalog.Change {
	changes := make([]catalog.Change, n)
	for i := range changes {
		s := numbered(i)
		changes[i] = catalog.Change{Name: s.Name, Was: packed.Of(s), Cause: catalog.CauseExpired}
	}
	return changes
}

// TestPublished tells of changes: of services that are gone, of one that moves, and of such
// as stay.
func TestPublished(t *testing.T) {
	var log upstream.Log
	one, two := packed.Of(numbered(1)), numbered(1)
	two.FQDN = must(federation.ParseFQDN("moved.example"))
	three := numbered(1)
	three.Description = "another one"
	log.Published([]catalog.Change{
		{Name: "service-000001", Service: one},
		{Name: "service-000001", Service: one, Was: one, Same: true},
		{Name: "service-000001", Service: packed.Of(three), Was: one},
	}, epoch)
	if all := log.Gone(); len(all) != 0 {
		t.Errorf("nothing is gone: %+v", all)
	}
	log.Published([]catalog.Change{{Name: "service-000001", Service: packed.Of(two), Was: one}}, epoch)
	if all := log.Gone(); len(all) != 1 || all[0].Cause != "moved" || all[0].FQDN != "s1.example." || all[0].Service != "service-000001" {
		t.Errorf("it has moved: %+v", all)
	}
	log.Published(gone(recent.Limit+500), epoch)
	all := log.Gone()
	if len(all) != recent.Limit || all[0].Service != "service-001499" || all[recent.Limit-1].Service != "service-000500" || all[0].Cause != "expired" || !all[0].At.Equal(epoch) {
		t.Errorf("%d are gone, %+v first", len(all), all[0])
	}
}

func TestRetention(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "forever", 24 * time.Hour: "24h", 30 * time.Minute: "30m", 10 * time.Second: "10s", 90 * time.Minute: "1h30m", time.Hour + time.Second: "1h0m1s",
	} {
		if u := upstream.Report("o", new(mirror.Status), d, new(upstream.Log), epoch); u.Retention != want || u.ID != "o" || u.State != "connecting" {
			t.Errorf("%v: %+v", d, u)
		}
	}
}

// BenchmarkPage reads a page of a catalog that others read also, and of one that nobody has
// read lately.
func BenchmarkPage(b *testing.B) {
	parts := []upstream.Part{published(100_000)}
	for _, limit := range []int{100, 1000} {
		for _, first := range []bool{false, true} {
			b.Run(fmt.Sprintf("limit=%d/first=%v", limit, first), func(b *testing.B) {
				var catalogs upstream.Catalogs
				if _, _, err := catalogs.Page("o", parts, 100_000, "", 1); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if first {
						catalogs = upstream.Catalogs{}
					}
					services, _, err := catalogs.Page("o", parts, 100_000, fmt.Sprintf("service-%06d", i*7919%99_000), limit)
					if err != nil || len(services) != limit {
						b.Fatal(len(services), err)
					}
				}
			})
		}
	}
}

// BenchmarkPublished tells of a catalog that is gone at once, and of one service.
func BenchmarkPublished(b *testing.B) {
	for _, n := range []int{1, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var log upstream.Log
			changes := gone(n)
			b.ReportAllocs()
			for b.Loop() {
				log.Published(changes, epoch)
			}
		})
	}
}
