package policytest

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/policy"
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
		FQDNs: r.distinctValues(3, r.namePattern), Tags: r.distinctValues(3, r.anyTag), To: r.distinctValues(1, r.idPattern),
		Labels: r.anyLabels("*"),
	}
	for len(rule.To) == 0 {
		rule.To = r.distinctValues(1, r.idPattern)
	}
	if r.oneIn(3) {
		rule.Endpoints = r.distinctValues(1, r.anyTag)
	}
	if r.oneIn(3) {
		rule.Strip = r.distinctValues(1, r.anyField)
	}
	if r.oneIn(3) {
		rule.As = map[string]string{}
		for range 1 + r.IntN(2) {
			rule.As[r.anyZone()] = r.anyZone()
		}
	}
	return rule
}

// Service returns a valid service with the name.
func (r Random) Service(name string) *federation.Service {
	s := &federation.Service{
		Name: name, FQDN: must(federation.ParseFQDN(r.anyName())), Description: r.anyText(), Tags: r.distinctValues(2, r.anyTag),
		Labels: federation.Pairs(r.anyLabels("")), SANs: r.distinctValues(3, r.anyID),
	}
	for i := range 1 + r.IntN(4) {
		s.Endpoints = append(s.Endpoints, federation.Endpoint{
			Address: must(federation.ParseAddress(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}).String())), Port: uint16(1 + r.IntN(3)), //nolint:gosec // in range
			Labels: r.distinctValues(0, r.anyTag), Description: r.anyText(),
		})
	}
	for i := range 1 + r.IntN(4) {
		in := federation.Instance{
			ID: strconv.Itoa(i), Protocol: federation.Protocol(1 + r.IntN(8)), //nolint:gosec // in range
			Metadata: federation.Pairs(r.anyLabels("")), EndpointSelector: r.distinctValues(0, r.anyTag), Description: r.anyText(),
		}
		s.Instances = append(s.Instances, in)
	}
	return s
}

// IDs returns the identities of a consumer: none, a SPIFFE ID, host names, or both.
func (r Random) IDs() []federation.ID {
	var ids []federation.ID
	for _, id := range r.distinctValues(1, r.anyID) {
		ids = append(ids, must(federation.ParseID(id)))
	}
	return ids
}

// oneIn reports true once in n times.
func (r Random) oneIn(n int) bool { return r.IntN(n) == 0 }

// pickOne returns one of the strings.
func (r Random) pickOne(list ...string) string { return list[r.IntN(len(list))] }

// distinctValues returns up to three different values. It is empty more often the larger empty is.
func (r Random) distinctValues(empty int, value func() string) []string {
	var list []string
	for range max(0, r.IntN(4+empty)-empty) {
		if v := value(); !slices.Contains(list, v) {
			list = append(list, v)
		}
	}
	return list
}

func (r Random) anyText() string { return r.pickOne("", "", "text") }

func (r Random) anyTag() string { return r.pickOne("edge", "core", "west") }

// anyLabels returns labels or metadata, with a value more.
func (r Random) anyLabels(value string) map[string]string {
	m := map[string]string{}
	for range max(0, r.IntN(5)-2) {
		m[r.pickOne("tier", "internal-id", "internal", "SNI")] = r.pickOne("public", "private", value)
	}
	return m
}

func (r Random) anyField() string {
	key := r.pickOne("tier", "internal-*", "*", "in*l", "*i*", "SNI")
	return r.pickOne("description", "tags", "sans", "labels."+key, "metadata."+key)
}

// anyName returns the fqdn of a service, without its final dot.
func (r Random) anyName() string {
	labels := []string{r.pickOne("example", "example", "example", "test")}
	for range r.IntN(4) {
		labels = append(labels, r.pickOne("a", "pay", "xpay", "1"))
	}
	if r.oneIn(10) {
		labels = append(labels, strings.Repeat(strings.Repeat("l", 55)+".", 4)+"x") // to be renamed beyond what a name may be
	}
	slices.Reverse(labels)
	return strings.Join(labels, ".")
}

// anyZone returns a zone of an alias.
func (r Random) anyZone() string {
	if r.oneIn(6) {
		return "."
	}
	return r.anyName()
}

func (r Random) namePattern() string {
	if r.oneIn(6) {
		return "*"
	}
	name := r.anyZone()
	if name == "." || r.oneIn(3) {
		return r.anyName()
	}
	if len(name) > 200 {
		return name // nothing fits below it
	}
	return "*." + name
}

// anyID returns the identity of a consumer.
func (r Random) anyID() string {
	if r.oneIn(3) {
		return r.pickOne("dns.acme.example", "acme.example", "example", "a.dns.acme.example", "other.example")
	}
	return r.anyDomain() + r.anyPath()
}

func (r Random) anyDomain() string {
	return "spiffe://" + r.pickOne("acme.example", "acme.example", "example")
}

func (r Random) anyPath() string {
	var path strings.Builder
	for range 1 + r.IntN(3) {
		path.WriteString("/" + r.pickOne("ns", "dns", "dns-a", "a.example", "aab"))
	}
	return path.String()
}

// idPattern returns an identity, often with stars in place of some of it.
func (r Random) idPattern() string {
	switch r.IntN(8) {
	case 0:
		return "*"
	case 1:
		return r.pickOne("*.acme.example", "*.example", "*.dns.acme.example")
	case 2:
		return r.anyDomain() + "/**"
	case 3:
		return r.anyDomain() + r.anyPath() + "/**"
	case 4:
		return r.anyID()
	}
	segments := strings.Split(strings.TrimPrefix(r.anyPath(), "/"), "/")
	for i, s := range segments {
		if from := r.IntN(len(s) + 1); !r.oneIn(3) {
			segments[i] = s[:from] + "*" + s[from+r.IntN(len(s)-from+1):]
		}
	}
	return r.anyDomain() + "/" + strings.Join(segments, "/")
}

// must returns the value of a call that cannot fail.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
