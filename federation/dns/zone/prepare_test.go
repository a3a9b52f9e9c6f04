package zone_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
)

// TestPrepare checks that services that other goroutines have prepared, while the zone changes,
// are published like those that come one by one.
func TestPrepare(t *testing.T) {
	const n = 200
	plainly, prepared := builder(owner("o", "fed.example")), builder(owner("o", "fed.example"))
	var workers sync.WaitGroup
	ready := make(chan zone.Prepared, n)
	for w := range 4 {
		workers.Go(func() {
			for i := w; i < n; i += 4 {
				ready <- prepared.Prepare(0, packed.Of(plain(i)), plain(i))
			}
		})
	}
	for i := range n {
		prepared.Builder.Put(<-ready, packed.Service{}, 1, 0)
		prepared.Publish(now)
		plainly.Put(0, plain(i), 1)
	}
	workers.Wait()
	x, y := plainly.Publish(now), prepared.Publish(now)
	for i := range n {
		name := fmt.Sprintf("s%d.team%d.fed.example.", i, i%100)
		want, got := x.Lookup(name, dns.TypeTXT, now), y.Lookup(name, dns.TypeTXT, now)
		if diff := cmp.Diff(fmt.Sprint(reply.Answer(nil, &want, name, 0)), fmt.Sprint(reply.Answer(nil, &got, name, 0))); diff != "" || want.Kind != got.Kind {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
