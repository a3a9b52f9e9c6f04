package nsm

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
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
	w := newWorld(t)
	w.startRegistry(t, time.Minute)
	w.serve(t, fmt.Sprintf("nsm: {registry: \"tcp://%s\", zone: %s, tls: none}", w.address, zone))
	w.startDNS(t, zone)
	one := w.register(t, "nse-kernel-7d9f-abc", "web,mail", a, "-labels", "app=shop,tier=public")
	w.answers(t, web, dns.TypeA, "NOERROR 192.0.2.1")
	two := w.register(t, "NSE.two", "web", b, "-labels", "app=shop")
	w.answers(t, web, dns.TypeAAAA, "NOERROR 2001:db8::2")
	w.answers(t, "nse-kernel-7d9f-abc."+web, dns.TypeA, "NOERROR 192.0.2.1")
	w.answers(t, "nse.two."+web, dns.TypeAAAA, "NOERROR 2001:db8::2")
	w.answers(t, "nse-kernel-7d9f-abc."+web, dns.TypeSRV, "NOERROR 0 100 5001 192-0-2-1.addr."+web+".")
	w.answers(t, web, dns.TypeSRV, "NOERROR 0 100 5001 192-0-2-1.addr."+web+". 0 100 8443 2001-0db8-0000-0000-0000-0000-0000-0002.addr."+web+".")
	if got := w.coreDNS.Answer(t.Context(), "nse-kernel-7d9f-abc."+web, dns.TypeTXT); !strings.Contains(got, "tier=public") || !strings.Contains(got, "TCP") {
		t.Errorf("TXT is %q", got)
	}
	w.answers(t, "mail."+zone, dns.TypeA, "NOERROR 192.0.2.1")

	must.Do(t, two.Stop())
	w.answers(t, web, dns.TypeAAAA, "NOERROR")
	w.answers(t, "nse.two."+web, dns.TypeAAAA, nxdomain)
	must.Do(t, one.Stop())
	w.answers(t, web, dns.TypeA, nxdomain)
	w.answers(t, "mail."+zone, dns.TypeA, nxdomain)
}

// An endpoint that is killed goes when its time is over, and one that refreshes stays.
// The registry says so half a second earlier than expiration_time, which is the deadline
// of the client's calls.
func TestExpired(t *testing.T) {
	enabled(t)
	w := newWorld(t)
	const lifetime = 15 * time.Second
	w.startRegistry(t, lifetime)
	w.startOwner(t, 0, nil)
	w.startDNS(t, zone)
	w.register(t, "alive", "web", a)
	w.answers(t, web, dns.TypeA, "NOERROR 192.0.2.1")
	unbroken := w.steady(t, web, "NOERROR 192.0.2.1")
	began := time.Now()
	killed := w.register(t, "killed", "web,mail", a)
	w.answers(t, "mail."+zone, dns.TypeA, "NOERROR 192.0.2.1")
	killed.Kill()
	w.answers(t, "mail."+zone, dns.TypeA, nxdomain)
	if took := time.Since(began); took < lifetime-time.Second {
		t.Errorf("it is gone %v after it was registered", took)
	}
	w.answers(t, "killed."+web, dns.TypeA, nxdomain)
	unbroken()

	began = time.Now()
	short := w.register(t, "short", "mail", a, "-lifetime", "3s")
	w.answers(t, "mail."+zone, dns.TypeA, "NOERROR 192.0.2.1")
	short.Kill() // before it refreshes
	w.answers(t, "mail."+zone, dns.TypeA, nxdomain)
	if took := time.Since(began); took < 2*time.Second || took > lifetime {
		t.Errorf("it is gone %v after it was registered for 3s", took)
	}
}

// A registry that is killed has lost everything when it is back. No name blinks: what
// lives registers again, and what does not goes when the convergence period is over.
func TestRegistryRestarted(t *testing.T) {
	enabled(t)
	const lifetime, convergence = 6 * time.Second, 20 * time.Second
	w := newWorld(t)
	w.startRegistry(t, lifetime)
	w.startOwner(t, convergence, nil)
	w.startDNS(t, zone)
	w.register(t, "alive", "web", a, "-count", "50")
	dead := w.register(t, "dead", "mail", a)
	for i := range 50 {
		w.answers(t, fmt.Sprintf("alive-%d.%s", i, web), dns.TypeA, "NOERROR 192.0.2.1")
	}
	w.answers(t, "mail."+zone, dns.TypeA, "NOERROR 192.0.2.1")
	unbroken := []func(){w.steady(t, web, "NOERROR 192.0.2.1"), w.steady(t, "alive-49."+web, "NOERROR 192.0.2.1")}
	untilGone := w.steady(t, "mail."+zone, "NOERROR 192.0.2.1")

	w.registry.Kill()
	dead.Kill()
	eventually(t, func() string {
		if w.status().Away == "" {
			return "the registry is not said to be away"
		}
		return ""
	})
	away := w.status().Since
	passed(t, away, 2*lifetime) // all that is known would have expired
	started := time.Now()
	must.Do(t, w.registry.Start(t.Context()))
	var back time.Time // not later than that
	eventually(t, func() string {
		now := time.Now()
		if why := w.status().Away; why != "" {
			back = now
			return why
		}
		return ""
	})
	if back.IsZero() {
		back = started
	}
	untilGone()
	w.answers(t, "mail."+zone, dns.TypeA, nxdomain)
	if took := time.Since(back); took < convergence {
		t.Errorf("what did not come back is gone %v after the registry is back, want %v", took, convergence)
	}
	for i := range 50 {
		w.answers(t, fmt.Sprintf("alive-%d.%s", i, web), dns.TypeA, "NOERROR 192.0.2.1")
	}
	for _, stop := range unbroken {
		stop()
	}
}

