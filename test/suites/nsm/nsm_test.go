package nsm

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
)

const (
	web      = "web." + zone
	nxdomain = "NXDOMAIN"

	a, b = "tcp://192.0.2.1:5001", "https://[2001:db8::2]:8443"
)

// What the SDK's client registers resolves by name, SRV and TXT, and goes when it is
// unregistered.
func TestRegistered(t *testing.T) {
	enabled(t)
	m := newMesh(t)
	m.startRegistry(t, time.Minute)
	m.serve(t, fmt.Sprintf("nsm: {registry: \"tcp://%s\", zone: %s, tls: none}", m.address, zone))
	m.startDNS(t, zone)
	one := m.register(t, "nse-kernel-7d9f-abc", "web,mail", a, "-labels", "app=shop,tier=public")
	m.answers(t, web, dns.TypeA, "NOERROR 192.0.2.1")
	two := m.register(t, "NSE.two", "web", b, "-labels", "app=shop")
	m.answers(t, web, dns.TypeAAAA, "NOERROR 2001:db8::2")
	m.answers(t, "nse-kernel-7d9f-abc."+web, dns.TypeA, "NOERROR 192.0.2.1")
	m.answers(t, "nse.two."+web, dns.TypeAAAA, "NOERROR 2001:db8::2")
	m.answers(t, "nse-kernel-7d9f-abc."+web, dns.TypeSRV, "NOERROR 0 100 5001 192-0-2-1.addr."+web+".")
	m.answers(t, web, dns.TypeSRV, "NOERROR 0 100 5001 192-0-2-1.addr."+web+". 0 100 8443 2001-0db8-0000-0000-0000-0000-0000-0002.addr."+web+".")
	if got := m.coreDNS.Answer(t.Context(), "nse-kernel-7d9f-abc."+web, dns.TypeTXT); !strings.Contains(got, "tier=public") || !strings.Contains(got, "TCP") {
		t.Errorf("TXT is %q", got)
	}
	m.answers(t, "mail."+zone, dns.TypeA, "NOERROR 192.0.2.1")

	must.Do(t, two.Stop())
	m.answers(t, web, dns.TypeAAAA, "NOERROR")
	m.answers(t, "nse.two."+web, dns.TypeAAAA, nxdomain)
	must.Do(t, one.Stop())
	m.answers(t, web, dns.TypeA, nxdomain)
	m.answers(t, "mail."+zone, dns.TypeA, nxdomain)
}

// A registry that is killed has lost everything when it is back. No name blinks: what
// lives registers again, and what does not goes when the convergence period is over.
func TestRegistryRestarted(t *testing.T) {
	enabled(t)
	const lifetime, convergence = 6 * time.Second, 15 * time.Second
	m := newMesh(t)
	m.startRegistry(t, lifetime)
	m.startOwner(t, convergence)
	m.startDNS(t, zone)
	m.register(t, "alive", "web", a, "-count", "50")
	dead := m.register(t, "dead", "mail", a)
	for i := range 50 {
		m.answers(t, fmt.Sprintf("alive-%d.%s", i, web), dns.TypeA, "NOERROR 192.0.2.1")
	}
	m.answers(t, "mail."+zone, dns.TypeA, "NOERROR 192.0.2.1")
	probe := func(names ...string) *domain.Prober {
		want := make(map[domain.Question]string)
		for _, name := range names {
			want[domain.Question{Name: name, Type: dns.TypeA}] = "NOERROR 192.0.2.1"
		}
		return domain.Probe(t, m.coreDNS, 1, want)
	}
	unbroken, untilGone := probe(web, "alive-49."+web), probe("mail."+zone)

	m.registry.Kill()
	dead.Kill()
	eventually(t, func() string {
		if m.status().Away == "" {
			return "the registry is not said to be away"
		}
		return ""
	})
	started := time.Now()
	must.Do(t, m.registry.Start(t.Context()))
	var back time.Time // not later than that
	eventually(t, func() string {
		now := time.Now()
		if why := m.status().Away; why != "" {
			back = now
			return why
		}
		return ""
	})
	if back.IsZero() {
		back = started
	}
	untilGone.Check(t)
	m.answers(t, "mail."+zone, dns.TypeA, nxdomain)
	if took := time.Since(back); took < convergence {
		t.Errorf("what did not come back is gone %v after the registry is back, want %v", took, convergence)
	}
	for i := range 50 {
		m.answers(t, fmt.Sprintf("alive-%d.%s", i, web), dns.TypeA, "NOERROR 192.0.2.1")
	}
	unbroken.Check(t)
}

// The SDK's own resolver finds the registry of another domain, and the proxy in front of
// its endpoints, by the names that a catalog publishes.
func TestResolver(t *testing.T) {
	enabled(t)
	const other = "cluster2.fed.example"
	m := newMesh(t)
	must.Do(t, os.WriteFile(m.Path("catalog.yaml"), fmt.Appendf(nil, `services:
- name: registry
  fqdn: registry.nsm-system.%[1]s
  endpoints: [{address: 192.0.2.10, port: 5002}]
  instances: [{id: v1, protocol: GRPC}]
- name: nsmgr-proxy
  fqdn: nsmgr-proxy.nsm-system.%[1]s
  endpoints: [{address: 192.0.2.20, port: 5004}]
  instances: [{id: v1, protocol: GRPC}]
`, other), 0o600))
	m.serve(t, "file: {path: catalog.yaml}")
	m.startDNS(t, other)
	m.answers(t, "registry.nsm-system."+other, dns.TypeA, "NOERROR 192.0.2.10")
	found := func(domain string) (string, error) {
		cmd := exec.CommandContext(t.Context(), m.tool, "resolve", "-dns", m.coreDNS.Address, "-domain", domain)
		var failed bytes.Buffer
		cmd.Stderr = &failed
		output, err := cmd.Output()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, failed.Bytes())
		}
		return string(output), err
	}
	got, err := found(other)
	must.Do(t, err)
	if want := fmt.Sprintf(`network services: tcp://192.0.2.10:5002
endpoints: tcp://192.0.2.10:5002
endpoint: nse@%[1]s [web@%[1]s] tcp://192.0.2.20:5004
`, other); got != want {
		t.Errorf("found:\n%swant:\n%s", got, want)
	}
	if got, err := found("cluster3." + other); err == nil {
		t.Errorf("a domain is found that nobody publishes: %s", got)
	}
}
