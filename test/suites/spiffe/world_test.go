package spiffe

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/domain"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	patience = 2 * time.Minute  // bounds each wait for something that must happen
	promised = 30 * time.Second // is what such a wait takes in the median
	tick     = 20 * time.Millisecond

	// grace is how long a stream outlives a certificate, on both sides.
	grace = 10 * time.Second

	web, webAnswer       = "web.shop.west.example", "NOERROR 192.0.2.1"
	ledger, ledgerAnswer = "ledger.pay.west.example", "NOERROR 192.0.2.2"
	notReady             = "SERVFAIL"
)

// world is two trust domains that federate, an owner and a CoreDNS.
type world struct {
	dir        string
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
	w := &world{dir: t.TempDir()}
	w.west = realserver.StartSPIRE(t, realserver.SPIREOptions{TrustDomain: "west.test", TTL: ttl})
	w.east = realserver.StartSPIRE(t, realserver.SPIREOptions{TrustDomain: "east.test", TTL: ttl})
	must(t, w.west.Trust(t.Context(), w.east))
	must(t, w.east.Trust(t.Context(), w.west))
	w.ownerAddress, w.ownerMetrics, w.dnsMetrics = freeAddress(t), freeAddress(t), freeAddress(t)
	w.owner = &realserver.Process{
		Name: "owner", Path: program(t, "federationctl"), Dir: w.dir, Args: []string{"serve", "--config", "owner.yaml"},
		Ready: func(ctx context.Context) error { _, err := get(ctx, w.ownerMetrics); return err },
	}
	w.coreDNS = &domain.DNS{Address: freeAddress(t), Corefile: filepath.Join(w.dir, "Corefile")}
	w.coreDNS.Process = &realserver.Process{
		Name: "coredns", Path: program(t, "coredns"), Dir: w.dir, Args: []string{"-conf", "Corefile"},
		Ready: func(ctx context.Context) error { _, err := w.coreDNS.Ask(ctx, web, dns.TypeA); return err },
	}
	must(t, w.registerOwner(t.Context()))
	must(t, w.registerCoreDNS(t.Context()))
	must(t, w.write("catalog.yaml", catalog("192.0.2.1")))
	must(t, w.allow(w.consumer()))
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
func (w *world) allow(id string) error { return w.write("consumers.txt", id+"\n") }

// write writes a file in the place of one that is there.
func (w *world) write(name, text string) error {
	path := filepath.Join(w.dir, name)
	if err := os.WriteFile(path+".part", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

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
	must(t, w.write("owner.yaml", fmt.Sprintf(`listen: %q
metrics: %q
identity:
  spiffe: {socket: %q, trust_domains: [%s]}
  grace: %v
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
`, w.ownerAddress, w.ownerMetrics, w.west.Socket, w.east.TrustDomain, grace, w.east.TrustDomain, pattern)))
}

// writeCorefile writes the Corefile, with the address of the owner.
func (w *world) writeCorefile(t *testing.T, owner string) {
	t.Helper()
	_, port, err := net.SplitHostPort(w.coreDNS.Address)
	must(t, err)
	must(t, w.write("Corefile", fmt.Sprintf(`west.example:%s {
    bind 127.0.0.1
    errors
    prometheus %s
    federation {
        owner %s
        spiffe %s %s
        owner_id %s
        identity_grace %v
        ttl 5
        negative_ttl 1
    }
}
`, port, w.dnsMetrics, owner, w.east.Socket, w.west.TrustDomain, w.west.ID("owner"), grace)))
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
	return sum(samples(t, w.dnsMetrics, "coredns_federation_"+name, labels...))
}

func (w *world) ownerMetric(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	return sum(samples(t, w.ownerMetrics, "federation_owner_"+name, labels...))
}

// expiry returns when the certificate of the owner or of CoreDNS expires, or zero while
// it has none.
func (w *world) ownerExpiry(t *testing.T) time.Time {
	t.Helper()
	return first(samples(t, w.ownerMetrics, "federation_owner_certificate_expiry_timestamp_seconds"))
}

func (w *world) dnsExpiry(t *testing.T) time.Time {
	t.Helper()
	return first(samples(t, w.dnsMetrics, "coredns_federation_certificate_expiry_timestamp_seconds"))
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

func sum(values []float64) (total float64) {
	for _, v := range values {
		total += v
	}
	return total
}

// samples returns the values of a metric.
func samples(t *testing.T, address, name string, labels ...string) (values []float64) {
	t.Helper()
	text, err := get(t.Context(), address)
	must(t, err)
lines:
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(rest, label) {
				continue lines
			}
		}
		value, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		must(t, err)
		values = append(values, value)
	}
	return values
}

// get returns the metrics of a program.
func get(ctx context.Context, address string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var text strings.Builder
	_, err = bufio.NewReader(response.Body).WriteTo(&text)
	return text.String(), err
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

// eventually waits until condition has nothing to complain of.
func eventually(t *testing.T, condition func() string) {
	t.Helper()
	await.Until(t, promised, patience, condition)
}

// program returns the path of one of this project's programs, as an agent sees it.
func program(t *testing.T, name string) string {
	t.Helper()
	root, err := realserver.Root()
	must(t, err)
	path, err := filepath.EvalSymlinks(filepath.Join(root, "bin", name))
	if err != nil {
		t.Fatalf("bin/%s is not built: run make build", name)
	}
	return path
}

func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := loopback.FreeAddress()
	must(t, err)
	return address
}

// must ends the test at an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
