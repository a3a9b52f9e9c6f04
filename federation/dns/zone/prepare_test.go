package zone_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/federation/wire/packed"
)

// TestPrepare checks that services that other goroutines have prepared are
// published like those that the builder compiles itself, also when the zone has
// changed in between.
func TestPrepare(t *testing.T) {
	const n = 200
	plainly, prepared := builder(owner("o", "fed.example")), builder(owner("o", "fed.example"))
	services := make([]*federation.Service, n)
	for i := range services {
		services[i] = plain(i)
	}
	for version := range 2 {
		changed := services
		if version > 0 {
			for i := range n / 2 {
				s := *services[i]
				s.Description = "changed"
				changed[i] = &s
			}
		}
		current := prepared.Publish(now)
		var workers sync.WaitGroup
		ready := make(chan func(), n)
		for w := range 4 {
			workers.Go(func() {
				for i := w; i < n; i += 4 {
					p := prepared.Prepare(current, 0, packed.Of(changed[i]), changed[i])
					if known := version > 0 && i >= n/2; (p == nil) != known {
						t.Errorf("version %d of service %d: prepared is %v", version, i, p)
					}
					ready <- func() {
						if p == nil {
							prepared.Put(0, changed[i], uint64(version)+1)
						} else {
							prepared.PutPrepared(p, uint64(version)+1, 0)
						}
					}
				}
			})
		}
		for range n {
			(<-ready)()
			prepared.Publish(now)
		}
		workers.Wait()
		for _, s := range changed {
			plainly.Put(0, s, uint64(version)+1)
		}
		x, y := plainly.Publish(now), prepared.Publish(now)
		for i := range n {
			name := fmt.Sprintf("s%d.team%d.fed.example.", i, i%100)
			want, got := x.Lookup(name, dns.TypeTXT, now), y.Lookup(name, dns.TypeTXT, now)
			if diff := cmp.Diff(fmt.Sprint(reply.Answer(nil, &want, name, 0)), fmt.Sprint(reply.Answer(nil, &got, name, 0))); diff != "" || want.Kind != got.Kind || want.Stale() != got.Stale() {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	}
	other := service("x x.other.example 192.0.2.1@1")
	if p := prepared.Prepare(nil, 0, packed.Of(other), other); p != nil {
		t.Error("a service that is not admitted was compiled")
	}
}

// TestPreparedServiceIsUsedOnce puts one prepared service twice: after the first
// time it is part of the zone.
func TestPreparedServiceIsUsedOnce(t *testing.T) {
	b := builder(owner("o", "fed.example"))
	s := plain(1)
	p := b.Prepare(nil, 0, packed.Of(s), s)
	b.PutPrepared(p, 1, 0)
	first := b.Publish(now)
	b.Remove(0, s.Name)
	b.PutPrepared(p, 2, 0)
	second := b.Publish(now)
	name := s.FQDN.String()
	for i, z := range []*zone.Zone{first, second} {
		if result := z.Lookup(name, dns.TypeA, now); result.Stale() || len(reply.Answer(nil, &result, name, 0)) == 0 {
			t.Errorf("version %d: %v, stale %v", i, reply.Answer(nil, &result, name, 0), result.Stale())
		}
	}
}
