package spiffe

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	web, webAnswer = "web.west.example", "NOERROR 192.0.2.1"
)

// Certificates that live for half a minute are replaced on both sides: no query fails, no answer is
// stale, and each costs one stream, which resumes.
func TestRotation(t *testing.T) {
	if os.Getenv("REAL_SERVERS") != "required" {
		t.Skip("not run: it needs a real SPIRE; make e2e-spiffe builds and runs it")
	}
	d := newDomains(t, 30*time.Second)
	d.owner.StartFor(t)
	d.coreDNS.StartFor(t)
	d.answers(t, webAnswer)
	// Attempts before the first certificate count for nothing.
	lost := func() float64 {
		return d.dnsMetric(t, "sessions_total") - d.dnsMetric(t, "sessions_total", `code="OK"`)
	}
	attempts := lost()
	prober := domain.Probe(t, d.coreDNS, 1, map[domain.Question]string{{Name: web, Type: dns.TypeA}: webAnswer})
	owner, coreDNS := d.ownerExpiry(t), d.dnsExpiry(t)
	replaced := func() float64 { return d.ownerMetric(t, "streams_ended_total", `code="OK"`) }
	await.Until(t, 4*time.Minute, func() string {
		if d.ownerExpiry(t) == owner || d.dnsExpiry(t) == coreDNS {
			return "the owner or CoreDNS has its first certificate still"
		}
		// One that is replaced ends a moment later.
		if n := d.ownerMetric(t, "consumers"); replaced() == 0 || n != 1 {
			return fmt.Sprintf("%v streams were replaced, and the owner has %v consumers, want 1", replaced(), n)
		}
		return ""
	})
	prober.Check(t)
	if n := lost() - attempts; n != 0 {
		t.Errorf("%v streams of CoreDNS were lost", n)
	}
	if n := d.dnsMetric(t, "stale_answers_total"); n != 0 {
		t.Errorf("%v answers were stale", n)
	}
	if n := d.dnsMetric(t, "owner_state", `state="synced"`); n != 1 {
		t.Error("the owner is not synced")
	}
	if n := d.ownerMetric(t, "streams_ended_total") - replaced(); n != 0 {
		t.Errorf("%v streams of the owner were not closed by CoreDNS", n)
	}
	must.Do(t, d.Write("catalog.yaml", catalog("192.0.2.3")))
	d.answers(t, "NOERROR 192.0.2.3")
}

// domains are two trust domains that federate, with an owner in one and a CoreDNS in the other.
type domains struct {
	*place.Place // without certificates: SPIRE issues them

	owner        *realserver.Process
	ownerMetrics string
	coreDNS      *domain.DNS
	dnsMetrics   string
}

// newDomains starts both trust domains, whose certificates live for ttl. Neither the owner
// nor CoreDNS runs yet.
func newDomains(t *testing.T, ttl time.Duration) *domains {
	t.Helper()
	west := realserver.StartSPIRE(t, "west.test", ttl)
	east := realserver.StartSPIRE(t, "east.test", ttl)
	must.Do(t, west.Trust(t.Context(), east))
	must.Do(t, east.Trust(t.Context(), west))
	address := loopback.Address(t)
	d := &domains{Place: place.For(t, nil), ownerMetrics: loopback.Address(t), dnsMetrics: loopback.Address(t)}
	d.owner = &realserver.Process{
		Name: "owner", Path: must.Get(place.Program("federationctl"))(t), Dir: d.Dir, Args: []string{"serve", "--config", "owner.yaml"},
		Ready: place.Dial(d.ownerMetrics),
	}
	d.coreDNS = &domain.DNS{Address: loopback.Address(t), Corefile: d.Path("Corefile")}
	d.coreDNS.Process = &realserver.Process{
		Name: "coredns", Path: must.Get(place.Program("coredns"))(t), Dir: d.Dir, Args: []string{"-conf", "Corefile"},
		Ready: func(ctx context.Context) error { _, err := d.coreDNS.Ask(ctx, web, dns.TypeA); return err },
	}
	must.Do(t, west.Register(t.Context(), "owner", "unix:path:"+d.owner.Path, east))
	must.Do(t, east.Register(t.Context(), "ns/dns/coredns", "unix:path:"+d.coreDNS.Path, west))
	must.Do(t, d.Write("catalog.yaml", catalog("192.0.2.1")))
	must.Do(t, d.Write("owner.yaml", fmt.Sprintf(`listen: %q
metrics: %q
identity:
  spiffe: {socket: %q, trust_domains: [%s]}
allow: {ids: [%q]}
catalogs:
- sources:
  - file: {path: catalog.yaml}
`, address, d.ownerMetrics, west.Socket, east.TrustDomain, east.ID("ns/dns/coredns"))))
	_, port, err := net.SplitHostPort(d.coreDNS.Address)
	must.Do(t, err)
	must.Do(t, d.Write("Corefile", fmt.Sprintf(`west.example:%s {
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
`, port, d.dnsMetrics, address, east.Socket, west.TrustDomain, west.ID("owner"))))
	return d
}

// catalog has one service, at an address.
func catalog(address string) string {
	return fmt.Sprintf(`services:
- {name: web, fqdn: web.west.example, endpoints: [{address: %s, port: 80}], instances: [{id: v1, protocol: HTTP}]}
`, address)
}

// answers waits until CoreDNS answers with want, in the form of domain.Short.
func (d *domains) answers(t *testing.T, want string) {
	t.Helper()
	await.Eventually(t, func() string {
		if got := d.coreDNS.Answer(t.Context(), web, dns.TypeA); got != want {
			return fmt.Sprintf("the answer is %q, want %q", got, want)
		}
		return ""
	})
}

// dnsMetric and ownerMetric return the sum of all series of a metric whose labels have
// the texts.
func (d *domains) dnsMetric(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	return place.Scrape(t, d.dnsMetrics).Sum("coredns_federation_"+name, labels...)
}

func (d *domains) ownerMetric(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	return place.Scrape(t, d.ownerMetrics).Sum("federation_owner_"+name, labels...)
}

// ownerExpiry and dnsExpiry return when the certificate of either expires, in seconds, or zero while
// it has none. Authorities expire long after certificates.
func (d *domains) ownerExpiry(t *testing.T) float64 {
	t.Helper()
	return slices.Min(place.Scrape(t, d.ownerMetrics).Of("federation_owner_certificate_expiry_timestamp_seconds"))
}

func (d *domains) dnsExpiry(t *testing.T) float64 {
	t.Helper()
	return slices.Min(place.Scrape(t, d.dnsMetrics).Of("coredns_federation_certificate_expiry_timestamp_seconds"))
}
