package spiffe

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	web, webAnswer = "web.west.example", "NOERROR 192.0.2.1"

	rotations = 3 // that each side must see
)

// Certificates that live for a minute are replaced several times, and expire: no query
// fails, no answer is stale, and each costs one stream, which resumes.
func TestRotation(t *testing.T) {
	if os.Getenv("REAL_SERVERS") != "required" {
		t.Skip("not run: it needs a real SPIRE; make e2e-spiffe builds and runs it")
	}
	w := newWorld(t, time.Minute)
	w.owner.StartFor(t)
	w.coreDNS.StartFor(t)
	w.answers(t, webAnswer)
	// Attempts before the first certificate count for nothing.
	lost := func() float64 {
		return w.dnsMetric(t, "sessions_total") - w.dnsMetric(t, "sessions_total", `code="OK"`)
	}
	attempts, octets := lost(), w.way.Received()
	prober := domain.Probe(t, w.coreDNS, 1, map[domain.Question]string{{Name: web, Type: dns.TypeA}: webAnswer})
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
	octets = w.way.Received() - octets
	if n := lost() - attempts; n != 0 {
		t.Errorf("%v streams of CoreDNS were lost", n)
	}
	if n := w.dnsMetric(t, "stale_answers_total"); n != 0 {
		t.Errorf("%v answers were stale", n)
	}
	if n := w.dnsMetric(t, "owner_state", `state="synced"`); n != 1 {
		t.Error("the owner is not synced")
	}
	await.Eventually(t, func() string { // one that is replaced ends a moment later
		if n := w.ownerMetric(t, "consumers"); n != 1 {
			return fmt.Sprintf("the owner has %v consumers, want 1", n)
		}
		return ""
	})
	replaced, most := w.ownerMetric(t, "streams_ended_total", `code="OK"`), float64(len(owner)+len(coreDNS))
	if n := w.ownerMetric(t, "streams_ended_total") - replaced; n != 0 {
		t.Errorf("%v streams of the owner were not closed by CoreDNS", n)
	}
	if replaced < rotations || replaced > most {
		t.Errorf("%v streams were replaced, want %d to %v", replaced, rotations, most)
	}
	t.Logf("%.0f octets from the owner for each of %v streams", float64(octets)/replaced, replaced)
	must.Do(t, w.Write("catalog.yaml", catalog("192.0.2.3")))
	w.answers(t, "NOERROR 192.0.2.3")
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// world is two trust domains that federate, an owner in one and a CoreDNS in the other.
type world struct {
	*place.Place // without certificates: SPIRE issues them

	owner        *realserver.Process
	ownerMetrics string
	way          *realserver.Gate // from CoreDNS to the owner

	coreDNS    *domain.DNS
	dnsMetrics string
}

// newWorld starts both trust domains, whose certificates live for ttl. Neither the owner
// nor CoreDNS runs yet.
func newWorld(t *testing.T, ttl time.Duration) *world {
	t.Helper()
	west := realserver.StartSPIRE(t, "west.test", ttl)
	east := realserver.StartSPIRE(t, "east.test", ttl)
	must.Do(t, west.Trust(t.Context(), east))
	must.Do(t, east.Trust(t.Context(), west))
	address := loopback.Address(t)
	w := &world{Place: place.For(t, nil), ownerMetrics: loopback.Address(t), dnsMetrics: loopback.Address(t), way: realserver.StartGate(t, address)}
	w.owner = &realserver.Process{
		Name: "owner", Path: must.Get(place.Program("federationctl"))(t), Dir: w.Dir, Args: []string{"serve", "--config", "owner.yaml"},
		Ready: place.Dial(w.ownerMetrics),
	}
	w.coreDNS = &domain.DNS{Address: loopback.Address(t), Corefile: w.Path("Corefile")}
	w.coreDNS.Process = &realserver.Process{
		Name: "coredns", Path: must.Get(place.Program("coredns"))(t), Dir: w.Dir, Args: []string{"-conf", "Corefile"},
		Ready: func(ctx context.Context) error { _, err := w.coreDNS.Ask(ctx, web, dns.TypeA); return err },
	}
	must.Do(t, west.Register(t.Context(), "owner", "unix:path:"+w.owner.Path, east))
	must.Do(t, east.Register(t.Context(), "ns/dns/coredns", "unix:path:"+w.coreDNS.Path, west))
	must.Do(t, w.Write("catalog.yaml", catalog("192.0.2.1")))
	must.Do(t, w.Write("owner.yaml", fmt.Sprintf(`listen: %q
metrics: %q
identity:
  spiffe: {socket: %q, trust_domains: [%s]}
allow: {ids: [%q]}
catalogs:
- sources:
  - file: {path: catalog.yaml}
`, address, w.ownerMetrics, west.Socket, east.TrustDomain, east.ID("ns/dns/coredns"))))
	_, port, err := net.SplitHostPort(w.coreDNS.Address)
	must.Do(t, err)
	must.Do(t, w.Write("Corefile", fmt.Sprintf(`west.example:%s {
    bind 127.0.0.1
    errors
    prometheus %s
    federation {
        owner %s
        spiffe %s %s
        owner_id %s
        ttl 5
        negative_ttl 1
    }
}
`, port, w.dnsMetrics, w.way.Address, east.Socket, west.TrustDomain, west.ID("owner"))))
	return w
}

// catalog has one service, at an address.
func catalog(address string) string {
	return fmt.Sprintf(`services:
- {name: web, fqdn: web.west.example, endpoints: [{address: %s, port: 80}], instances: [{id: v1, protocol: HTTP}]}
`, address)
}

// answers waits until CoreDNS answers with want, in the form of domain.Short.
func (w *world) answers(t *testing.T, want string) {
	t.Helper()
	await.Eventually(t, func() string {
		if got := w.coreDNS.Answer(t.Context(), web, dns.TypeA); got != want {
			return fmt.Sprintf("the answer is %q, want %q", got, want)
		}
		return ""
	})
}

// dnsMetric and ownerMetric return the sum of all series of a metric whose labels have
// the texts.
func (w *world) dnsMetric(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	return place.Scrape(t, w.dnsMetrics).Sum("coredns_federation_"+name, labels...)
}

func (w *world) ownerMetric(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	return place.Scrape(t, w.ownerMetrics).Sum("federation_owner_"+name, labels...)
}

// ownerExpiry and dnsExpiry return when the certificate of either expires, or zero while
// it has none.
func (w *world) ownerExpiry(t *testing.T) time.Time {
	t.Helper()
	return first(place.Scrape(t, w.ownerMetrics).Of("federation_owner_certificate_expiry_timestamp_seconds"))
}

func (w *world) dnsExpiry(t *testing.T) time.Time {
	t.Helper()
	return first(place.Scrape(t, w.dnsMetrics).Of("coredns_federation_certificate_expiry_timestamp_seconds"))
}

// first returns the first of some times; authorities expire long after certificates.
func first(values []float64) time.Time {
	earliest := 0.0
	for _, v := range values {
		if v > 0 && (earliest == 0 || v < earliest) {
			earliest = v
		}
	}
	if earliest == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(earliest * 1000))
}
