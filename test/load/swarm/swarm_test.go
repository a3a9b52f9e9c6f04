package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/owner"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// TestSwarm has consumers come at once, see a change, and come back when the owner is
// started anew: first with what they hold, then with nothing. All have the same catalog
// each time, and those that resume are sent a small part of it.
func TestSwarm(t *testing.T) {
	const consumers, size = 50, 200
	p := place.For(t, map[string]string{"owner": "spiffe://owner.example/owner", consumerOf(0): idOf(0)})
	source := must.Get(mtls.Load(p.Files("owner"), nil))(t)
	address := loopback.Address(t) // which nobody takes while the owner is away
	published := registry.New()
	var all []*federation.Service
	for i := range size {
		all = append(all, services.At(fmt.Sprintf("s%d.fed.example", i), "192.0.2.1"))
	}
	must.Get(published.Set(all))(t)
	serve := func() (stop func()) {
		server := must.Get(owner.New(owner.Config{Catalogs: map[string]*registry.Registry{"": published}, Credentials: source.Server(), Window: 32, Logger: slog.New(slog.DiscardHandler)}))(t)
		listener := must.Get(net.Listen("tcp", address))(t)
		return must.Run(t, func(ctx context.Context) error { return server.Serve(ctx, listener) })
	}
	stop := serve()
	classes := []credentials.TransportCredentials{must.Get(clientCredentials(p.Files(consumerOf(0))))(t)}
	c := newCrowd(address, classes, consumers, consumers, false)
	must.Run(t, func(ctx context.Context) error { c.run(ctx); return nil })
	settled := func(what string, done func(report) bool) (r report) {
		t.Helper()
		await.Eventually(t, func() string {
			r = c.report()
			if r.complete == consumers && r.services == int64(consumers*published.Stats().Services) && r.kinds == 1 && done(r) {
				return ""
			}
			return fmt.Sprintf("%s: %+v", what, r)
		})
		return r
	}
	always := func(report) bool { return true }
	first := settled("the first catalog", always)
	if first.resumed != 0 {
		t.Errorf("%d consumers have resumed that held nothing", first.resumed)
	}

	c.reset()
	must.Get(published.Upsert(services.At("s7.fed.example", "192.0.2.7")))(t)
	settled("a change", func(r report) bool { return len(r.arrivals) == consumers })

	for i, resumed := range []int{consumers, 0} {
		stop()
		c.resume.Store(resumed > 0)
		c.reset()
		must.Get(published.Upsert(services.At("s9.fed.example", fmt.Sprint("192.0.2.", i))))(t)
		published.Delete(fmt.Sprint("s", i))
		stop = serve()
		r := settled("started anew", always)
		if part := float64(r.bytes) / float64(first.bytes); r.resumed != resumed || resumed > 0 != (part < 0.5) {
			t.Errorf("%d consumers have resumed, expected %d; %.2f of the bytes of a full download came", r.resumed, resumed, part)
		}
	}
}
