package browser

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
)

// TestOwner shows an owner with a file that is broken, a program that has registered, an
// owner that it relays and that is lost, and a consumer.
func TestOwner(t *testing.T) {
	t.Parallel()
	folder := pki(t)
	origin, originAt := owner(t, folder, "origin", catalogOf(service("far", "far.fed.example", "192.0.2.1")))
	write(t, folder, "catalog.yaml", catalogOf(service("web", "web.fed.example", "192.0.2.2")))
	write(t, folder, "brief.yaml", catalogOf(service("brief", "brief.fed.example", "192.0.2.3")))
	write(t, folder, "registrations.yaml", `rules:
- name: samples
  providers: [spiffe://federation.example/consumer]
  services: ["*.fed.example"]
  ttl: {min: 2s, max: 1m, default: 30s}
`)
	at, statusAt, dns, base := loopback.Address(t), loopback.Address(t), loopback.Address(t), ""
	base = "http://" + statusAt
	start(t, "federationctl", "serve", "--config", write(t, folder, "owner.yaml", fmt.Sprintf(`listen: %q
status: %q
identity:
  files: {cert: owner.pem, key: owner-key.pem, ca: ca.pem}
allow:
  ids: [spiffe://federation.example/consumer]
allow_addresses: [127.0.0.0/8]
catalogs:
- sources:
  - file: {path: catalog.yaml}
  - registration: {rules: registrations.yaml, convergence: 1s}
  exports:
  - to: ["spiffe://federation.example/*"]
- server_name: files.example
  sources:
  - file: {path: brief.yaml, lifetime: 1s}
- server_name: relay.example
  relay: {addresses: [%q], tls_servername: localhost}
`, at, statusAt, originAt)))
	listening(t, at)
	start(t, "federationctl", "register", "--server", at, "--cert", folder+"/consumer.pem", "--key", folder+"/consumer-key.pem", "--ca", folder+"/ca.pem",
		"--service", "hello.fed.example", "--node", "http://127.0.0.1:1", "--ttl", "30s")
	start(t, "coredns", "-conf", write(t, folder, "Corefile", fmt.Sprintf(`fed.example:%s {
    bind 127.0.0.1
    errors
    federation {
        owner %s
        tls %[3]s/consumer.pem %[3]s/consumer-key.pem %[3]s/ca.pem
        allow_addresses 127.0.0.0/8
    }
}
`, strings.TrimPrefix(dns, "127.0.0.1:"), at, folder)))
	is := func(what string, so func(s status) bool) {
		t.Helper()
		await.Until(t, patience, func() string {
			s, err := read(base)
			if err != nil {
				return err.Error()
			}
			if !so(s) {
				return fmt.Sprintf("%s is not so: %+v", what, s)
			}
			return ""
		})
	}
	services := func(s status) (n int) {
		for _, c := range s.Catalogs {
			n += c.Services
		}
		return n
	}
	is("four or more services", func(s status) bool { return len(s.Catalogs) == 3 && services(s) >= 4 })
	is("a consumer", func(s status) bool { return s.Catalogs[0].Consumers["v1alpha2"] == 1 })
	origin.kill()
	write(t, folder, "brief.yaml", "services: [")
	away := func(s status) (n int) {
		for _, c := range s.Catalogs {
			for _, source := range c.Sources {
				if source.State == "away" {
					n++
				}
			}
		}
		return n
	}
	is("two sources away for longer than they may", func(s status) bool {
		n := 0
		for _, c := range s.Catalogs {
			if c.Unavailable != "" {
				n++
			}
		}
		return away(s) == 2 && n == 2
	})

	tab := open(t, base)
	tab.run(chromedp.Navigate(base + "/"))
	tab.says("h1", "Federation owner on ")
	tab.says(".overall", "something to act on", "brief.yaml has been away", "away")
	tab.says("main", "brief.yaml", "1 file is broken", "Relayed from", "stale", "No stream:")
	tab.unfold()
	tab.says("main", "Programs register at", "1 provider connected", "spiffe://federation.example/consumer", "Certificate")
	tab.look("owner", "/", 3400)
	tab.run(chromedp.Navigate(base + "/"))
	tab.follow(chromedp.SendKeys("#name", "web.fed.example\r", chromedp.ByQuery))
	tab.unfold()
	tab.says("main", "web.fed.example", "published in catalog (default)", "catalog.yaml")
	tab.look("owner-why", "/?name=web.fed.example", 0)
	tab.run(chromedp.Navigate(base + "/services?of="))
	tab.says("main", "web.fed.example", "hello.fed.example")
}
