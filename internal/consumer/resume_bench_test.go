package consumer

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/stream"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	rdpb "github.com/hamlet-federation/coredns-federation/proto/resourcediscovery/v1alpha2"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/wiretest"
)

// messages returns those of n services.
func messages(b *testing.B, n int) []*rdpb.StreamResponse {
	b.Helper()
	all := make([]*rdpb.StreamResponse, n)
	for i := range all {
		fqdn := must.Get(federation.ParseFQDN(fmt.Sprintf("s%07d.example", i)))(b)
		address, err := federation.ParseAddress("192.0.2.1")
		if err != nil {
			b.Fatal(err)
		}
		s := &federation.Service{
			Name: fmt.Sprintf("shop/service-%07d", i), FQDN: fqdn, SANs: []string{"spiffe://owner.example/shop"},
			Endpoints: []federation.Endpoint{{Address: address, Port: 80}},
			Instances: []federation.Instance{{ID: "a", Protocol: federation.HTTP}},
		}
		event := wire.Event{Operation: wire.Upsert, Name: s.Name, Service: s}
		if all[i], err = wiretest.Response(event, "0123456789abcdef", "0123456789abcdef"); err != nil {
			b.Fatal(err)
		}
	}
	return all
}

// BenchmarkStream opens a stream of an owner whose catalog is held already. "whole"
// decodes and applies all of it, 64 services at a time; "resume" takes digests, and takes over
// what is held. It leaves out the network, gRPC and the acknowledgements, which only "whole"
// has for each service.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{10_000, 100_000} {
		for _, how := range []string{"whole", "resume", "resume, digests known"} {
			b.Run(strconv.Itoa(size)+"/"+how, func(b *testing.B) {
				all := messages(b, size)
				m := must.Get(New(Config{
					Subscription: Subscription{Addresses: []string{"owner:1"}, Identity: mtls.Consumer{}},
					Rules:        catalog.Rules{Retention: time.Hour, Settle: time.Second},
					Publish:      func(Changes) {},
				}))(b)
				s, ctx := mirrorSink{m}, b.Context()
				octets := 0
				whole := func() {
					octets = 0
					updates := make([]stream.Update, 0, adoptTogether)
					for i := range all {
						event := must.Get(wire.Decode(all[i]))(b)
						octets += len(all[i].GetResource().GetValue())
						if updates = append(updates, stream.Update{Event: event}); len(updates) < adoptTogether && i < len(all)-1 {
							continue
						}
						s.ApplyUpdates(updates)
						updates = updates[:0]
					}
				}
				transmit := func(announce func() stream.Announcement, send func()) {
					a := announce()
					s.StreamOpened()
					must.Do(b, s.AcceptHeader(ctx, a))
					send()
					s.ApplyUpdates([]stream.Update{{Event: wire.Event{Operation: wire.End}}})
					if status := m.catalogStatus(); status.Services != size || status.State != catalog.Synced || status.Stale != 0 {
						b.Fatalf("status %+v", status)
					}
				}
				full := func() stream.Announcement { return stream.Announcement{Marked: true} }
				transmit(full, whole)
				b.ReportAllocs()
				for b.Loop() {
					if how == "whole" {
						transmit(full, whole)
						continue
					}
					if how == "resume" {
						m.heldDigests.digests = nil
					}
					transmit(func() stream.Announcement {
						digests := s.HeldDigests(ctx)
						octets = len(digests.Header())
						return stream.Announcement{Marked: true, Resumed: true, Whole: digests.DifferingBuckets(digests)}
					}, func() {})
				}
				b.ReportMetric(float64(octets), "octets")
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(size), "ns/service")
			})
		}
	}
}
