package register

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/suites/register/fleet"
)

// shortTTL is that of providers that are killed. It is longer than a process waits for
// a processor on a busy machine.
const shortTTL = 4 * time.Second

// TestProviderKilled kills providers at different times since they were heard last.
// Each is gone one ttl after that, and not a second earlier or later.
func TestProviderKilled(t *testing.T) {
	enabled(t)
	t.Parallel()
	const (
		killed    = 8
		tolerance = time.Second
		busy      = 10 * time.Second // by which one of them may be late on a busy machine
	)
	w := start(t, options{})
	f := w.follow(t, w.owners[0].address)
	var all []*providers
	for i := range killed {
		all = append(all, w.register(t, fleet.Config{First: i, Nodes: 1, Services: killed + 1, TTL: shortTTL}))
	}
	stays := w.register(t, fleet.Config{First: killed, Nodes: 1, Services: killed + 1, TTL: shortTTL})
	f.synced(t, killed+1)
	resolved(t, w.dns, stays.answers())
	p := probe(t, w.dns, stays.answers())
	at := make([]time.Time, killed)
	next := time.Now()
	for i, victim := range all {
		passes(t, next)
		at[i] = victim.kill()
		next = next.Add(shortTTL / killed)
	}
	for i, victim := range all {
		name := victim.Service(i)
		took := f.gone(t, name).Sub(at[i])
		if took < shortTTL-tolerance || took > shortTTL+busy {
			t.Errorf("%s was withdrawn %v after its provider was killed, want %v", name, took, shortTTL)
		}
		await.Took(t, "the withdrawal of a provider that is killed, after its ttl", tolerance, took-shortTTL)
		resolvedTo(t, w, name, "NXDOMAIN")
	}
	more(t, p)
	p.Check(t)
}

// resolvedTo waits until CoreDNS answers for a name as it should.
func resolvedTo(t testing.TB, w *world, name, want string) {
	t.Helper()
	resolved(t, w.dns, map[string]string{name: want})
}

// TestClear takes nodes away: that is at once, and neither the ttl nor linger is waited
// for.
func TestClear(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Minute
	w := start(t, options{linger: ttl})
	f := w.follow(t, w.owners[0].address)
	p := w.open(t, w.owners[0], "fleet")
	const services = 20
	var took []time.Duration
	for i := range services {
		name := fmt.Sprintf("clear-%d.%s", i, zone)
		p.active(t, name, node(fleet.Address(i)), ttl)
		p.grants(t, node(fleet.Address(i)))
		resolvedTo(t, w, name, short([]string{fleet.Address(i).String()}))
		f.synced(t, 1)
		begin := time.Now()
		p.clear(t, name, node(fleet.Address(i)))
		took = append(took, f.gone(t, name).Sub(begin))
		resolvedTo(t, w, name, "NXDOMAIN")
	}
	slices.Sort(took)
	t.Logf("cleared nodes were withdrawn after %v, at most %v", took[services/2], took[services-1])
}

// TestProviderStopped stops the process of providers for less than their ttl, at several
// times since they were heard last: nobody notices.
func TestProviderStopped(t *testing.T) {
	enabled(t)
	t.Parallel()
	const (
		stops = 3
		ttl   = 10 * time.Second
		stop  = 6 * time.Second // an Active may be late by a ttl
	)
	w := start(t, options{})
	f := w.follow(t, w.owners[0].address)
	fleet := w.register(t, fleet.Config{Nodes: 20, Streams: 5, TTL: ttl})
	f.synced(t, 20)
	resolved(t, w.dns, fleet.answers())
	p := probe(t, w.dns, fleet.answers())
	for i := range stops {
		answers := func() int { s, _ := fleet.now(); return s.Answers }
		fleet.signal(syscall.SIGSTOP)
		passes(t, time.Now().Add(stop))
		fleet.signal(syscall.SIGCONT)
		// It is heard again before the next stop, which comes at another time.
		before := answers()
		eventually(t, func() string {
			if answers() < before+20 {
				return "the providers do not go on"
			}
			return ""
		})
		passes(t, time.Now().Add(time.Duration(i)*ttl/10))
	}
	more(t, p)
	p.Check(t)
	if s, _ := fleet.now(); s.Expired+s.Refused+s.Lost > 0 {
		t.Errorf("the providers were disturbed: %+v", s)
	}
	if gone := f.withdrawals(); len(gone) > 0 {
		t.Errorf("%d services were withdrawn, the first %s", len(gone), gone[0])
	}
}

const strictQuota = 3

// strict are rules under which other may register little.
const strict = usual + `
- name: strict
  providers: [spiffe://fed.example/ns/other/sa/default]
  services: [good.reg.fed.example, shared.reg.fed.example]
  addresses: [10.0.0.0/8]
  ttl: {min: 2s, max: 1m}
  quota: 3
`

