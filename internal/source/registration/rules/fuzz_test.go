package rules_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// naive is a file of rules, read by the decoder of the YAML package and evaluated with
// regular expressions, rule by rule.
type naive struct {
	Rules []struct {
		Name, Quota                    string
		Providers, Services, Addresses []string
		TTL                            struct{ Min, Max, Default string }
	}

	compiled expressions
}

// judge returns what Rules.Judge is to return, and the word of the refusal.
func (n *naive) judge(q rules.Request) (rules.Grant, string) {
	for _, r := range n.Rules {
		for _, id := range q.IDs {
			named, allowed := false, false
			for _, p := range r.Providers {
				captured, ok := n.compiled.capture(p, id.String())
				if ok && anyName(r.Services, captured, q.Service) {
					named = true
					allowed = allowed || reaches(r.Addresses, captured, q)
				}
			}
			if !named {
				continue
			}
			least, most := duration(r.TTL.Min, 5*time.Second), duration(r.TTL.Max, 5*time.Minute)
			ttl := q.TTL
			switch {
			case !allowed:
				return rules.Grant{}, rules.Address
			case ttl == 0:
				ttl = duration(r.TTL.Default, max(least, min(most, 30*time.Second)))
			case ttl < least || ttl > most:
				return rules.Grant{}, rules.TTL
			}
			quota := 100
			if r.Quota != "" {
				_, _ = fmt.Sscan(r.Quota, &quota)
			}
			return rules.Grant{Provider: id, Rule: r.Name, TTL: ttl, Quota: quota}, ""
		}
	}
	return rules.Grant{}, rules.NoRule
}

func duration(text string, absent time.Duration) time.Duration {
	if d, err := time.ParseDuration(text); err == nil {
		return d
	}
	return absent
}

var braces = regexp.MustCompile(`\{([^{}]*)\}`)

// expressions are those that were compiled, which takes most of the time.
type expressions map[string]*regexp.Regexp

func (e expressions) of(p string) *regexp.Regexp {
	if e[p] == nil {
		e[p] = regexp.MustCompile("^(?:" + p + ")$")
	}
	return e[p]
}

// capture returns what a pattern captures of an identity, and whether it matches.
func (e expressions) capture(p, id string) (map[string]string, bool) {
	if p == "*" {
		return nil, id != ""
	}
	inside := "[^/]*"
	if !strings.HasPrefix(p, "spiffe://") {
		inside = "[^./]+"
		first, rest, _ := strings.Cut(p, ".")
		if !strings.ContainsAny(first, "*{") {
			first, rest = "", p
		}
		name, err := federation.ParseFQDN(rest)
		if err != nil {
			return nil, false
		}
		p = strings.TrimSuffix(strings.TrimPrefix(first+"."+name.String(), "."), ".")
	}
	expression := regexp.QuoteMeta(p)
	expression = strings.ReplaceAll(expression, `/\*\*`, "(?:/[^/]+)+")
	expression = strings.ReplaceAll(expression, `\*`, inside)
	expression = strings.NewReplacer(`\{`, "(?P<", `\}`, ">"+inside+")").Replace(expression)
	match := e.of(expression)
	found := match.FindStringSubmatch(id)
	if found == nil {
		return nil, false
	}
	captured := map[string]string{}
	for i, name := range match.SubexpNames() {
		captured[name] = found[i]
	}
	return captured, true
}

var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// anyName reports whether one of the patterns matches the name.
func anyName(patterns []string, captured map[string]string, name federation.FQDN) bool {
	for _, p := range patterns {
		ok := true
		p = braces.ReplaceAllStringFunc(p, func(s string) string {
			text := captured[strings.Trim(s, "{}")]
			ok = ok && label.MatchString(text)
			return text
		})
		if names, err := pattern.ParseName(p); ok && err == nil && names.Matches(name) {
			return true
		}
	}
	return false
}

// reaches reports whether one of the entries is for the address.
func reaches(entries []string, captured map[string]string, q rules.Request) bool {
	if len(entries) == 0 {
		entries = []string{"peer"}
	}
	ip, isIP := q.URI.Address.IP()
	host, isHost := q.URI.Address.Host()
	for _, entry := range entries {
		if one, err := netip.ParseAddr(entry); err == nil {
			entry = netip.PrefixFrom(one, one.BitLen()).String()
		}
		addresses, err := netip.ParsePrefix(entry)
		switch {
		case entry == "peer":
			if isIP && ip.String() == q.Peer.Unmap().WithZone("").String() {
				return true
			}
		case err == nil:
			if isIP && addresses.Contains(ip) {
				return true
			}
		case isHost && anyName([]string{entry}, captured, host):
			return true
		}
	}
	return false
}

