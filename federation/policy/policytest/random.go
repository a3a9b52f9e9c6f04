package policytest

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/policy"
)

// Random makes rules, services and consumers of few words, so that many match.
type Random struct{ *rand.Rand }

// New returns a Random that makes the same for the same seed.
func New(seed uint64) Random { return Random{rand.New(rand.NewPCG(seed, 0))} } //nolint:gosec // not for secrets

// Rules returns up to limit valid rules.
func (r Random) Rules(limit int) []policy.Rule {
	rules := make([]policy.Rule, r.IntN(limit+1))
	for i := range rules {
		rules[i] = r.Rule()
	}
	return rules
}

// Rule returns a valid rule. Most have few conditions, and many change nothing.
func (r Random) Rule() policy.Rule {
	rule := policy.Rule{
		FQDNs: r.list(3, r.namePattern), Tags: r.list(3, r.tag), To: r.list(1, r.idPattern),
		Labels: r.labels("*"),
	}
	for len(rule.To) == 0 {
		rule.To = r.list(1, r.idPattern)
	}
	if r.one(3) {
		rule.Endpoints = r.list(1, r.tag)
	}
	if r.one(3) {
		rule.Strip = r.list(1, r.field)
	}
	if r.one(3) {
		rule.As = map[string]string{}
		for range 1 + r.IntN(2) {
			rule.As[r.zone()] = r.zone()
		}
	}
	return rule
}

// Service returns a valid service with the name.
func (r Random) Service(name string) *federation.Service {
	s := &federation.Service{
		Name: name, FQDN: must(federation.ParseFQDN(r.name())), Description: r.text(), Tags: r.list(2, r.tag),
		Labels: federation.Pairs(r.labels("")), SANs: r.list(3, r.id),
	}
	for i := range 1 + r.IntN(4) {
		s.Endpoints = append(s.Endpoints, federation.Endpoint{
			Address: must(federation.ParseAddress(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}).String())), Port: uint16(1 + r.IntN(3)), //nolint:gosec // in range
			Labels: r.list(0, r.tag), Description: r.text(),
		})
	}
	for i := range 1 + r.IntN(4) {
		in := federation.Instance{
			ID: strconv.Itoa(i), Protocol: federation.Protocol(1 + r.IntN(8)), //nolint:gosec // in range
			Metadata: federation.Pairs(r.labels("")), EndpointSelector: r.list(0, r.tag), Description: r.text(),
		}
		s.Instances = append(s.Instances, in)
	}
	return s
}

// IDs returns the identities of a consumer: none, a SPIFFE ID, host names, or both.
func (r Random) IDs() []federation.ID {
	var ids []federation.ID
	for _, id := range r.list(1, r.id) {
		ids = append(ids, must(federation.ParseID(id)))
	}
	return ids
}

// one reports true once in n times.
func (r Random) one(n int) bool { return r.IntN(n) == 0 }

// of returns one of the strings.
func (r Random) of(list ...string) string { return list[r.IntN(len(list))] }

// list returns up to three different values. It is empty more often the larger empty is.
func (r Random) list(empty int, value func() string) []string {
	var list []string
	for range max(0, r.IntN(4+empty)-empty) {
		if v := value(); !slices.Contains(list, v) {
			list = append(list, v)
		}
	}
	return list
}

func (r Random) text() string { return r.of("", "", "text") }

func (r Random) tag() string { return r.of("edge", "core", "west") }

// labels returns labels or metadata, with a value more.
func (r Random) labels(value string) map[string]string {
	m := map[string]string{}
	for range max(0, r.IntN(5)-2) {
		m[r.of("tier", "internal-id", "internal", "SNI")] = r.of("public", "private", value)
	}
	return m
}

func (r Random) field() string {
	key := r.of("tier", "internal-*", "*", "in*l", "*i*", "SNI")
	return r.of("description", "tags", "sans", "labels."+key, "metadata."+key)
}

// name returns the fqdn of a service, without its final dot.
func (r Random) name() string {
	labels := []string{r.of("example", "example", "example", "test")}
	for range r.IntN(4) {
		labels = append(labels, r.of("a", "pay", "xpay", "1"))
	}
	if r.one(10) {
		labels = append(labels, strings.Repeat(strings.Repeat("l", 55)+".", 4)+"x") // to be renamed beyond what a name may be
	}
	slices.Reverse(labels)
	return strings.Join(labels, ".")
}

// zone returns a zone of an alias.
func (r Random) zone() string {
	if r.one(6) {
		return "."
	}
	return r.name()
}

func (r Random) namePattern() string {
	if r.one(6) {
		return "*"
	}
	name := r.zone()
	if name == "." || r.one(3) {
		return r.name()
	}
	if len(name) > 200 {
		return name // nothing fits below it
	}
	return "*." + name
}

// id returns the identity of a consumer.
func (r Random) id() string {
	if r.one(3) {
		return r.of("dns.acme.example", "acme.example", "example", "a.dns.acme.example", "other.example")
	}
	return r.domain() + r.path()
}

func (r Random) domain() string { return "spiffe://" + r.of("acme.example", "acme.example", "example") }

func (r Random) path() string {
	var path strings.Builder
	for range 1 + r.IntN(3) {
		path.WriteString("/" + r.of("ns", "dns", "dns-a", "a.example", "aab"))
	}
	return path.String()
}

// idPattern returns an identity, often with stars in place of some of it.
func (r Random) idPattern() string {
	switch r.IntN(8) {
	case 0:
		return "*"
	case 1:
		return r.of("*.acme.example", "*.example", "*.dns.acme.example")
	case 2:
		return r.domain() + "/**"
	case 3:
		return r.domain() + r.path() + "/**"
	case 4:
		return r.id()
	}
	segments := strings.Split(strings.TrimPrefix(r.path(), "/"), "/")
	for i, s := range segments {
		if from := r.IntN(len(s) + 1); !r.one(3) {
			segments[i] = s[:from] + "*" + s[from+r.IntN(len(s)-from+1):]
		}
	}
	return r.domain() + "/" + strings.Join(segments, "/")
}

// must returns the value of a call that cannot fail.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
