package spiffe

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	ownercatalog "github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// enabled ends the test here unless these tests are wanted. Otherwise the test runs
// beside the others.
func enabled(t *testing.T) {
	t.Helper()
	if os.Getenv("REAL_SERVERS") != "required" {
		t.Skip("not run: it needs a real SPIRE; make e2e-spiffe builds and runs it")
	}
	t.Parallel()
}

// An owner and CoreDNS of two trust domains find each other, and what CoreDNS is told
// depends on its SPIFFE ID.
func TestPolicyByID(t *testing.T) {
	enabled(t)
	w := newWorld(t, time.Minute)
	w.run(t)
	w.answers(t, web, webAnswer)
	unbroken := w.follow(t)
	w.answers(t, ledger, "NXDOMAIN")
	logs(t, w.owner, w.consumer(), "web")
	for _, tc := range []struct{ pattern, want string }{
		{w.east.ID("ns/*/coredns"), ledgerAnswer},
		{w.west.ID("ns/*/coredns"), "NXDOMAIN"},
		{w.east.ID("**"), ledgerAnswer},
		{w.east.ID("*"), "NXDOMAIN"},
	} {
		w.configure(t, tc.pattern)
		w.answers(t, ledger, tc.want)
	}
	w.answers(t, web, webAnswer)
	unbroken()
}

// probe begins to ask for web all the time.
func (w *world) probe(t *testing.T) *domain.Prober {
	t.Helper()
	return domain.Probe(t, w.coreDNS, 1, map[domain.Question]string{{Name: web, Type: dns.TypeA}: webAnswer})
}

// follow returns a function that fails the test unless CoreDNS has followed the owner all the
// time: each stream was closed by CoreDNS itself, for the sake of another one, and nothing was
// stale. It returns how many there were. Attempts before the first certificate count for
// nothing.
func (w *world) follow(t *testing.T) (unbroken func() (replaced float64)) {
	t.Helper()
	attempts := w.dnsMetric(t, "sessions_total") - w.dnsMetric(t, "sessions_total", `code="OK"`)
	return func() (replaced float64) {
		t.Helper()
		if n := w.dnsMetric(t, "sessions_total") - w.dnsMetric(t, "sessions_total", `code="OK"`) - attempts; n != 0 {
			t.Errorf("%v streams of CoreDNS were lost", n)
		}
		if n := w.dnsMetric(t, "stale_answers_total"); n != 0 {
			t.Errorf("%v answers were stale", n)
		}
		if n := w.dnsMetric(t, "owner_state", `state="synced"`); n != 1 {
			t.Error("the owner is not synced")
		}
		eventually(t, func() string { // one that is replaced ends a moment later
			if n := w.ownerMetric(t, "consumers"); n != 1 {
				return fmt.Sprintf("the owner has %v consumers, want 1", n)
			}
			return ""
		})
		replaced = w.ownerMetric(t, "streams_ended_total", `code="OK"`)
		if n := w.ownerMetric(t, "streams_ended_total") - replaced; n != 0 {
			t.Errorf("%v streams of the owner were not closed by CoreDNS", n)
		}
		return replaced
	}
}

const rotations = 3 // that each side must see

