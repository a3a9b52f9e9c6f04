package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// testPatience is for what takes some seconds on a busy machine.
const testPatience = 5 * time.Minute

// TestSwarm has consumers come at once, see a change, and come back when the owner is
// started anew: first with what they hold, then with nothing. All have the same catalog
// each time, and those that resume are sent a small part of it.
func TestSwarm(t *testing.T) {
	const consumers, size = 200, 400
	dir := t.TempDir()
	must.Do(t, certificates(dir, 1))
	file := func(name string) string { return filepath.Join(dir, name) }
	source := must.Get(mtls.Load(mtls.Files{Cert: file("owner.pem"), Key: file("owner-key.pem"), CA: file("ca.pem")}, nil))(t)
	all := services(t, size)
	address, err := loopback.FreeAddress() // which nobody takes while the owner is away
	must.Do(t, err)
	var published *registry.Registry
	serve := func() (stop func()) {
		t.Helper()
		published = registry.New()
		must.Get(published.Set(all))(t)
		server := must.Get(owner.New(owner.Config{Registry: published, Credentials: source.Server(), Window: 32, Logger: slog.New(slog.DiscardHandler)}))(t)
		listener := must.Get(net.Listen("tcp", address))(t)
		ctx, cancel := context.WithCancel(t.Context())
		var serving sync.WaitGroup
		serving.Go(func() {
			if err := server.Serve(ctx, listener); err != nil {
				t.Error(err)
			}
		})
		return func() {
			cancel()
			serving.Wait()
		}
	}
	stop := serve()
	certificate := must.Get(tls.LoadX509KeyPair(file(consumerOf(0)+".pem"), file(consumerOf(0)+"-key.pem")))(t)
	c := newCrowd(address, []*tls.Config{clientTLS(certificate)}, consumers, 0, consumers, false)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		stop()
	})
	settled := func(what string, done func(status) bool) status {
		t.Helper()
		deadline := time.Now().Add(testPatience)
		for {
			s := c.status()
			if s.Complete == consumers && s.Services == consumers*int64(len(all)) && s.Kinds == 1 && done(s) {
				return s
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: after %v the state is %+v", what, testPatience, s)
			}
			select {
			case <-t.Context().Done():
			case <-time.After(tick / 10):
			}
		}
	}
	always := func(status) bool { return true }
	first := settled("the first catalog", always)
	if first.Resumed != 0 {
		t.Errorf("%d consumers have resumed that held nothing", first.Resumed)
	}

	c.reset()
	changed := *all[7]
	changed.Description = "changed"
	all[7] = &changed
	must.Get(published.Upsert(all[7]))(t)
	settled("a change", func(s status) bool { return len(s.Arrivals) == consumers })

	for _, step := range []struct {
		what    string
		resume  bool
		resumed int
	}{{"with resume", true, consumers}, {"without", false, 0}} {
		stop()
		c.resume.Store(step.resume)
		c.reset()
		changed := *all[9]
		changed.Description = step.what
		all[9] = &changed
		all = all[:len(all)-1] // one is gone
		stop = serve()
		s := settled("started anew "+step.what, always)
		if s.Resumed != step.resumed {
			t.Errorf("%s: %d consumers have resumed, expected %d", step.what, s.Resumed, step.resumed)
		}
		if part := float64(s.Bytes) / float64(first.Bytes); step.resume != (part < 0.5) {
			t.Errorf("%s: %.2f of the bytes of a full download came", step.what, part)
		}
		t.Logf("%s: %d bytes, %v", step.what, s.Bytes/consumers, s.Failures)
	}
}

// services are those of a catalog.
func services(t *testing.T, n int) []*federation.Service {
	t.Helper()
	all := make([]*federation.Service, n)
	for i := range all {
		name := fmt.Sprintf("s%05d", i)
		all[i] = &federation.Service{
			Name: name, FQDN: must.Get(federation.ParseFQDN(name + ".fed.example"))(t),
			Endpoints: []federation.Endpoint{{Address: must.Get(federation.ParseAddress("192.0.2.1"))(t), Port: 443}},
			Instances: []federation.Instance{{ID: "a", Protocol: federation.HTTPS}},
		}
	}
	return all
}
