package browser

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const many = 10_000 // services of the largest catalog

// TestConsumer shows a CoreDNS with an owner in each state, and what goes with it.
func TestConsumer(t *testing.T) {
	t.Parallel()
	folder := pki(t)
	var b strings.Builder
	b.WriteString("services:\n")
	for i := range many {
		fmt.Fprintf(&b, "- %s\n", service(fmt.Sprintf("s%06d", i), fmt.Sprintf("s%06d.fed.example", i), "192.0.2.1"))
	}
	_, large := owner(t, folder, "large", b.String(), "--window", "512")
	_, faulty := owner(t, folder, "faulty", catalogOf(
		service("web", "web.fed.example", "192.0.2.2"),
		service("outside", "outside.other.example", "192.0.2.2"),
		service("local", "local.fed.example", "127.0.0.1"),
		service("taken", "s000001.fed.example", "192.0.2.2"),
		service("joint", "joint.fed.example", "192.0.2.6"),
	), "--allow-addresses", "127.0.0.0/8")
	lost, lostAt := owner(t, folder, "lost", catalogOf(service("lost", "lost.fed.example", "192.0.2.3"), service("joint", "joint.fed.example", "192.0.2.3")))
	gone, goneAt := owner(t, folder, "gone", catalogOf(service("gone", "gone.fed.example", "192.0.2.4")))
	_, empty := owner(t, folder, "empty", "services: []\n")
	_, strict := owner(t, folder, "strict", catalogOf(service("strict", "strict.fed.example", "192.0.2.5")), "--allow-id", "spiffe://elsewhere.example/consumer")
	slow := stall(t, large, 200_000)
	nobody := loopback.Address(t)

	dns, at := loopback.Address(t), loopback.Address(t)
	base := "http://" + at
	block := func(owner string, more string) string {
		return fmt.Sprintf("    federation {\n        owner %s\n        tls %[2]s/consumer.pem %[2]s/consumer-key.pem %[2]s/ca.pem\n%s    }\n", owner, folder, more)
	}
	corefile := fmt.Sprintf("fed.example:%s {\n    bind 127.0.0.1\n    errors\n", strings.TrimPrefix(dns, "127.0.0.1:")) +
		block(large, "        status "+at+"\n") + block(faulty, "        share joint.fed.example\n") + block(lostAt, "        retention 1h\n        share joint.fed.example\n        tier 1\n") + block(goneAt, "        retention 1s\n") +
		block(strict, "") + block(slow, "") + block(nobody, "") + block(empty, "") + "}\n"
	dnsProcess := start(t, "coredns", "-conf", write(t, folder, "Corefile", corefile))

	in := func(want map[string]string) {
		t.Helper()
		await.Until(t, patience, func() string {
			s, err := read(base)
			if err != nil {
				return err.Error()
			}
			for _, o := range s.Owners {
				if state := want[o.ID]; state != "" && state != o.State {
					return fmt.Sprintf("owner %s is %s, and to be %s", o.ID, o.State, state)
				} else if (state == "stale" || state == "expired") && !strings.Contains(o.Failure, "connection refused") {
					return fmt.Sprintf("owner %s has not been tried again: %s", o.ID, o.Failure) // the loss itself is named before
				}
			}
			if len(s.Owners) != 8 {
				return fmt.Sprintf("%d owners", len(s.Owners))
			}
			return ""
		})
	}
	in(map[string]string{large: "synced", faulty: "synced", lostAt: "synced", goneAt: "synced", strict: "parked", slow: "syncing", nobody: "connecting", empty: "synced"})
	lost.kill()
	gone.kill()
	in(map[string]string{lostAt: "stale", goneAt: "expired"})

	tab := open(t, base)
	tab.run(chromedp.Navigate(base + "/"))
	host := must.Get(os.Hostname())(t)
	tab.says("h1", "CoreDNS federation on "+host)
	tab.says("header", fmt.Sprintf("process %d, ", dnsProcess.cmd.Process.Pid), "Refresh every 5 s")
	overall := tab.text("#overall")
	// It becomes ready when it has waited long enough for those that are not known.
	if s, err := read(base); err != nil || !s.Ready && !strings.Contains(overall, "Not ready") {
		t.Errorf("%v; the page says %q, and the process is not ready", err, overall)
	}
	tab.says(".overall", "Act on 4 of 8 owners: 1 connecting, 1 expired, 1 parked, 1 syncing.", "Look at 2 of 8 owners: 1 refused, 1 stale.")
	tab.says(tab.card(goneAt), "expired", "its records are removed", "connection refused")
	tab.says(tab.card(lostAt), "stale", "still answered", "connection refused")
	if text := tab.text(tab.card(lostAt)); !regexp.MustCompile(`Retention: \d+ (s|min) of 1 h used, records go in (1 h|5\d min)`).MatchString(text) {
		t.Errorf("of the retention of 1 h this is used: %q", text)
	}
	tab.says(tab.card(strict), "parked", "turned this consumer away", "Unauthenticated", "To do: have the owner allow an identity")
	tab.says(tab.card(nobody), "connecting", "SERVFAIL", "connection refused")
	tab.says(tab.card(slow), "syncing", "not complete yet")
	tab.says(tab.card(large), "synced", "10,000 services, updated ", " ago")
	tab.says(tab.card(faulty), "synced", "refused", "2 refusals, the newest", " ago: ", "Conflicts or rules keep 1 of its names and records")
	tab.says(tab.card(empty), "synced", "no service for this consumer", "To do: publish a first service")
	tab.unfold()
	tab.says(tab.card(large), "Certificate", "expires in", "Catalog", "10,000 instances", "UTC")
	tab.says(tab.card(faulty), "outside.other.example", "127.0.0.1", "fqdn_conflict: 1")
	var order []string
	tab.run(chromedp.Evaluate(`[...document.querySelectorAll("section[aria-labelledby=owners] article")].map(a => a.className.split(" ")[1])`, &order))
	if last := order[len(order)-1]; order[0] != "act" || last != "well" || !sorted(order) {
		t.Errorf("the cards are %q, expected the worst first", order)
	}
	tab.look("consumer", "/", 4000) // four of the cards have a button, and each finding says what to do by its cause, and where more is said

	// The name box.
	ask := func(name, qtype string, words ...string) {
		t.Helper()
		tab.run(chromedp.Navigate(base+"/"), chromedp.SetValue("#type", qtype, chromedp.ByQuery))
		tab.follow(chromedp.SendKeys("#name", name+"\r", chromedp.ByQuery))
		tab.says(".answer", words...)
	}
	ask("web.fed.example", "A", "web.fed.example A: 192.0.2.2", "live", faulty)
	ask("LOST.fed.example.", "A", "192.0.2.3", "stale", lostAt)
	tab.says(".answer .todo", "To do")
	ask("gone.fed.example", "A", "gone.fed.example A: ")
	ask("s000001.fed.example", "SRV", "s000001.fed.example SRV: ", large)
	ask("joint.fed.example", "A", "joint.fed.example A: 192.0.2.6", "live", faulty)
	tab.says(".answer .shared", "192.0.2.6:443, tier 0, of "+faulty+": answered, it is live",
		"192.0.2.3:443, tier 1, of "+lostAt+": not answered, its owner is lost, so live endpoints go first; it goes in ")
	tab.look("why-shared", "/?name=joint.fed.example&type=A", 0)
	tab.run(chromedp.Navigate(base + "/?name=a..b&type=A"))
	tab.says("#why-error", "is not a domain name")

	// A catalog.
	tab.run(chromedp.Navigate(base + "/"))
	tab.follow(chromedp.Click(tab.card(large)+" a[href^='/services']", chromedp.ByQuery))
	tab.says("main", "The first 1,000 services, in", "There are more", "Name in DNS", "s000000", "192.0.2.1:443", "s000999")
	tab.follow(chromedp.SendKeys("#match", "192.0.2.1 S0099\r", chromedp.ByQuery))
	tab.says("main", "100 services that match 192.0.2.1 S0099, in", "s009900", "s009999")
	tab.run(chromedp.Navigate(base + "/services?of=" + large + "&match=192.0.2"))
	tab.says("main", "The first 1,000 services that match 192.0.2, in", "There are more")
	tab.run(chromedp.SetValue("#match", "s00999 fed.example", chromedp.ByQuery))
	tab.follow(chromedp.Click("button", chromedp.ByQuery))
	tab.says("main", "10 services that match s00999 fed.example, in", "s009990")
	tab.look("services", "/services?of="+large, 0)
	tab.run(chromedp.Navigate(base + "/services?of=" + large + "&match=nosuch"))
	tab.says("main", "0 services that match nosuch", "No service matches.")

	// The page refreshes itself, and leaves the reader what is typed, open, focused and chosen.
	// The order of the cards, and what stands above the reader, may change meanwhile.
	var fetched, age string
	card := fmt.Sprintf(`[...document.querySelectorAll(".card")].find(c => c.querySelector("h3")?.textContent.includes(%q))`, large)
	details, summary := card+`.querySelector("details")`, card+`.querySelector("summary")`
	tab.run(chromedp.Navigate(base+"/"), chromedp.SendKeys("#name", "half a na", chromedp.ByQuery), chromedp.SetValue("#type", "SRV", chromedp.ByQuery),
		chromedp.Evaluate(details+`.open = true; scrollTo(0, 150); document.querySelector("[data-live=head]").textContent`, &fetched))
	refreshed := func(what string) {
		t.Helper()
		await.Until(t, patience, func() string {
			before := age
			if age = tab.text("[data-live=head]"); age == fetched || age == before {
				return what + ": the page still says " + age
			}
			return ""
		})
	}
	refreshed("first")
	var kept bool
	for what, condition := range map[string]string{
		"typed": `document.querySelector("#name").value === "half a na"`, "chosen": `document.querySelector("#type").value === "SRV"`,
		"focused": `document.activeElement.id === "name"`, "opened": details + ".open", "scrolled to": "scrollY > 0",
	} {
		if tab.run(chromedp.Evaluate(condition, &kept)); !kept {
			t.Errorf("a refresh has changed what the reader had %s", what)
		}
	}
	tab.run(chromedp.Evaluate(summary+`.focus(); 0`, nil))
	refreshed("focused")
	tab.run(chromedp.Evaluate(`document.activeElement === `+summary, &kept))
	if !kept {
		t.Error("a refresh has taken the focus")
	}

	// Without scripts the page is the same, until it is reloaded.
	var plain, scripted string
	tab.run(emulation.SetScriptExecutionDisabled(true), chromedp.Navigate(base+"/?name=web.fed.example&type=A"), chromedp.OuterHTML("html", &plain, chromedp.ByQuery),
		emulation.SetScriptExecutionDisabled(false), chromedp.Navigate(base+"/?name=web.fed.example&type=A"), chromedp.OuterHTML("html", &scripted, chromedp.ByQuery))
	for _, html := range []string{plain, scripted} {
		if !strings.Contains(html, "web.fed.example A: 192.0.2.2") {
			t.Errorf("without scripts the page is %.2000s", html)
		}
	}
}