// Certificates that live for a minute are replaced several times, and expire: no query
// fails, no answer is stale, and each costs one stream, which resumes.
func TestRotation(t *testing.T) {
	enabled(t)
	w := newWorld(t, time.Minute)
	meter := measure(t, w.ownerAddress)
	w.writeCorefile(t, meter.address)
	w.run(t)
	w.answers(t, web, webAnswer)
	unbroken, prober, before := w.follow(t), w.probe(t), meter.octets.Load()
	owner, coreDNS := []time.Time{w.ownerExpiry(t)}, []time.Time{w.dnsExpiry(t)}
	await.Until(t, 4*time.Minute, func() string {
		for all, now := range map[*[]time.Time]time.Time{&owner: w.ownerExpiry(t), &coreDNS: w.dnsExpiry(t)} {
			if !now.Equal((*all)[len(*all)-1]) {
				*all = append(*all, now)
			}
		}
		if len(owner) <= rotations || len(coreDNS) <= rotations {
			return fmt.Sprintf("the owner has had %d certificates and CoreDNS %d", len(owner), len(coreDNS))
		}
		// The first stream was opened with the first ones, or with the second.
		if last := later(owner[1], coreDNS[1]).Add(mtls.Grace + time.Second); time.Now().Before(last) {
			return fmt.Sprintf("the first stream may live until %v with the certificates that it was opened with", last)
		}
		return ""
	})
	t.Logf("certificates of the owner expire at %v, of CoreDNS at %v", owner, coreDNS)
	prober.Check(t)
	octets, replaced := meter.octets.Load()-before, unbroken()
	if most := float64(len(owner) + len(coreDNS)); replaced < rotations || replaced > most {
		t.Errorf("%v streams were replaced, want %d to %v", replaced, rotations, most)
	}
	t.Logf("%.0f octets for each of %v streams", float64(octets)/replaced, replaced)
	must.Do(t, w.Write("catalog.yaml", catalog("192.0.2.3")))
	w.answers(t, web, "NOERROR 192.0.2.3")
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Programs that start without an agent wait for it. While it is away later, answers go
// on and the last stream lives until its certificates have expired, and at most a minute longer: CoreDNS
// ends it for a newer certificate of its own also when that of the owner has expired.
func TestAgentAway(t *testing.T) {
	enabled(t)
	w := newWorld(t, 20*time.Second)
	must.Do(t, errors.Join(w.west.Agent.Stop(), w.east.Agent.Stop()))
	w.run(t)
	w.answers(t, web, notReady)
	logs(t, w.owner, "level=WARN", w.west.Socket)
	logs(t, w.coreDNS.Process, "WARN", w.east.Socket)
	must.Do(t, errors.Join(w.west.Agent.Start(t.Context()), w.east.Agent.Start(t.Context())))
	w.answers(t, web, webAnswer)

	prober := w.probe(t)
	for _, side := range []struct {
		name   string
		agent  *realserver.Process
		expiry func(*testing.T) time.Time
		early  time.Duration
	}{{"CoreDNS", w.east.Agent, w.dnsExpiry, 0}, {"the owner", w.west.Agent, w.ownerExpiry, mtls.Grace}} {
		w.state(t, "synced")
		side.agent.Kill()
		end := side.expiry(t).Add(mtls.Grace + ownercatalog.Grace)
		await.Until(t, await.Patience, func() string {
			if w.dnsMetric(t, "owner_state", `state="synced"`) == 1 {
				return "the stream lives"
			}
			return ""
		})
		if late := time.Since(end); late < -2*time.Second-side.early || late > busy {
			t.Errorf("without the agent of %s the stream ended %v after its certificate expired, want %v", side.name, late+mtls.Grace, mtls.Grace)
		}
		w.state(t, "stale")
		must.Do(t, side.agent.Start(t.Context()))
		w.state(t, "synced")
	}
	prober.Check(t)
}

// A trust domain whose authority signs for another one is not believed: neither does
// CoreDNS take it for the owner, nor the owner for CoreDNS.
func TestRogueAuthority(t *testing.T) {
	enabled(t)
	w := newWorld(t, time.Minute)
	own, err := w.west.Forge(t.Context(), w.west.ID("owner"))
	must.Do(t, err)
	forged, err := w.east.Forge(t.Context(), w.west.ID("owner"))
	must.Do(t, err)
	fake := startFake(t, own)
	w.writeCorefile(t, fake.address)
	w.run(t)
	eventually(t, func() string { // what shows that the next one fails for its authority only
		if fake.welcome.Load() == 0 {
			return "CoreDNS does not believe an owner that its own authority has signed for"
		}
		return ""
	})
	fake.certificate.Store(&forged)
	logs(t, w.coreDNS.Process, "no X509-SVID that may be trusted", w.west.ID("owner"))
	w.answers(t, web, notReady)

	dial := func(certificate tls.Certificate) error {
		config := &tls.Config{Certificates: []tls.Certificate{certificate}, InsecureSkipVerify: true, NextProtos: []string{"h2"}}
		conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", w.ownerAddress)
		if err != nil {
			return err
		}
		defer conn.Close()
		must.Do(t, conn.SetDeadline(time.Now().Add(await.Patience)))
		_, err = conn.Read(make([]byte, 1)) // the settings of HTTP/2, or the alert
		return err
	}
	genuine, err := w.east.Forge(t.Context(), w.consumer())
	must.Do(t, err)
	eventually(t, func() string { // the owner may still wait for its own certificate
		if err := dial(genuine); err != nil {
			return "the owner does not take a certificate that is in order: " + err.Error()
		}
		return ""
	})
	if forged, err = w.west.Forge(t.Context(), w.consumer()); err == nil {
		err = dial(forged)
	}
	if alert := new(net.OpError); !errors.As(err, &alert) || alert.Op != "remote error" {
		t.Errorf("the owner takes a certificate for %s that %s has signed: %v, want an alert", w.consumer(), w.west.TrustDomain, err)
	}
	logs(t, w.owner, "its certificate is not accepted", w.consumer(), "signed by unknown authority")

	w.writeCorefile(t, w.ownerAddress)
	must.Do(t, w.coreDNS.Restart(t.Context()))
	w.answers(t, web, webAnswer)
}

// fake is an owner that shows the certificate that it is given, and then says nothing.
type fake struct {
	address     string
	certificate atomic.Pointer[tls.Certificate]
	welcome     atomic.Int64 // handshakes that the consumer was content with
}

func startFake(t *testing.T, certificate tls.Certificate) *fake {
	t.Helper()
	f := new(fake)
	f.certificate.Store(&certificate)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{"h2"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.certificate.Load(), nil },
	})
	must.Do(t, err)
	f.address = listener.Addr().String()
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			_ = conn.SetDeadline(time.Now().Add(await.Patience))
			if _, err := conn.Read(make([]byte, 1)); err == nil {
				f.welcome.Add(1)
			}
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		accepting.Wait()
	})
	return f
}