// twoRules are rules that allow fleet what is below two names in the zone.
func twoRules(one, two string) string {
	return fmt.Sprintf(`rules:
- {name: one, providers: [%[1]q], services: ["*.%[2]s.%[4]s"], addresses: [10.0.0.0/8]}
- {name: two, providers: [%[1]q], services: ["*.%[3]s.%[4]s"], addresses: [10.0.0.0/8]}
`, fleetID, one, two, zone)
}

// TestRefusals has a provider ask for what it may not have. It is told by which rule,
// and everything else on the stream goes on.
func TestRefusals(t *testing.T) {
	t.Parallel()
	w := start(t, options{rules: strict})
	good := "good." + zone
	goodNode := node(fleet.Address(1))
	p := w.open(t, w.owners[0], "other")
	p.active(t, good, goodNode, time.Minute)
	p.grants(t, goodNode)
	other := w.open(t, w.owners[0], "fleet")
	taken := node(fleet.Address(77))
	other.active(t, "shared."+zone, taken, time.Minute)
	other.grants(t, taken)

	far := "https://198.51.100.1:8443"
	for _, bad := range []struct {
		service, node string
		ttl           time.Duration
		rule, named   string
	}{
		{good, "https://10.0.0.1:8443/path", 0, "malformed", ""},
		{good, "gopher://10.0.0.1:70", 0, "malformed", ""},
		{good, "10.0.0.1:8443", 0, "malformed", ""},
		{good, "", 0, "malformed", ""},
		{"", goodNode, 0, "malformed", ""},
		{"not a name", goodNode, 0, "malformed", ""},
		{good, goodNode, time.Nanosecond, "ttl", "strict"},
		{good, goodNode, 24 * time.Hour, "ttl", "strict"},
		{"good.elsewhere.example", goodNode, 0, "no-rule", ""},
		{good, far, 0, "address", "strict"},
		{"shared." + zone, taken, 0, "taken", ""},
	} {
		p.active(t, bad.service, bad.node, bad.ttl)
		rule, reason := p.refuses(t, bad.node)
		if rule != bad.rule || !strings.Contains(reason, bad.named) || reason == "" {
			t.Errorf("%s at %q for %v is refused by %q, %q; want %q, which names %q", bad.service, bad.node, bad.ttl, rule, reason, bad.rule, bad.named)
		}
		if bad.service == good && bad.node == goodNode { // the one that stood is not registered any more
			p.active(t, good, goodNode, time.Minute)
			p.grants(t, goodNode)
		}
	}
	for i := 2; i <= strictQuota; i++ {
		p.active(t, good, node(fleet.Address(i)), time.Minute)
		p.grants(t, node(fleet.Address(i)))
	}
	over := node(fleet.Address(strictQuota + 1))
	p.active(t, good, over, time.Minute)
	if rule, reason := p.refuses(t, over); rule != "quota" || !strings.Contains(reason, "strict") {
		t.Errorf("one node more is refused by %q, %q", rule, reason)
	}
	p.clear(t, good, node(fleet.Address(strictQuota)))
	p.active(t, good, over, time.Minute)
	p.grants(t, over)

	// What stands does so in DNS.
	want := []string{fleet.Address(strictQuota + 1).String()}
	for i := 1; i < strictQuota; i++ {
		want = append(want, fleet.Address(i).String())
	}
	resolvedTo(t, w, good, short(want))
	if got := w.dns.Answer(t.Context(), "good.elsewhere.example", dns.TypeA); strings.HasPrefix(got, "NOERROR") {
		t.Errorf("what was refused resolves: %s", got)
	}
}

// TestRulesEdited takes a right away while a provider is connected: it is told, and what
// it has registered otherwise stays.
func TestRulesEdited(t *testing.T) {
	t.Parallel()
	w := start(t, options{rules: twoRules("one", "two")})
	p := w.open(t, w.owners[0], "fleet")
	for i, name := range []string{"a.one.", "a.two."} {
		p.active(t, name+zone, node(fleet.Address(i)), time.Minute)
		p.grants(t, node(fleet.Address(i)))
		resolvedTo(t, w, name+zone, short([]string{fleet.Address(i).String()}))
	}
	w.Put(t, "rules.yaml", twoRules("one", "three"))
	if rule, reason := p.refuses(t, node(fleet.Address(1))); rule != "no-rule" || reason == "" {
		t.Errorf("the node is refused by %q, %q", rule, reason)
	}
	resolvedTo(t, w, "a.two."+zone, "NXDOMAIN")
	p.active(t, "a.one."+zone, node(fleet.Address(0)), time.Minute)
	p.grants(t, node(fleet.Address(0)))
	p.active(t, "a.three."+zone, node(fleet.Address(1)), time.Minute)
	p.grants(t, node(fleet.Address(1)))
	resolvedTo(t, w, "a.one."+zone, short([]string{fleet.Address(0).String()}))
	resolvedTo(t, w, "a.three."+zone, short([]string{fleet.Address(1).String()}))
}
