package browser

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
)

// TestStates shows one page in each state that a reader comes to it with. Its screenshots are for people.
func TestStates(t *testing.T) {
	t.Parallel()
	three := catalogOf(service("web-10", "web-10.fed.example", "192.0.2.10"), service("web-2", "web-2.fed.example", "192.0.2.2"), service("db", "db.fed.example", "2001:db8::5"))
	for _, tc := range []struct {
		name  string
		start func(t *testing.T, folder string) (base string)
		until func(s status) bool
		says  []string
		never string
	}{
		{
			name: "synced",
			start: func(t *testing.T, folder string) string {
				_, at := owner(t, folder, "synced", three)
				return consumer(t, folder, at, "")
			},
			until: func(s status) bool { return s.Owners[0].State == "synced" },
			says:  []string{"1 owner synced, 3 services.", "✓ synced", "3 services, updated"},
			never: "To do",
		},
		{
			name:  "not-yet-synced",
			start: func(t *testing.T, folder string) string { return consumer(t, folder, loopback.Address(t), "") },
			until: func(s status) bool { return s.Owners[0].Failure != "" },
			says:  []string{"Not ready", "✕ connecting", "connection refused", "To do: start the owner", "docs/runbook.md, FederationConsumerOwnerUnknown", "next attempt"},
			never: "check the network",
		},
		{
			name: "lost",
			start: func(t *testing.T, folder string) string {
				process, at := owner(t, folder, "lost", three)
				base := consumer(t, folder, at, "")
				reach(t, base, func(s status) bool { return s.Owners[0].State == "synced" })
				process.kill()
				return base
			},
			until: func(s status) bool {
				return s.Owners[0].State == "stale" && strings.Contains(s.Owners[0].Failure, "refused")
			},
			says:  []string{"▲ stale", "connection refused", "still answered", "To do: start the owner", "of 24 h used, records go in 24 h"},
			never: "raise retention",
		},
		{
			name: "expired",
			start: func(t *testing.T, folder string) string {
				process, at := owner(t, folder, "expired", three)
				base := consumer(t, folder, at, "        retention 1s\n")
				reach(t, base, func(s status) bool { return s.Owners[0].State == "synced" })
				process.kill()
				return base
			},
			until: func(s status) bool {
				return s.Owners[0].State == "expired" && strings.Contains(s.Owners[0].Failure, "refused")
			},
			says:  []string{"✕ expired", "connection refused", "its records are removed", "To do: start the owner"},
			never: "repair the owner or the network",
		},
		{
			name: "refusals",
			start: func(t *testing.T, folder string) string {
				_, at := owner(t, folder, "refusals", catalogOf(service("web", "web.fed.example", "192.0.2.2"), service("outside", "outside.other.example", "192.0.2.2"),
					service("local", "local.fed.example", "127.0.0.1")), "--allow-addresses", "127.0.0.0/8")
				return consumer(t, folder, at, "")
			},
			until: func(s status) bool { return s.Owners[0].State == "synced" && s.Owners[0].NotAdmitted == 2 },
			says:  []string{"✓ synced", "▲ refused", "2 services", "docs/runbook.md, FederationConsumerRefusals", "2 refusals, the newest"},
			never: "▲ synced",
		},
		{
			name: "paused",
			start: func(t *testing.T, folder string) string {
				var many []string
				for i := range 30 {
					many = append(many, service(fmt.Sprintf("web-%d", i+1), fmt.Sprintf("web-%d.fed.example", i+1), "192.0.2.1"))
				}
				write(t, folder, "catalog.yaml", catalogOf(many...))
				at, base := loopback.Address(t), loopback.Address(t)
				start(t, "federationctl", "serve", "--config", write(t, folder, "owner.yaml", fmt.Sprintf(`listen: %q
status: %q
identity:
  files: {cert: owner.pem, key: owner-key.pem, ca: ca.pem}
allow:
  ids: [spiffe://federation.example/consumer]
catalogs:
- sources:
  - file: {path: catalog.yaml, max_withdraw: 10%%}
`, at, base)))
				reach(t, "http://"+base, func(s status) bool { return s.Catalogs[0].Services == 30 })
				write(t, folder, "catalog.yaml", catalogOf(many[0]))
				return "http://" + base
			},
			until: func(s status) bool { return s.Catalogs[0].Sources[0].Paused == 29 },
			says:  []string{"✓ current", "✕ paused", "The withdrawal of 29 services is paused", "Withdraw 29 services now", "docs/runbook.md, FederationOwnerWithdrawalsPaused"},
			never: "✕ current",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			base := tc.start(t, pki(t))
			reach(t, base, tc.until)
			tab := open(t, base)
			tab.run(chromedp.Navigate(base + "/"))
			tab.says("main", tc.says...)
			if text := tab.text("main"); strings.Contains(text, tc.never) {
				t.Errorf("the page says %q: %s", tc.never, text)
			}
			tab.look("state-"+tc.name, "/", 0)
			if tc.name == "synced" {
				tab.follow(chromedp.Click("article a[href^='/services']", chromedp.ByQuery))
				tab.says("main", "Addresses", "[2001:db8::5]:443")
				if text := tab.text("main"); strings.Index(text, "web-2") > strings.Index(text, "web-10") {
					t.Errorf("web-2 comes behind web-10: %s", text)
				}
				tab.look("services-few", strings.TrimPrefix(tab.location(), base), 0)
				tab.run(chromedp.Navigate(base + "/"))
				tab.follow(chromedp.SendKeys("#name", "web2.fed.example\r", chromedp.ByQuery))
				tab.says(".answer", "NXDOMAIN", "Did you mean web-2.fed.example?")
				tab.look("why-nearest", strings.TrimPrefix(tab.location(), base), 0)
				tab.follow(chromedp.Click(".nearest a", chromedp.ByQuery))
				tab.says(".answer", "web-2.fed.example A: 192.0.2.2")
			}
		})
	}
}

// consumer starts a CoreDNS with an owner, whose block has more properties, and returns where its
// status is.
func consumer(t *testing.T, folder, owner, more string) (base string) {
	t.Helper()
	at, dns := loopback.Address(t), strings.TrimPrefix(loopback.Address(t), "127.0.0.1:")
	start(t, "coredns", "-conf", write(t, folder, "Corefile", fmt.Sprintf(`fed.example:%s {
    bind 127.0.0.1
    errors
    federation {
        owner %s
        tls %[3]s/consumer.pem %[3]s/consumer-key.pem %[3]s/ca.pem
        status %[4]s
%[5]s    }
}
`, dns, owner, folder, at, more)))
	reach(t, "http://"+at, func(status) bool { return true })
	return "http://" + at
}

// reach waits until the status of a process is so.
func reach(t *testing.T, base string, so func(s status) bool) {
	t.Helper()
	await.Until(t, patience, func() string {
		s, err := read(base)
		if err != nil {
			return err.Error()
		}
		if !so(s) {
			return fmt.Sprintf("the status is %+v", s)
		}
		return ""
	})
}
