package rules_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/problem"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const file = `
rules:
- name: pods
  providers: ["spiffe://west.example/ns/{namespace}/sa/{account}"]
  services: ["{account}.{namespace}.west.fed.example", "*.shared.example"]
  addresses: [peer, 10.0.0.0/8, "2001:db8::/32", "*.hosts.example"]
  ttl: {min: 10s, max: 1m, default: 20s}
  quota: 3
- name: fleet
  providers: ["{host}.fleet.example"]
  services: ["app-{host}.fleet.fed.example", "*.{host}.sub.fed.example"]
  addresses: ["{host}.fleet.example", 192.0.2.7]
- name: all
  providers: ["*"]
  services: [common.fed.example]
- name: late
  providers: ["spiffe://west.example/**"]
  services: ["*"]
  addresses: [0.0.0.0/0]
`

func parsed(t testing.TB, text string) *rules.Rules {
	t.Helper()
	r, problems := rules.Parse([]byte(text))
	if problems != nil {
		t.Fatal(problems)
	}
	return r
}

// request is a Request in words.
type request struct {
	ids, peer, service, address string
	ttl                         time.Duration
}

func (q request) parsed(t testing.TB) rules.Request {
	t.Helper()
	r := rules.Request{TTL: q.ttl, Service: must.Value(federation.ParseFQDN(q.service))}
	for id := range strings.FieldsSeq(q.ids) {
		r.IDs = append(r.IDs, must.Value(federation.ParseID(id)))
	}
	if q.peer != "" {
		r.Peer = must.Value(netip.ParseAddr(q.peer))
	}
	r.URI = node.URI{Address: must.Value(federation.ParseAddress(q.address)), Port: 80}
	return r
}

const (
	web  = "spiffe://west.example/ns/shop/sa/web"
	name = "web.shop.west.fed.example"
)

func TestJudge(t *testing.T) {
	r := parsed(t, file)
	pods := rules.Grant{Rule: "pods", TTL: 20 * time.Second, Quota: 3}
	fleet := rules.Grant{Rule: "fleet", TTL: 30 * time.Second, Quota: 100}
	all := rules.Grant{Rule: "all", TTL: 30 * time.Second, Quota: 100}
	late := rules.Grant{Rule: "late", TTL: 30 * time.Second, Quota: 100}
	for _, tt := range []struct {
		request

		provider string
		want     rules.Grant
	}{
		{request{web, "", name, "10.1.2.3", 0}, web, pods},
		{request{web, "192.0.2.1", name, "192.0.2.1", 20 * time.Second}, web, pods},
		{request{web, "::ffff:192.0.2.1", name, "192.0.2.1", 20 * time.Second}, web, pods},
		{request{web, "2001:db9::1", name, "2001:db9::1", 20 * time.Second}, web, pods},
		{request{web, "", name, "2001:db8::9", 20 * time.Second}, web, pods},
		{request{web, "", name, "a.b.hosts.example", 20 * time.Second}, web, pods},
		{request{web, "", "a.b.shared.example", "10.1.2.3", 20 * time.Second}, web, pods},
		{request{"other.example " + web, "", name, "10.1.2.3", 0}, web, pods},
		{request{"a.fleet.example", "", "app-a.fleet.fed.example", "a.fleet.example", 0}, "a.fleet.example", fleet},
		{request{"a.fleet.example", "", "x.y.a.sub.fed.example", "192.0.2.7", 0}, "a.fleet.example", fleet},
		{request{"b.fleet.example a.fleet.example", "", "app-a.fleet.fed.example", "a.fleet.example", 0}, "a.fleet.example", fleet},
		{request{"any.example", "192.0.2.1", "common.fed.example", "192.0.2.1", 0}, "any.example", all},
		// What is in upper case names no service of the rule, so that a later one decides.
		{request{"spiffe://west.example/ns/shop/sa/Web", "", name, "10.1.2.3", 0}, "spiffe://west.example/ns/shop/sa/Web", late},
		{request{"spiffe://west.example/ns/shop/sa/a.b", "", "b.a.shop.west.fed.example", "10.1.2.3", 0}, "spiffe://west.example/ns/shop/sa/a.b", late},
	} {
		tt.want.Provider = must.Value(federation.ParseID(tt.provider))
		got, refusal := r.Judge(tt.parsed(t))
		if refusal != nil || got != tt.want {
			t.Errorf("%v: %+v, %v; want %+v", tt.request, got, refusal, tt.want)
		}
	}
}

func TestJudgeRefuses(t *testing.T) {
	r := parsed(t, file)
	for _, tt := range []struct {
		request

		word, reason, detail string
	}{
		{request{web, "192.0.2.1", name, "192.0.2.2", 0}, rules.Address, "rule pods does not allow the address 192.0.2.2; it allows that of the connection (192.0.2.1)", "it allows 10.0.0.0/8, 2001:db8::/32, *.hosts.example"},
		{request{web, "", name, "192.0.2.2", 0}, rules.Address, "rule pods does not allow the address 192.0.2.2; it allows that of the connection", "it allows 10.0.0.0/8, 2001:db8::/32, *.hosts.example"},
		{request{web, "", name, "hosts.example", 0}, rules.Address, "rule pods does not allow the address hosts.example.; it allows that of the connection", "it allows 10.0.0.0/8, 2001:db8::/32, *.hosts.example"},
		{request{web, "", name, "10.0.0.1", time.Second}, rules.TTL, "rule pods allows a ttl from 10s to 1m0s, not 1s", ""},
		{request{web, "", name, "10.0.0.1", -time.Second}, rules.TTL, "rule pods allows a ttl from 10s to 1m0s, not -1s", ""},
		{request{web, "", name, "10.0.0.1", time.Minute + 1}, rules.TTL, "rule pods allows a ttl from 10s to 1m0s, not 1m0.000000001s", ""},
		{request{"a.fleet.example", "192.0.2.1", "app-a.fleet.fed.example", "192.0.2.1", 0}, rules.Address, "rule fleet does not allow the address 192.0.2.1", "it allows 192.0.2.7/32, {host}.fleet.example"},
		{request{"a.fleet.example b.fleet.example", "", "app-a.fleet.fed.example", "b.fleet.example", 0}, rules.Address, "rule fleet does not allow the address b.fleet.example.", "it allows 192.0.2.7/32, {host}.fleet.example"},
		{request{"a.fleet.example", "", "app-b.fleet.fed.example", "192.0.2.7", 0}, rules.NoRule, `no rule lets "a.fleet.example" register app-b.fleet.fed.example`, `rule fleet allows app-a.fleet.fed.example, *.a.sub.fed.example; rule all allows common.fed.example`},
		{request{"a.fleet.example", "", "a.sub.fed.example", "192.0.2.7", 0}, rules.NoRule, `no rule lets "a.fleet.example" register a.sub.fed.example`, `rule fleet allows app-a.fleet.fed.example, *.a.sub.fed.example; rule all allows common.fed.example`},
		{request{"a_b.fleet.example", "", "app-a_b.fleet.fed.example", "192.0.2.7", 0}, rules.NoRule, `no rule lets "a_b.fleet.example" register app-a_b.fleet.fed.example`, `rule fleet: {host} is "a_b" of "a_b.fleet.example", which is not a label of a name: it must be a-z, 0-9 and '-', 63 at most; rule all allows common.fed.example`},
		{request{"", "", name, "10.0.0.1", 0}, rules.NoRule, "the certificate has neither a SPIFFE ID nor a DNS name", ""},
	} {
		got, refusal := r.Judge(tt.parsed(t))
		if got != (rules.Grant{}) || refusal == nil || *refusal != (rules.Refusal{Rule: tt.word, Reason: tt.reason, Detail: tt.detail}) {
			t.Errorf("%v: %+v\n got %v\nwant %s: %s; %s", tt.request, got, refusal, tt.word, tt.reason, tt.detail)
		}
	}
	many := strings.Builder{}
	many.WriteString("rules:\n")
	for i := range 5 {
		fmt.Fprintf(&many, "- {name: r%d, providers: [a.example], services: [s%d.example]}\n", i, i)
	}
	_, err := parsed(t, many.String()).Judge(request{"a.example", "", name, "10.0.0.1", 0}.parsed(t))
	if want := `no rule lets "a.example" register ` + name + "; rule r0 allows s0.example; rule r1 allows s1.example; rule r2 allows s2.example; and more rules do not allow it"; err == nil || err.Rule != rules.NoRule || err.FullReason() != want {
		t.Errorf("of many rules: %v, want %s", err, want)
	}
	_, err = parsed(t, "rules: []").Judge(request{web, "", name, "10.0.0.1", 0}.parsed(t))
	if want := "no rule names " + safetext.Quote(web); err == nil || err.Rule != rules.NoRule || err.FullReason() != want {
		t.Errorf("without rules: %v", err)
	}
	whole := request{web, "", name, "10.0.0.1", 0}.parsed(t)
	for _, q := range []rules.Request{{}, {IDs: whole.IDs, Service: whole.Service}, {IDs: whole.IDs, URI: whole.URI}} {
		if _, err := r.Judge(q); err == nil || err.Rule != rules.Malformed {
			t.Errorf("%v: %v", q, err)
		}
	}
	if _, err := new(rules.Rules).Judge(request{web, "", name, "10.0.0.1", 0}.parsed(t)); err == nil {
		t.Error("the zero value grants something")
	}
}

// TestManyRules has many rules, each for another
// identity and service.
func TestManyRules(t *testing.T) {
	const count = 200
	var text strings.Builder
	text.WriteString("rules:\n")
	for i := range count {
		provider := []string{"spiffe://west.example/ns/team-%d/sa/{x}", "{x}.team-%d.example", "spiffe://west.example/team-%d"}[i%3]
		fmt.Fprintf(&text, "- {name: r%d, providers: ['"+provider+"'], services: [s%d.example, '*.s%d.example'], addresses: [10.0.0.0/8]}\n", i, i, i, i)
	}
	r := parsed(t, text.String())
	for i := range count {
		id := fmt.Sprintf([]string{"spiffe://west.example/ns/team-%d/sa/web", "web.team-%d.example", "spiffe://west.example/team-%d"}[i%3], i)
		for _, service := range []string{"s%d.example", "a.s%d.example"} {
			if grant, err := r.Judge(request{id, "", fmt.Sprintf(service, i), "10.0.0.1", 0}.parsed(t)); err != nil || grant.Rule != fmt.Sprint("r", i) {
				t.Errorf("%s: %+v, %v", id, grant, err)
			}
			if grant, err := r.Judge(request{id, "", fmt.Sprintf(service, (i+1)%count), "10.0.0.1", 0}.parsed(t)); err == nil {
				t.Errorf("%s gets a service of another: %+v", id, grant)
			}
		}
	}
}

// TestBounds has rules at the limits of what a file may say.
func TestBounds(t *testing.T) {
	long := strings.Repeat("n", 63)
	r := parsed(t, "rules: [{name: "+long+", providers: [a.example], services: [a.example], addresses: [10.0.0.1], ttl: {min: 1s, max: 1h, default: 1h}, quota: 1000000}]")
	want := rules.Grant{Provider: must.Value(federation.ParseID("a.example")), Rule: long, TTL: time.Hour, Quota: 1_000_000}
	for ttl, granted := range map[time.Duration]time.Duration{0: time.Hour, time.Second: time.Second, time.Hour: time.Hour} {
		want.TTL = granted
		if got, err := r.Judge(request{"a.example", "", "a.example", "10.0.0.1", ttl}.parsed(t)); err != nil || got != want {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

func TestStands(t *testing.T) {
	r := parsed(t, file)
	stored := func(service, address string, ttl time.Duration) *node.Node {
		q := request{web, "", service, address, ttl}.parsed(t)
		return &node.Node{Key: node.Key{Service: q.Service, URI: q.URI}, Provider: q.IDs[0], TTL: ttl, Rule: "pods"}
	}
	if err := r.CheckStored(stored(name, "198.51.100.1", time.Minute)); err != nil {
		t.Error("an address that may have been that of the connection:", err)
	}
	for word, n := range map[string]*node.Node{
		rules.Address: stored(name, "web.example", time.Minute),
		rules.TTL:     stored(name, "10.0.0.1", time.Hour),
	} {
		if err := r.CheckStored(n); err == nil || err.Rule != word {
			t.Errorf("%v, want %s", err, word)
		}
	}
	if err := parsed(t, "rules: []").CheckStored(stored(name, "10.0.0.1", time.Minute)); err == nil {
		t.Error("a node stands without rules")
	}
}

func TestParseProblems(t *testing.T) {
	rule := func(fields string) string { return "rules:\n- name: a\n" + fields }
	const providers, services = "  providers: [a.example]\n", "  services: [a.fed.example]\n"
	for name, tt := range map[string]struct {
		text string
		want []string
	}{
		"empty":            {"", []string{"0: the file is empty"}},
		"null":             {"~", []string{"0: the file is empty"}},
		"two documents":    {"rules: []\n---\nrules: []", []string{"2: a second document begins here; rules are one document"}},
		"syntax":           {"rules: [", []string{"1: did not find expected node content"}},
		"too large":        {strings.Repeat("#", rules.MaxBytes+1), []string{"0: the file has more than 1048576 bytes"}},
		"nothing":          {"{}", []string{"1: rules: required"}},
		"unknown":          {"rules: []\nrulez: []", []string{"2: rulez: there is no such key; those that there are: rules"}},
		"twice":            {"rules: []\nrules: []", []string{"2: rules: is there twice, first on line 1"}},
		"no mapping":       {"rules:\n- a\n- [a]\n-", []string{`2: rules[0]: must be a mapping, not "a"`, "3: rules[1]: must be a mapping", "4: rules[2]: has no value, must be a mapping"}},
		"alias":            {"rules: [&a {name: b, providers: [a.example], services: [a.fed.example]}, *a]", []string{"1: rules[1]: aliases (*a) are not resolved here; write the value again"}},
		"required":         {rule(""), []string{"2: rules[0].providers: required", "2: rules[0].services: required"}},
		"names nothing":    {rule("  providers: []\n  services: []\n  addresses: []"), []string{"3: rules[0].providers: at least one is required", "4: rules[0].services: at least one is required", "5: rules[0].addresses: at least one is required; leave it out for that of the connection"}},
		"name":             {"rules:\n- name: a b\n" + providers + services, []string{`2: rules[0].name: "a b" is not a name of letters, digits, '-', '.' and '_', 63 at most`}},
		"no name":          {"rules:\n- name: ''\n" + providers + services, []string{`2: rules[0].name: "" is not a name of letters, digits, '-', '.' and '_', 63 at most`}},
		"long name":        {"rules:\n- name: " + strings.Repeat("n", 64) + "\n" + providers + services, []string{`2: rules[0].name: "` + strings.Repeat("n", 64) + `" is not a name of letters, digits, '-', '.' and '_', 63 at most`}},
		"thrice":           {rule("  providers:\n  - a.example\n  - a.example\n  - a.example\n" + services), []string{`5: rules[0].providers[1]: "a.example" is there twice, first on line 4`, `6: rules[0].providers[2]: "a.example" is there twice, first on line 4`}},
		"same name":        {rule(providers+services) + "- name: a\n" + providers + services, []string{`5: rules[1].name: "a" is there twice, first on line 2`}},
		"quota":            {rule(providers + services + "  quota: 0"), []string{`5: rules[0].quota: "0" is not a whole number from 1 to 1000000`}},
		"ttl":              {rule(providers + services + "  ttl: {min: 500ms, max: 2h, default: 30d, x: 1}"), []string{`5: rules[0].ttl.min: "500ms" is not a duration of 1s to 1h0m0s`, `5: rules[0].ttl.max: "2h" is not a duration of 1s to 1h0m0s`, `5: rules[0].ttl.default: "30d" is not a duration of 1s to 1h0m0s`, "5: rules[0].ttl.x: there is no such key; those that there are: default, max, min"}},
		"ttl bounds":       {rule(providers + services + "  ttl: {min: 10m}"), []string{"5: rules[0].ttl: min is 10m0s, and max is 5m0s"}},
		"ttl default":      {rule(providers + services + "  ttl: {default: 6m}"), []string{"5: rules[0].ttl: default is 6m0s, and not from 5s to 5m0s"}},
		"entry twice":      {rule("  providers: [a.example, a.example]\n" + services), []string{`3: rules[0].providers[1]: "a.example" is there twice, first on line 3`}},
		"too many":         {rule(providers + "  services: [" + strings.Repeat("a.example,", 257) + "]"), []string{"4: rules[0].services: has 257 entries, more than 256"}},
		"too many rules":   {"rules: [" + strings.Repeat("{},", 1001) + "]", []string{"1: rules: has 1001 entries, more than 1000"}},
		"CIDR":             {rule(providers + services + "  addresses: [10.0.0.1/8, 10.0.0.0/33, '::ffff:10.0.0.0/104', 'fe80::1%eth0', '::ffff:10.0.0.1', 'a:1']"), []string{`5: rules[0].addresses[0]: "10.0.0.1/8" has host bits set; its prefix is 10.0.0.0/8`, `5: rules[0].addresses[1]: "10.0.0.0/33" is not a CIDR such as 127.0.0.0/8 or fe80::/10`, `5: rules[0].addresses[2]: "::ffff:10.0.0.0/104" is not a CIDR such as 127.0.0.0/8 or fe80::/10`, "5: rules[0].addresses[3]: address has a zone identifier", `5: rules[0].addresses[4]: "::ffff:10.0.0.1/128" is not a CIDR such as 127.0.0.0/8 or fe80::/10`, `5: rules[0].addresses[5]: neither peer, nor a CIDR, nor a pattern of host names: name pattern "a:1": label has a character other than a-z, 0-9, '-' and '_'`}},
		"capture missing":  {rule("  providers: ['spiffe://a/{x}', 'spiffe://a/b']\n  services: ['{x}.a.example', '{y}.{x}.a.example']\n  addresses: ['{z}.example']"), []string{`4: rules[0].services: "{x}.a.example" has {x}, which the pattern "spiffe://a/b" of providers does not capture`, `4: rules[0].services: "{y}.{x}.a.example" has {y}, which the pattern "spiffe://a/{x}" of providers does not capture`, `5: rules[0].addresses: "{z}.example" has {z}, which the pattern "spiffe://a/{x}" of providers does not capture`}},
		"capture twice":    {rule("  providers: ['spiffe://a/{x}/{x}']\n" + services), []string{`3: rules[0].providers[0]: identity pattern "spiffe://a/{x}/{x}": {x} is captured twice`}},
		"mistakes at once": {"rules:\n- name: a\n  quota: x\n- nome: b\n" + providers + services, []string{`2: rules[0].providers: required`, `2: rules[0].services: required`, `3: rules[0].quota: "x" is not a whole number from 1 to 1000000`, "4: rules[1].nome: there is no such key; those that there are: addresses, name, providers, quota, services, ttl", "4: rules[1].name: required"}},
	} {
		t.Run(name, func(t *testing.T) {
			r, problems := rules.Parse([]byte(tt.text))
			var got []string
			for _, p := range problems {
				got = append(got, lineOf(p))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || r != nil {
				t.Errorf("%v, -want +got:\n%s", r, diff)
			}
		})
	}
}

// lineOf returns a problem with its line.
func lineOf(p problem.Problem) string { return fmt.Sprintf("%d: %s", p.Line, p) }

// TestDeepPaths has patterns with many segments.
func TestDeepPaths(t *testing.T) {
	deep := "spiffe://a/" + strings.Repeat("s/", 20)
	r := parsed(t, strings.Replace("rules: [{name: a, providers: ['P{x}', 'Py/{x}'], services: ['{x}.example'], addresses: [10.0.0.0/8]}]", "P", deep, 2))
	for id, want := range map[string]bool{deep + "web": true, deep + "y/web": true, deep + "z/web": false, "spiffe://a/s/web": false} {
		if _, err := r.Judge(request{id, "", "web.example", "10.0.0.1", 0}.parsed(t)); (err == nil) != want {
			t.Errorf("%s: %v", id, err)
		}
	}
}
