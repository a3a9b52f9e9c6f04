package pages_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/agent/internal/pages"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
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

// published is a zone with so many services.
func published(n int) pages.Part {
	builder := zone.NewBuilder(zone.Config{Owners: []zone.Owner{{ID: "o", Origins: []federation.FQDN{must.Value(federation.ParseFQDN("example"))}}}}, nil)
	for i := range n {
		builder.PutPacked(0, packed.Of(numbered(i)), 1, 1)
	}
	return pages.Part{Zone: builder.Publish(epoch)}
}

func TestPages(t *testing.T) {
	parts := []pages.Part{published(5000), published(3000)}
	var catalogs pages.Catalogs
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
	services, next, err := catalogs.Page("o", []pages.Part{published(3)}, 0, "service-000001", 300)
	if err != nil || len(services) != 1 || services[0].Name != "service-000002" || next != "" {
		t.Errorf("of another version: %v, then %q, %v", services, next, err)
	}
}

// BenchmarkPage reads a page of a catalog that others read also, and of one that nobody has
// read lately.
func BenchmarkPage(b *testing.B) {
	parts := []pages.Part{published(100_000)}
	for _, limit := range []int{100, 1000} {
		for _, first := range []bool{false, true} {
			b.Run(fmt.Sprintf("limit=%d/first=%v", limit, first), func(b *testing.B) {
				var catalogs pages.Catalogs
				if _, _, err := catalogs.Page("o", parts, 100_000, "", 1); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if first {
						catalogs = pages.Catalogs{}
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
