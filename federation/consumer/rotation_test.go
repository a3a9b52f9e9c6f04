package consumer_test

import (
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
)

// counted is a connection whose octets are counted.
type counted struct {
	net.Conn
	octets *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.octets.Add(int64(n))
	return n, err
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.octets.Add(int64(n))
	return n, err
}

// Certificates that live for a minute are replaced while services change. Nothing is
// stale, each costs one stream, and no service is sent that the mirror has.
func TestCertificatesAreRotated(t *testing.T) {
	t.Parallel()
	const (
		many      = 10_000
		rotations = 10
		short     = time.Minute
	)
	simulation.Run(t, newTestMirror, func(t *testing.T, sim *testMirror) {
		own, other := sim.Party("consumer.example", short), sim.Party("owner.example", short)
		registry := registry.New()
		all := make([]*federation.Service, many)
		for i := range all {
			all[i] = services.At(fmt.Sprintf("s%d.fed.example", i), "192.0.2.1")
		}
		must.Get(registry.Set(all))(t)
		server := must.Get(owner.New(owner.Config{
			Registry: registry, Credentials: other.Server(), Window: owner.MaxWindow, Logger: slog.New(slog.DiscardHandler),
		}))(t)
		sim.Serve(t, ownerAddress, server.Serve)
		var octets atomic.Int64
		sim.Wrap = func(conn net.Conn) net.Conn { return counted{conn, &octets} }
		config := sim.config()
		config.Subscription.Identity = own.As(mtls.Consumer{})
		m, _ := sim.run(config)
		sim.await(m, fmt.Sprintf("synced %d/0", many))
		before, opened := octets.Load(), sim.attempts()
		sim.take()
		sim.forget()
		for i := range rotations {
			other.Replace(short) // first, so that the stream of the other certificate is shown it
			own.Replace(short)
			time.Sleep(short / 2)
			must.Get(registry.Upsert(services.At("s0.fed.example", fmt.Sprintf("192.0.2.%d", i+2))))(t)
			synctest.Wait() // or a stream that resumes in this very moment is sent all of its bucket
		}
		sim.neverStale()
		if got := state(m); got != fmt.Sprintf("synced %d/0", many) {
			t.Errorf("owner is %s", got)
		}
		for _, told := range sim.Details("told") {
			if told != "responded upsert" && told != "responded end" && told != "published" && told != "ended OK" {
				t.Errorf("the observer is told: %s", told)
			}
		}
		if got := sim.counted("responded upsert"); got != rotations {
			t.Errorf("%d services were sent, want the %d that have changed", got, rotations)
		}
		resumes := m.Status().Resumes
		if resumes < rotations || resumes > rotations+1 { // the owner's last certificate may be about to expire
			t.Errorf("%d streams have resumed", resumes)
		}
		each := (octets.Load() - before) / int64(resumes)
		t.Logf("%d octets of a catalog of %d octets before for each of %d streams, on %d connections", each, before, resumes, sim.attempts()-opened)
		if most := int64(20 << 10); each > most {
			t.Errorf("%d octets for each stream, want %d at most", each, most)
		}
		if stats := server.Stats(); stats.Connections != 1 {
			t.Errorf("%d connections are open, want one", stats.Connections)
		}
	})
}