// compare checks what is said of a request.
func compare(t *testing.T, text string, r *rules.Rules, n *naive, q rules.Request) (granted bool) {
	t.Helper()
	want, word := n.judge(q)
	got, refusal := r.Judge(q)
	if refusal != nil && (refusal.Reason == "" || len(refusal.Reason) > 4096) {
		t.Errorf("the reason of %v", refusal)
	}
	if got != want || (refusal == nil) != (word == "") || refusal != nil && refusal.Rule != word {
		t.Errorf("%s\n%v %v %v %v %v:\n got %+v, %v\nwant %+v, %s", text, q.IDs, q.Peer, q.Service, q.URI.Address, q.TTL, got, refusal, want, word)
	}
	if refusal == nil {
		// What is granted stands, as long as the rules do.
		stored := &node.Node{Key: node.Key{Service: q.Service, URI: q.URI}, TTL: got.TTL, Provider: got.Provider}
		if err := r.CheckStored(stored); err != nil {
			t.Errorf("%s\n%v is granted, and does not stand: %v", text, q, err)
		}
	}
	return refusal == nil
}

// FuzzRules compares what rules say with a naive evaluation: no identity registers a
// name, an address, a ttl or a number beyond its rule.
func FuzzRules(f *testing.F) {
	f.Add(file, web, "192.0.2.1", name, "10.0.0.1", int64(20e9))
	f.Add(file, "a.fleet.example "+web, "::ffff:192.0.2.1", "app-a.fleet.fed.example", "a.fleet.example", int64(0))
	f.Add(strings.ReplaceAll(file, "/sa/{account}", "/x-{account}.y/**"), "spiffe://west.example/ns/shop/x-web.y/z", "::1", name, "::1", int64(1))
	f.Add("rules: [{name: a, providers: ['*'], services: ['*'], addresses: ['*', 0.0.0.0/0], quota: 1}]", "a", "", "a.b", "a.b", int64(5e9))
	f.Fuzz(func(t *testing.T, text, ids, peer, service, address string, ttl int64) {
		r, problems := rules.Parse([]byte(text))
		if (r == nil) != (len(problems) > 0) {
			t.Fatalf("%v, %v", r, problems)
		}
		n := naive{compiled: expressions{}}
		if r == nil || yaml.Unmarshal([]byte(text), &n) != nil {
			return
		}
		q := rules.Request{TTL: time.Duration(ttl)}
		for id := range strings.FieldsSeq(ids) {
			if id, err := federation.ParseID(id); err == nil {
				q.IDs = append(q.IDs, id)
			}
		}
		q.Peer, _ = netip.ParseAddr(peer)
		var wrong, wrongAddress error
		q.Service, wrong = federation.ParseFQDN(service)
		q.URI.Address, wrongAddress = federation.ParseAddress(address)
		if wrong == nil && wrongAddress == nil {
			compare(t, text, r, &n, q)
		}
	})
}

// chooser makes random rules and requests of few words, so that many match.
type chooser struct{ *rand.Rand }

func (c chooser) of(words ...string) string { return words[c.IntN(len(words))] }

// list returns 1 to 3 different entries, as YAML.
func (c chooser) list(entry func() string) string {
	var entries []string
	for range 1 + c.IntN(3) {
		if e := "'" + entry() + "'"; !slices.Contains(entries, e) {
			entries = append(entries, e)
		}
	}
	return "[" + strings.Join(entries, ", ") + "]"
}

// rule returns what a rule allows to whom. Its captures are {x} and {y}, {x}, or none.
func (c chooser) rule() (text string) {
	var (
		domain  = "spiffe://" + c.of("a", "a", "b") + "/"
		first   = []string{"{x}", "{x}", "{x}-b", "a-{x}"}
		second  = []string{"", "", "/y", "/*", "/**"}
		hosts   = []string{"{x}.example", "{x}.b.example"}
		labels  = []string{"", "*.", "a."}
		ends    = []string{"{x}.", "a-{x}.", "{x}-b.", "a."}
		address = "{x}.example"
	)
	switch c.IntN(3) {
	case 0:
		second, hosts, labels = []string{"/{y}", "/a{y}", "/{y}/**"}, nil, append(labels, "{y}.", "{y}.", "*.{y}.")
	case 1:
		first, ends, address = []string{"*", "a", "*-*", "b*"}, []string{"a.", "b.", "a-b."}, "*"
		hosts = []string{"*.example", "*", "a.example", "*.b.example"}
	}
	providers := func() string {
		if hosts != nil && c.IntN(3) == 0 {
			return c.of(hosts...)
		}
		return domain + c.of(first...) + c.of(second...)
	}
	services := func() string { return c.of(labels...) + c.of(ends...) + c.of("example", "b.example") }
	text = fmt.Sprintf("  providers: %s\n  services: %s\n", c.list(providers), c.list(services))
	if c.IntN(2) == 0 {
		text += "  addresses: " + c.list(func() string { return c.of(address, c.address()) }) + "\n"
	}
	return text
}