// TestGone shows that a process has ended: what it said last does not pass for what is so.
func TestGone(t *testing.T) {
	t.Parallel()
	folder, at := pki(t), loopback.Address(t)
	process, _ := owner(t, folder, "first", "services: []\n", "--status", at)
	tab := open(t, "http://"+at)
	tab.run(chromedp.Navigate("http://" + at + "/"))
	tab.says("h1", "Federation owner on "+must.Get(os.Hostname())(t))
	tab.says(".overall", "Ready", "No service is published yet")
	tab.says(tab.card("To consumers"), "empty", "To do: add a first service", "No consumer is connected", "To do: name this owner")
	tab.look("owner-empty", "/", 1700)
	tab.refused = "ERR_CONNECTION_REFUSED"
	tab.run(chromedp.Navigate("http://" + at + "/"))
	process.kill()
	tab.run(chromedp.WaitVisible("#lost", chromedp.ByQuery))
	tab.says("#lost", "No answer", "what was so before")
}

// sorted reports whether the classes of cards are in order, the worst first.
func sorted(classes []string) bool {
	rank := map[string]int{"act": 2, "look": 1, "well": 0}
	for i := 1; i < len(classes); i++ {
		if rank[classes[i]] > rank[classes[i-1]] {
			return false
		}
	}
	return true
}