// busy bounds the end of a stream that must end, from when it must: without a reason the
// streams of a test do not end at all.
const busy = 30 * time.Second

// Whoever is not allowed any more, or not trusted, loses the stream, and gets it back
// when that is taken back.
func TestTakenAway(t *testing.T) {
	enabled(t)
	w := newWorld(t, 20*time.Second)
	w.run(t)
	w.answers(t, web, webAnswer)
	prober := w.probe(t)
	ctx := t.Context()
	for _, tc := range []struct {
		what       string
		take, give func() error
	}{
		{
			"the entry of CoreDNS in the allow list",
			func() error { return w.allow(w.east.ID("somebody")) }, func() error { return w.allow(w.consumer()) },
		},
		{
			"the bundle of CoreDNS's domain, at the owner",
			func() error { return w.west.Distrust(ctx, w.east) },
			func() error { return errors.Join(w.west.Trust(ctx, w.east), w.registerOwner(ctx)) },
		},
		{
			"the bundle of the owner's domain, at CoreDNS",
			func() error { return w.east.Distrust(ctx, w.west) },
			func() error { return errors.Join(w.east.Trust(ctx, w.west), w.registerCoreDNS(ctx)) },
		},
	} {
		w.state(t, "synced")
		must.Do(t, tc.take())
		start := time.Now()
		await.Until(t, busy, func() string {
			if w.dnsMetric(t, "owner_state", `state="synced"`) == 1 {
				return "the stream lives without " + tc.what
			}
			return ""
		})
		t.Logf("without %s the stream ended after %v", tc.what, time.Since(start))
		must.Do(t, tc.give())
	}
	w.state(t, "synced")
	prober.Check(t)
}
