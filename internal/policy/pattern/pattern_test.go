package pattern_test

import (
	"cmp"
	"strconv"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/limits"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/policy/policytest"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// hostname returns a name of n characters, in labels of up to 63.
func hostname(n int) string {
	return strings.Repeat(strings.Repeat("a", 63)+".", n/64) + strings.Repeat("a", n%64)
}

// parsed returns the value of a call that must not fail.
func parsed[T any](t testing.TB, parse func(string) (T, error), s string) T {
	t.Helper()
	return must.Get(parse(s))(t)
}

// checkError checks that an error says what was parsed, and why that is wrong.
func checkError(t *testing.T, err error, s, text string) {
	t.Helper()
	if err == nil {
		t.Errorf("%q is taken, want the error %q", s, text)
	} else if !strings.Contains(err.Error(), safetext.Quote(s)) || !strings.Contains(err.Error(), text) {
		t.Errorf("%q gives the error %q, want %q", s, err, text)
	}
}

var nameTests = []struct {
	s, want string // "": s
	err     string
}{
	{s: "*"},
	{s: "pay.example"},
	{s: "pay.example.", want: "pay.example"},
	{s: "*.pay.example"},
	{s: "*.Pay.EXAMPLE.", want: "*.pay.example"},
	{s: "example"},
	{s: "*.example"},
	{s: "*.bücher.example", want: "*.xn--bcher-kva.example"},
	{s: "XN--BCHER-KVA.example", want: "xn--bcher-kva.example"},
	{s: "*.a_b.example"},
	{s: "*." + hostname(251)},
	{s: hostname(253)},

	{s: "", err: "name is empty"},
	{s: ".", err: "the root is not the name of a service"},
	{s: "*.", err: `"*" is every name`},
	{s: "*..", err: "empty"},
	{s: "*.*", err: `"*" stands alone, or as the first label`},
	{s: "**", err: `"*" stands alone`},
	{s: "*.*.example", err: `"*" stands alone`},
	{s: "**.example", err: `"*" stands alone`},
	{s: "web.*.example", err: `"*" stands alone`},
	{s: "w*.example", err: `"*" stands alone`},
	{s: "*pay.example", err: `"*" stands alone`},
	{s: "pay.*", err: `"*" stands alone`},
	{s: "*.._x", err: "empty"},
	{s: "_tcp.example", err: "begins with '_'"},
	{s: "*._tcp.example", err: "begins with '_'"},
	{s: "a b.example", err: "character"},
	{s: "*.192.0.2.1", err: "last label is a number"},
	{s: "*." + hostname(252), err: "no name below it is short enough"},
	{s: hostname(254), err: "longer than 254"},
	{s: " *.example", err: `"*" stands alone`},
	{s: "＊.example", err: "character"}, // a full-width star, which is '*' once it is mapped
	{s: "*\x00", err: `"*" stands alone`},
}

func TestParseName(t *testing.T) {
	for _, tt := range nameTests {
		p, err := pattern.ParseName(tt.s)
		if tt.err != "" {
			checkError(t, err, tt.s, tt.err)
			continue
		}
		if want := cmp.Or(tt.want, tt.s); err != nil || p.String() != want {
			t.Errorf("%q is the pattern %q, %v", tt.s, p, err)
		}
	}
}

func TestNameMatches(t *testing.T) {
	for _, tt := range []struct {
		pattern, name string
		want          bool
	}{
		{"*", "example", true},
		{"*", "a.b.c.example", true},
		{"*.pay.example", "web.pay.example", true},
		{"*.pay.example", "a.b.web.pay.example", true},
		{"*.pay.example", "pay.example", false},
		{"*.pay.example", "xpay.example", false},
		{"*.pay.example", "example", false},
		{"*.pay.example", "a.pay.example.org", false},
		{"*.pay.example", "a.pay.xexample", false},
		{"pay.example", "pay.example", true},
		{"pay.example", "a.pay.example", false},
		{"pay.example", "xpay.example", false},
		{"*.bücher.example", "a.xn--bcher-kva.example", true},
		{"*." + hostname(251), "a." + hostname(251), true},
	} {
		p, name := parsed(t, pattern.ParseName, tt.pattern), parsed(t, federation.ParseFQDN, tt.name)
		if p.Matches(name) != tt.want || policytest.MatchesName(p.String(), name.String()) != tt.want {
			t.Errorf("%q matches %q: %t, want %t", p, name, p.Matches(name), tt.want)
		}
	}
	service := parsed(t, federation.ParseOrigin, "_http._tcp.pay.example") // no service has it, but a zone may
	if !parsed(t, pattern.ParseName, "*.pay.example").Matches(service) {
		t.Error("a name below pay.example is not matched, because it has underscores")
	}
}

var idTests = []struct {
	s, want string // "": s
	err     string
}{
	{s: "*"},
	{s: "spiffe://acme.example/ns/dns"},
	{s: "spiffe://acme.example/*"},
	{s: "spiffe://acme.example/**"},
	{s: "spiffe://acme.example/ns/*/sa/dns-*"},
	{s: "spiffe://acme.example/a*b*c/**"},
	{s: "spiffe://acme.example/.*"},
	{s: "dns.acme.example"},
	{s: "DNS.Acme.example.", want: "dns.acme.example"},
	{s: "*.Acme.example.", want: "*.acme.example"},
	{s: "*.example"},
	{s: "*." + hostname(251)},
	{s: "spiffe://acme.example/" + strings.Repeat("*a", 1013)},

	{s: "", err: "name is empty"},
	{s: ".", err: "name is empty"},
	{s: "*.", err: "name is empty"},
	{s: "spiffe://", err: "trust domain is missing"},
	{s: "spiffe:///ns", err: "trust domain is missing"},
	{s: "spiffe://*", err: "a trust domain is never a pattern"},
	{s: "spiffe://*/ns", err: "a trust domain is never a pattern"},
	{s: "spiffe://*.example/ns", err: "a trust domain is never a pattern"},
	{s: "spiffe://acme.example", err: "the path is missing: /**"},
	{s: "spiffe://acme.example/", err: "the path is missing: /**"},
	{s: "spiffe://Acme.example/ns", err: "trust domain characters"},
	{s: "spiffe://acme.example/ns/", err: "trailing slash"},
	{s: "spiffe://acme.example//ns", err: "empty segments"},
	{s: "spiffe://acme.example/../ns", err: "dot segments"},
	{s: "spiffe://acme.example/n s", err: "path segment characters"},
	{s: "spiffe://acme.example/n?", err: "path segment characters"},
	{s: "spiffe://acme.example/[a-z]", err: "path segment characters"},
	{s: "spiffe://acme.example/**/ns", err: `"**" is one whole segment, and the last`},
	{s: "spiffe://acme.example/ns**", err: `"**" is one whole segment, and the last`},
	{s: "spiffe://acme.example/***", err: `"**" is one whole segment, and the last`},
	{s: "spiffe://acme.example/**/", err: `"**" is one whole segment, and the last`},
	{s: "spiffe://acme.example/**/**", err: `"**" is one whole segment, and the last`},
	{s: "spiffe://acme.example/" + strings.Repeat("*a", 1014), err: "longer than 2048 bytes"},
	{s: "spiffe://" + strings.Repeat("d", 256) + "/*", err: "trust domain is longer than 255 bytes"},
	{s: "SPIFFE://acme.example/ns", err: "only the scheme spiffe://"},
	{s: "https://acme.example/*", err: "only the scheme spiffe://"},
	{s: "*://acme.example/ns", err: "only the scheme spiffe://"},
	{s: "**", err: `"**" is for the paths of SPIFFE IDs`},
	{s: "**.example", err: `"**" is for the paths of SPIFFE IDs`},
	{s: "*.*.example", err: `"*" stands alone, or as the first label`},
	{s: "d*.example", err: `"*" stands alone, or as the first label`},
	{s: "dns.*", err: `"*" stands alone, or as the first label`},
	{s: "192.0.2.1", err: "last label is a number"},
	{s: "*.2.1", err: "last label is a number"},
	{s: "*." + hostname(252), err: "no name below it"},
	{s: "dns.example:8008", err: "character"},
}

func TestParseID(t *testing.T) {
	for _, tt := range idTests {
		p, err := pattern.ParseID(tt.s)
		if tt.err != "" {
			checkError(t, err, tt.s, tt.err)
			continue
		}
		if want := cmp.Or(tt.want, tt.s); err != nil || p.String() != want {
			t.Errorf("%q is the pattern %q, %v", tt.s, p, err)
		}
	}
}

func TestIDMatches(t *testing.T) {
	for _, tt := range []struct {
		pattern, id string
		want        bool
	}{
		{"*", "spiffe://acme.example/ns", true},
		{"*", "dns.example", true},
		{"spiffe://acme.example/ns", "spiffe://acme.example/ns", true},
		{"spiffe://acme.example/ns", "spiffe://acme.example/ns/dns", false},
		{"spiffe://acme.example/ns", "spiffe://acme.example/nsx", false},
		{"spiffe://acme.example/ns", "spiffe://acme.example/NS", false},
		{"spiffe://acme.example/ns", "spiffe://b.acme.example/ns", false},
		{"spiffe://acme.example/*", "spiffe://acme.example/ns", true},
		{"spiffe://acme.example/*", "spiffe://acme.example/ns/dns", false},
		{"spiffe://acme.example/*/*", "spiffe://acme.example/ns", false},
		{"spiffe://acme.example/*/*", "spiffe://acme.example/ns/dns", true},
		{"spiffe://acme.example/**", "spiffe://acme.example/ns", true},
		{"spiffe://acme.example/**", "spiffe://acme.example/ns/dns/web", true},
		{"spiffe://acme.example/**", "spiffe://acme.example.org/ns", false},
		{"spiffe://acme.example/ns/**", "spiffe://acme.example/ns", false},
		{"spiffe://acme.example/ns/**", "spiffe://acme.example/nsx/a", false},
		{"spiffe://acme.example/ns/**", "spiffe://acme.example/ns/a", true},
		{"spiffe://acme.example/n*", "spiffe://acme.example/n", true},
		{"spiffe://acme.example/*s", "spiffe://acme.example/s", true},
		{"spiffe://acme.example/*s", "spiffe://acme.example/sx", false},
		{"spiffe://acme.example/a*b", "spiffe://acme.example/ab", true},
		{"spiffe://acme.example/a*b", "spiffe://acme.example/a", false},
		{"spiffe://acme.example/a*ba", "spiffe://acme.example/aba", true},
		{"spiffe://acme.example/ab*ba", "spiffe://acme.example/aba", false},
		{"spiffe://acme.example/a*b*c", "spiffe://acme.example/axbxbxc", true},
		{"spiffe://acme.example/a*b*c", "spiffe://acme.example/axc", false},
		{"spiffe://acme.example/*aab*", "spiffe://acme.example/xaaabx", true},
		{"spiffe://acme.example/*aab", "spiffe://acme.example/aabaab", true},
		{"spiffe://acme.example/*", "acme.example", false},
		{"dns.acme.example", "dns.acme.example", true},
		{"dns.acme.example", "spiffe://acme.example/dns.acme.example", false},
		{"*.acme.example", "dns.acme.example", true},
		{"*.acme.example", "a.dns.acme.example", false},
		{"*.acme.example", "acme.example", false},
		{"*.acme.example", "dns.xacme.example", false},
		// What is behind the first dot of a SPIFFE ID is not the parent of a host name.
		{"*.example", "spiffe://acme/ns.example", false},
		{"*.example", "acme.example", true},
	} {
		p, id := parsed(t, pattern.ParseID, tt.pattern), parsed(t, federation.ParseID, tt.id)
		if p.Matches(id) != tt.want || policytest.MatchesID(tt.pattern, tt.id) != tt.want {
			t.Errorf("%q matches %q: %t, want %t", p, id, p.Matches(id), tt.want)
		}
	}
	if !parsed(t, pattern.ParseID, "*").Matches(federation.ID{}) || parsed(t, pattern.ParseID, "*.example").Matches(federation.ID{}) {
		t.Error("the zero ID is not matched by * alone")
	}
}

func TestIDCovers(t *testing.T) {
	const domain = "spiffe://acme.example"
	for _, tt := range []struct {
		p, q string
		want bool
	}{
		{"*", "*", true},
		{"*", domain + "/**", true},
		{"*", "*.example", true},
		{domain + "/**", "*", false},
		{"*.example", "*", false},
		{domain + "/**", domain + "/**", true},
		{domain + "/**", domain + "/*", true},
		{domain + "/**", domain + "/a/b/**", true},
		{domain + "/a/**", domain + "/**", false},
		{domain + "/*/**", domain + "/**", false},
		{domain + "/*", domain + "/**", false},
		{domain + "/*", domain + "/a*", true},
		{domain + "/a*", domain + "/*", false},
		{domain + "/a*", domain + "/a*b", true},
		{domain + "/a*b", domain + "/a*", false},
		{domain + "/a*b", domain + "/ab", true},
		{domain + "/*a*", domain + "/*ba*", true},
		{domain + "/a*b", domain + "/a*b*b", true},
		{domain + "/*/dns", domain + "/a*/dns", true},
		{"*.example", "*.example", true},
		{"*.example", "a.example", true},
		{"*.example", "*.a.example", false},
		{"a.example", "*.example", false},
		{domain + "/a", "*.example", false},
	} {
		p, q := parsed(t, pattern.ParseID, tt.p), parsed(t, pattern.ParseID, tt.q)
		if p.Covers(q) != tt.want {
			t.Errorf("%q covers %q: %t, want %t", p, q, p.Covers(q), tt.want)
		}
	}
}

func TestNameCovers(t *testing.T) {
	for _, tt := range []struct {
		p, q string
		want bool
	}{
		{"*", "*", true},
		{"*", "*.example", true},
		{"*", "example", true},
		{"*.example", "*", false},
		{"*.example", "*.example", true},
		{"*.example", "*.pay.example", true},
		{"*.pay.example", "*.example", false},
		{"*.example", "example", false},
		{"*.example", "pay.example", true},
		{"pay.example", "pay.example", true},
		{"pay.example", "*.pay.example", false},
		{"*.pay.example", "*.xpay.example", false},
	} {
		p, q := parsed(t, pattern.ParseName, tt.p), parsed(t, pattern.ParseName, tt.q)
		if p.Covers(q) != tt.want {
			t.Errorf("%q covers %q: %t, want %t", p, q, p.Covers(q), tt.want)
		}
	}
}

func TestLabel(t *testing.T) {
	labels := federation.Pairs(map[string]string{"a": "", "tier": "public", "tier=": "x", "z": "*"})
	for _, tt := range []struct {
		s    string
		want bool
		err  string
	}{
		{s: "tier=public", want: true},
		{s: "tier=Public"},
		{s: "tier=*", want: true},
		{s: "tier==x"}, // the value is "=x"
		{s: "tier="},
		{s: "a=", want: true},
		{s: "a=*", want: true},
		{s: "b=*"},
		{s: "b="},
		{s: "z=*", want: true},
		{s: "tier=p*"}, // no pattern
		{s: strings.Repeat("k", limits.KeyBytes) + "=" + strings.Repeat("v", limits.ValueBytes)},

		{s: "=public", err: "the key is missing"},
		{s: "*=public", err: "a key is never a pattern"},
		{s: strings.Repeat("k", limits.KeyBytes+1) + "=", err: "513 bytes"},
		{s: "k=" + strings.Repeat("v", limits.ValueBytes+1), err: "16385 bytes"},
		{s: "k=\xff", err: "UTF-8"},
	} {
		key, value, _ := strings.Cut(tt.s, "=")
		p, err := pattern.NewLabel(key, value)
		if tt.err != "" {
			checkError(t, err, tt.s, tt.err)
			continue
		}
		if err != nil || p.String() != tt.s || p.Matches(labels) != tt.want {
			t.Errorf("%q is the pattern %q, %v, and matches: %t, want %t", tt.s, p, err, p.Matches(labels), tt.want)
		}
	}
	if p, err := pattern.NewLabel("tier=", "x"); err != nil || !p.Matches(labels) {
		t.Errorf("a key with '=' gives %v, %v", p, err)
	}
	if (pattern.Label{}).Matches([]federation.Pair{{}}) {
		t.Error("the zero value matches")
	}
}

func TestKey(t *testing.T) {
	for _, tt := range []struct {
		s, key string
		want   bool
		err    string
	}{
		{s: "internal", key: "internal", want: true},
		{s: "internal", key: "internal-id"},
		{s: "internal", key: "Internal"},
		{s: "internal-*", key: "internal-", want: true},
		{s: "internal-*", key: "internal-a.b/c=d", want: true},
		{s: "*", key: "", want: true},
		{s: "a*", key: ""},
		{s: "*-id", key: "internal-id", want: true},
		{s: "*-id", key: "internal-idx"},
		{s: "*.example/*", key: "a.example/b", want: true},
		{s: strings.Repeat("k", limits.KeyBytes)},

		{s: "", err: "the key is missing"},
		{s: "a**", err: `says no more than "*"`},
		{s: strings.Repeat("k", limits.KeyBytes+1), err: "513 bytes"},
		{s: "\xff", err: "UTF-8"},
	} {
		p, err := pattern.ParseKey(tt.s)
		if tt.err != "" {
			checkError(t, err, tt.s, tt.err)
			continue
		}
		if err != nil || p.String() != tt.s || p.Matches(tt.key) != tt.want {
			t.Errorf("%q is the pattern %q, %v, and matches %q: %t, want %t", tt.s, p, err, tt.key, p.Matches(tt.key), tt.want)
		}
	}
	if (pattern.Key{}).Matches("") {
		t.Error("the zero value matches")
	}
}

func TestZeroMatchesNothing(t *testing.T) {
	var (
		name pattern.Name
		id   pattern.ID
	)
	if name.Matches(federation.FQDN{}) || name.Matches(parsed(t, federation.ParseFQDN, "example")) || name.String() != "" {
		t.Error("the zero Name matches")
	}
	if id.Matches(federation.ID{}) || id.Matches(parsed(t, federation.ParseID, "example")) || id.String() != "" {
		t.Error("the zero ID matches")
	}
}

// TestErrorsOfTheNames checks that errors say the rule of package federation.
func TestErrorsOfTheNames(t *testing.T) {
	_, nameErr := pattern.ParseName("*.-a.example")
	_, idErr := pattern.ParseID("*.-a.example")
	const rule = "label begins or ends with '-'"
	if nameErr == nil || idErr == nil || !strings.Contains(nameErr.Error(), rule) || !strings.Contains(idErr.Error(), rule) {
		t.Errorf("the errors are %v and %v", nameErr, idErr)
	}
}

// BenchmarkStars matches the text that takes longest where stars are tried one after
// the other, in several lengths: the time is to grow as the length does.
func BenchmarkStars(b *testing.B) {
	for _, n := range []int{100, 500} {
		id := parsed(b, federation.ParseID, "spiffe://a/"+strings.Repeat("a", 2*n))
		p := parsed(b, pattern.ParseID, "spiffe://a/"+strings.Repeat("*a", n)+"*b")
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if p.Matches(id) {
					b.Fatal("it matches")
				}
			}
		})
	}
}