func (c chooser) address() string {
	return c.of("peer", "10.0.0.0/8", "10.1.0.0/16", "10.1.0.1", "::/0", "*.example", "a.example")
}

func (c chooser) file() string {
	text := "rules:\n"
	for i := range 1 + c.IntN(4) {
		text += fmt.Sprintf("- name: r%d\n%s", i, c.rule())
		if c.IntN(2) == 0 {
			text += fmt.Sprintf("  ttl: {min: %s, max: %s}\n  quota: %d\n", c.of("1s", "10s", "40s"), c.of("40s", "1m"), 1+c.IntN(3))
		}
	}
	return text
}

func (c chooser) word() string {
	return c.of("a", "a", "b", "b", "a-b", "a-b", "A", "a.b", "a_b", "-a")
}

func (c chooser) request(t *testing.T) rules.Request {
	var ids []string
	for range 1 + c.IntN(2) {
		id := "spiffe://" + c.of("a", "a", "b") + "/" + c.word()
		if c.IntN(2) == 0 {
			id += "/" + c.word()
		}
		if c.IntN(4) == 0 {
			id = c.of("a.example", "a-b.example", "a_b.example", "a.b.example", "b.b.example", "example")
		}
		ids = append(ids, id)
	}
	service := c.of("", "", "", "a.", "b.") + c.of("a", "a", "b", "a-b", "a-a", "b-b") + c.of(".example", ".b.example")
	address := c.of("10.0.0.1", "10.0.0.1", "10.1.0.1", "10.1.0.1", "10.1.2.3", "192.0.2.1", "::1", "a.example", "b.example", "x.b.example")
	peer := c.of("", "10.0.0.1", "10.0.0.1", "::ffff:10.1.0.1", "192.0.2.1", "::1%lo")
	ttl := time.Duration(max(0, c.IntN(14)-7)) * 10 * time.Second
	return request{strings.Join(ids, " "), peer, service, address, ttl}.parsed(t)
}

// TestRandomRules does as FuzzRules with rules of which many match.
func TestRandomRules(t *testing.T) {
	c := chooser{rand.New(rand.NewPCG(1, 2))}
	granted, compiled := 0, expressions{}
	for range 1000 {
		text := c.file()
		r := parsed(t, text)
		n := naive{compiled: compiled}
		must.Do(t, yaml.Unmarshal([]byte(text), &n))
		for range 20 {
			if compare(t, text, r, &n, c.request(t)) {
				granted++
			}
		}
		if t.Failed() {
			return
		}
	}
	if granted < 150 {
		t.Errorf("only %d requests are granted", granted)
	}
}

// TestOneNameForEach checks that two identities never get one name where each capture
// of the pattern stands in the name.
func TestOneNameForEach(t *testing.T) {
	r := parsed(t, "rules: [{name: a, providers: ['spiffe://a/{x}/b-{y}'], services: ['{y}.{x}.example', '*.y-{y}.x-{x}.example'], addresses: [10.0.0.0/8]}]")
	c := chooser{rand.New(rand.NewPCG(3, 4))}
	holders := map[federation.FQDN]federation.ID{}
	for range 20_000 {
		q := request{"spiffe://a/" + c.word() + "/b-" + c.word(), "", c.of("", "a.") + c.of("", "y-") + c.of("a", "b", "a-b", "b-a") + "." + c.of("", "x-") + c.of("a", "b", "a-b") + ".example", "10.0.0.1", 0}.parsed(t)
		if _, err := r.Judge(q); err != nil {
			continue
		}
		if holder, held := holders[q.Service]; held && holder != q.IDs[0] {
			t.Fatalf("%v and %v get %v", holder, q.IDs[0], q.Service)
		}
		holders[q.Service] = q.IDs[0]
	}
	if len(holders) < 15 {
		t.Errorf("only %d names were granted", len(holders))
	}
}
