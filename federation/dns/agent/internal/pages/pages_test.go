package pages_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/agent/internal/pages"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/status/paging"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/zonetest"
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
	builder := zonetest.NewBuilder(zone.Config{Owners: []zone.Owner{{ID: "o", Origins: []federation.FQDN{must.Value(federation.ParseFQDN("example"))}}}}, nil)
	for i := range n {
		builder.PutUpdated(0, numbered(i), 1, 1)
	}
	return pages.Part{Zone: builder.Publish(epoch)}
}

func TestPages(t *testing.T) {
	parts := []pages.Part{published(5000), published(3000)}
	var catalogs paging.Lists[pages.Offer]
	after, n := "", 0
	for {
		page, err := catalogs.Page(t.Context(), pages.Catalog("o", parts, 0), status.Query{After: after, Limit: 300})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range page.Services {
			if want := numbered(n); s.Name != want.Name || s.FQDN != want.FQDN.String() || !s.Updated.Equal(time.Unix(1, 0)) {
				t.Fatalf("%d is %+v", n, s)
			}
			n++
		}
		if after = page.Next; after == "" {
			break
		}
	}
	if n != 5000 {
		t.Errorf("%d services", n)
	}
	n = 0
	for s, err := range catalogs.Services(pages.Catalog("o", parts, 0)) {
		if err != nil || s.Name != numbered(n).Name {
			t.Fatal(n, s, err)
		}
		n++
	}
	if n != 5000 {
		t.Errorf("%d services", n)
	}
	page, err := catalogs.Page(t.Context(), pages.Catalog("o", []pages.Part{published(3)}, 0), status.Query{After: "service-000001", Limit: 300})
	if err != nil || len(page.Services) != 1 || page.Services[0].Name != "service-000002" || page.Next != "" {
		t.Errorf("of another version: %+v, %v", page, err)
	}
}

// BenchmarkPage reads a page of a catalog that others read also, and of one that nobody has
// read lately.
func BenchmarkPage(b *testing.B) {
	parts := []pages.Part{published(100_000)}
	for _, limit := range []int{100, 1000} {
		for _, first := range []bool{false, true} {
			b.Run(fmt.Sprintf("limit=%d/first=%v", limit, first), func(b *testing.B) {
				catalogs := new(paging.Lists[pages.Offer])
				if _, err := catalogs.Page(b.Context(), pages.Catalog("o", parts, 100_000), status.Query{Limit: 1}); err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if first {
						catalogs = new(paging.Lists[pages.Offer])
					}
					page, err := catalogs.Page(b.Context(), pages.Catalog("o", parts, 100_000), status.Query{After: fmt.Sprintf("service-%06d", i*7919%99_000), Limit: limit})
					if err != nil || len(page.Services) != limit {
						b.Fatal(len(page.Services), err)
					}
				}
			})
		}
	}
}
