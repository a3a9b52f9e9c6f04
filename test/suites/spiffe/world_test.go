package spiffe

import (
	"context"
	"fmt"
	"net"
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
	web, webAnswer       = "web.shop.west.example", "NOERROR 192.0.2.1"
	ledger, ledgerAnswer = "ledger.pay.west.example", "NOERROR 192.0.2.2"
	notReady             = "SERVFAIL"
)

// eventually waits until a condition has nothing to complain of.
var eventually = await.Eventually

// world is two trust domains that federate, an owner and a CoreDNS.
type world struct {
	*place.Place // without certificates: SPIRE issues them

	west, east *realserver.SPIRE

	owner        *realserver.Process // with an identity of west
	ownerAddress string              // of its consumers
	ownerMetrics string

	coreDNS    *domain.DNS // with an identity of east
	dnsMetrics string
}

// newWorld starts both trust domains, whose certificates live for ttl. Neither the owner
// nor CoreDNS runs yet; see run.
func newWorld(t *testing.T, ttl time.Duration) *world {
	t.Helper()
	w := &world{Place: place.For(t, nil)}
	w.west = realserver.StartSPIRE(t, realserver.SPIREOptions{TrustDomain: "west.test", TTL: ttl})
	w.east = realserver.StartSPIRE(t, realserver.SPIREOptions{TrustDomain: "east.test", TTL: ttl})
	must.Do(t, w.west.Trust(t.Context(), w.east))
	must.Do(t, w.east.Trust(t.Context(), w.west))
	w.ownerAddress, w.ownerMetrics, w.dnsMetrics = loopback.Address(t), loopback.Address(t), loopback.Address(t)
	w.owner = &realserver.Process{
		Name: "owner", Path: must.Get(place.Program("federationctl"))(t), Dir: w.Dir, Args: []string{"serve", "--config", "owner.yaml"},
		Ready: place.Dial(w.ownerMetrics),
	}
	w.coreDNS = &domain.DNS{Address: loopback.Address(t), Corefile: w.Path("Corefile")}
	w.coreDNS.Process = &realserver.Process{
		Name: "coredns", Path: must.Get(place.Program("coredns"))(t), Dir: w.Dir, Args: []string{"-conf", "Corefile"},
		Ready: func(ctx context.Context) error { _, err := w.coreDNS.Ask(ctx, web, dns.TypeA); return err },
	}
	must.Do(t, w.registerOwner(t.Context()))
	must.Do(t, w.registerCoreDNS(t.Context()))
	must.Do(t, w.Write("catalog.yaml", catalog("192.0.2.1")))
	must.Do(t, w.allow(w.consumer()))
	w.configure(t, w.west.ID("auditor"))
	w.writeCorefile(t, w.ownerAddress)
	return w
}

// run starts the owner and CoreDNS, and waits until the processes are there.
func (w *world) run(t *testing.T) {
	t.Helper()
	w.owner.StartFor(t)
	w.coreDNS.StartFor(t)
}

// consumer is the identity of CoreDNS.
func (w *world) consumer() string { return w.east.ID("ns/dns/coredns") }

// registerOwner and registerCoreDNS let the agents issue the certificates of the
// programs, or say it again.
func (w *world) registerOwner(ctx context.Context) error {
	return w.west.Register(ctx, "owner", []string{"unix:path:" + w.owner.Path}, w.east)
}

func (w *world) registerCoreDNS(ctx context.Context) error {
	return w.east.Register(ctx, "ns/dns/coredns", []string{"unix:path:" + w.coreDNS.Path}, w.west)
}

// allow lets one consumer subscribe.
func (w *world) allow(id string) error { return w.Write("consumers.txt", id+"\n") }

// catalog has two services, one of them at an address.
func catalog(address string) string {
	return fmt.Sprintf(`services:
- {name: web, fqdn: web.shop.west.example, endpoints: [{address: %s, port: 80}], instances: [{id: v1, protocol: HTTP}]}
- {name: ledger, fqdn: ledger.pay.west.example, endpoints: [{address: 192.0.2.2, port: 80}], instances: [{id: v1, protocol: HTTP}]}
`, address)
}

// configure writes the configuration of the owner. The consumers that the pattern stands
// for are told of the ledger.
func (w *world) configure(t *testing.T, pattern string) {
	t.Helper()
	must.Do(t, w.Write("owner.yaml", fmt.Sprintf(`listen: %q
metrics: %q
identity:
  spiffe: {socket: %q, trust_domains: [%s]}
allow: {file: consumers.txt}
audit: true
catalogs:
- sources:
  - file: {path: catalog.yaml}
  exports:
  - match: {fqdn: ["*.shop.west.example"]}
    to: ["spiffe://%s/ns/*/coredns"]
  - match: {fqdn: ["*.pay.west.example"]}
    to: [%q]
`, w.ownerAddress, w.ownerMetrics, w.west.Socket, w.east.TrustDomain, w.east.TrustDomain, pattern)))
}

// writeCorefile writes the Corefile, with the address of the owner.
func (w *world) writeCorefile(t *testing.T, owner string) {
	t.Helper()
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
`, port, w.dnsMetrics, owner, w.east.Socket, w.west.TrustDomain, w.west.ID("owner"))))
}

// answers waits until CoreDNS answers for the address of a name with want, in the form
// of domain.Short.
func (w *world) answers(t *testing.T, name, want string) {
	t.Helper()
	eventually(t, func() string {
		if got := w.coreDNS.Answer(t.Context(), name, dns.TypeA); got != want {
			return fmt.Sprintf("the answer for %s is %q, want %q", name, got, want)
		}
		return ""
	})
}

// state waits for a state of the owner in CoreDNS, such as synced or stale.
func (w *world) state(t *testing.T, want string) {
	t.Helper()
	eventually(t, func() string {
		if w.dnsMetric(t, "owner_state", `state="`+want+`"`) != 1 {
			return "the owner is not " + want
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

// expiry returns when the certificate of the owner or of CoreDNS expires, or zero while
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

// logs waits until the log of a program has a line with all of the texts.
func logs(t *testing.T, p *realserver.Process, texts ...string) {
	t.Helper()
	eventually(t, func() string {
		if p.Logged(texts...) == 0 {
			return fmt.Sprintf("%s does not log %q", p.Name, texts)
		}
		return ""
	})
}