// The registry and the source know each other by certificates of a real SPIRE, which are
// replaced. A registry with another ID than the expected one is none.
func TestSPIFFE(t *testing.T) {
	enabled(t)
	spire := realserver.StartSPIRE(t, realserver.SPIREOptions{TrustDomain: "nsm.test", TTL: 20 * time.Second})
	w := newWorld(t)
	w.identity = []string{"-spiffe", spire.Socket}
	self, err := os.Executable()
	must.Do(t, err)
	tool, err := filepath.EvalSymlinks(w.tool) // as the agent sees it
	must.Do(t, err)
	must.Do(t, spire.Register(t.Context(), "registry", []string{"unix:path:" + tool}))
	must.Do(t, spire.Register(t.Context(), "owner", []string{"unix:path:" + self}))
	identity, err := mtls.Open(mtls.Origin{SPIFFE: mtls.SPIFFE{Socket: spire.Socket}}, slog.New(slog.DiscardHandler))
	must.Do(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	running.Go(func() { _ = identity.Run(ctx) })
	id := func(path string) []federation.ID {
		id, err := federation.ParseID(spire.ID(path))
		must.Do(t, err)
		return []federation.ID{id}
	}
	w.startRegistry(t, time.Minute)
	w.register(t, "nse", "web", a)
	other := newWorld(t)
	other.address = w.address
	other.startOwner(t, 0, identity.Client("", id("somebody")))
	w.startOwner(t, 0, identity.Client("", id("registry")))
	w.startDNS(t, zone)
	w.answers(t, web, dns.TypeA, "NOERROR 192.0.2.1")
	unbroken := w.steady(t, web, "NOERROR 192.0.2.1")
	began := time.Now()
	passed(t, began, 25*time.Second) // connections by the first certificate have ended
	w.register(t, "later", "mail", a)
	w.answers(t, "mail."+zone, dns.TypeA, "NOERROR 192.0.2.1")
	unbroken()
	if s := other.status(); s.Away == "" || s.Complete {
		t.Errorf("a registry with another ID is believed: %+v", s)
	}
	if s := w.status(); s.Away != "" {
		t.Errorf("status is %+v", s)
	}
}

// The SDK's own resolver finds the registry of another domain, and the proxy in front of
// its endpoints, by the names that a catalog publishes.
func TestResolver(t *testing.T) {
	enabled(t)
	const domain = "cluster2.fed.example"
	w := newWorld(t)
	must.Do(t, os.WriteFile(w.Path("catalog.yaml"), fmt.Appendf(nil, `services:
- name: registry
  fqdn: registry.nsm-system.%[1]s
  endpoints: [{address: 192.0.2.10, port: 5002}]
  instances: [{id: v1, protocol: GRPC}]
- name: nsmgr-proxy
  fqdn: nsmgr-proxy.nsm-system.%[1]s
  endpoints: [{address: 192.0.2.20, port: 5004}]
  instances: [{id: v1, protocol: GRPC}]
`, domain), 0o600))
	w.serve(t, "file: {path: catalog.yaml}")
	w.startDNS(t, domain)
	w.answers(t, "registry.nsm-system."+domain, dns.TypeA, "NOERROR 192.0.2.10")
	found := func(domain string) (string, error) {
		cmd := exec.CommandContext(t.Context(), w.tool, "resolve", "-dns", w.coreDNS.Address, "-domain", domain)
		var failed bytes.Buffer
		cmd.Stderr = &failed
		output, err := cmd.Output()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, failed.Bytes())
		}
		return string(output), err
	}
	got, err := found(domain)
	must.Do(t, err)
	if want := fmt.Sprintf(`network services: tcp://192.0.2.10:5002
endpoints: tcp://192.0.2.10:5002
endpoint: nse@%[1]s [web@%[1]s] tcp://192.0.2.20:5004
`, domain); got != want {
		t.Errorf("found:\n%swant:\n%s", got, want)
	}
	if got, err := found("cluster3." + domain); err == nil {
		t.Errorf("a domain is found that nobody publishes: %s", got)
	}
}
