package monitoring

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// The zones and identities.
const (
	zone       = "fed.example"
	ownerID    = "spiffe://fed.example/owner"
	coreDNSID  = "spiffe://fed.example/coredns"
	providerID = "spiffe://fed.example/provider"
)

// Lifetimes of certificates.
const (
	long  = 90 * 24 * time.Hour
	days  = 3 * 24 * time.Hour
	short = 70 * time.Minute // ten minutes are left: it counts from an hour ago
)

// testPlace is where a test runs its processes.
type testPlace struct {
	*prometheus
	*place.Place
}

func newPlace(t testing.TB) *testPlace {
	t.Helper()
	at := place.For(t, nil)
	return &testPlace{prometheus: startPrometheus(t, at), Place: at}
}

// issue writes a new certificate for a process, which takes it at once.
func (w *testPlace) issue(t testing.TB, name, id string, lifetime time.Duration) mtls.Files {
	t.Helper()
	must.Do(t, w.Issue(name, id, lifetime))
	return w.Files(name)
}

// process is CoreDNS or an owner, which Prometheus scrapes.
type process struct {
	*realserver.Process

	job, address, metrics string
}

// start starts a program until the test ends, and has it scraped.
func (w *testPlace) start(t testing.TB, job, name, program, address, metrics string, args ...string) *process {
	t.Helper()
	binary, err := place.Program(program)
	must.Do(t, err)
	p := &process{job: job, address: address, metrics: metrics, Process: w.Run(t, name, binary, cmp.Or(metrics, address), args...)}
	if metrics != "" {
		w.scrape(t, job, name, metrics)
	}
	return p
}

// service is one of a catalog file.
func service(name, fqdn, address, instance string) string {
	return fmt.Sprintf("- {name: %s, fqdn: %s, endpoints: [{address: %s, port: 80}], instances: [{id: %q, protocol: HTTP}]}\n", name, fqdn, address, instance)
}

// web is the only service of a catalog without faults.
func web(address string) string { return service("web", "web."+zone, address, "v1") }

// startOwner starts an owner. catalogs is that key of its configuration.
func (w *testPlace) startOwner(t testing.TB, job, name, catalogs string, lifetime time.Duration) *process {
	t.Helper()
	files := w.issue(t, name, ownerID, lifetime)
	address, metrics := loopback.Address(t), loopback.Address(t)
	config := place.Owner{Address: address, Metrics: metrics, TLS: files, Allow: []string{coreDNSID}, More: "catalogs:\n" + catalogs + "\n"}
	return w.start(t, job, name, "federationctl", address, metrics, "serve", "--config", w.Put(t, name+".yaml", config.Config()))
}

// startDNS starts a CoreDNS that follows an owner, with more properties in its block. Its
// certificate must be there.
func (w *testPlace) startDNS(t testing.TB, job, name, owner string, retention time.Duration, properties ...string) *process {
	t.Helper()
	address, metrics := loopback.Address(t), loopback.Address(t)
	kept := w.Path(name + "-kept")
	must.Do(t, os.Mkdir(kept, 0o700))
	corefile := place.DNS{
		Zone: zone, Address: address, Metrics: metrics, Owners: []string{owner}, OwnerID: ownerID, TLS: w.Files(name),
		Properties: append([]string{"ttl 2", fmt.Sprintf("retention %v", retention), "persist " + filepath.Join(kept, "catalog")}, properties...),
	}
	return w.start(t, job, name, "coredns", address, metrics, "-conf", w.Put(t, name+".corefile", corefile.Corefile()))
}

// answers waits until a CoreDNS has an address for web.
func (p *process) answers(t testing.TB, address string) {
	t.Helper()
	question := new(dns.Msg).SetQuestion("web."+zone+".", dns.TypeA)
	eventually(t, func() string {
		reply, _, err := (&dns.Client{Timeout: time.Second}).ExchangeContext(t.Context(), question, p.address)
		if err != nil {
			return err.Error()
		}
		for _, rr := range reply.Answer {
			if a, ok := rr.(*dns.A); ok && a.A.String() == address {
				return ""
			}
		}
		return fmt.Sprintf("%s answers %v, not %s", p.Name, reply, address)
	})
}

// has waits until an expression has series.
func (w *testPlace) has(t testing.TB, expr string) {
	t.Helper()
	eventually(t, func() string {
		n, err := w.query(t.Context(), expr)
		switch {
		case err != nil:
			return err.Error()
		case n == 0:
			return "there is no " + expr
		}
		return ""
	})
}
