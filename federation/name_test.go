package federation_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// of63 is a label of the longest length.
var of63 = strings.Repeat("a", 63)

// hostname returns a name of n characters, in labels of up to 63.
func hostname(n int) string {
	return strings.Repeat(of63+".", n/64) + strings.Repeat("a", n%64)
}

// nameTests are names with what ParseFQDN and ParseOrigin make of them.
var nameTests = []struct {
	s      string
	fqdn   string // "": refused
	err    error  // of ParseFQDN
	origin string // of ParseOrigin where it is another one
}{
	{s: "web.fed.example", fqdn: "web.fed.example."},
	{s: "web.fed.example.", fqdn: "web.fed.example."},
	{s: "WEB.Fed.eXample", fqdn: "web.fed.example."},
	{s: "web", fqdn: "web."},
	{s: "example.a1", fqdn: "example.a1."},
	{s: "A", fqdn: "a."},
	{s: "Z", fqdn: "z."},
	{s: "bAZaz09", fqdn: "bazaz09."},
	{s: "a_b-c.0.example", fqdn: "a_b-c.0.example."},
	{s: of63 + ".example", fqdn: of63 + ".example."},
	{s: hostname(253), fqdn: hostname(253) + "."},
	{s: hostname(253) + ".", fqdn: hostname(253) + "."},
	{s: "bücher.example", fqdn: "xn--bcher-kva.example."},
	{s: "BÜCHER.example", fqdn: "xn--bcher-kva.example."},
	{s: "XN--BCHER-KVA.example", fqdn: "xn--bcher-kva.example."},
	{s: "web。example", fqdn: "web.example."},               // an ideographic full stop
	{s: "web.example。", fqdn: "web.example."},              // at the end as well
	{s: "ab" + strings.Repeat("\u00ad", 507), fqdn: "ab."}, // soft hyphens, which go; 4*254 octets in all

	{s: "", err: federation.ErrNameEmpty},
	{s: ".", err: federation.ErrNameEmpty, origin: "."},
	{s: "..", err: federation.ErrLabelEmpty},
	{s: "。", err: federation.ErrNameEmpty},
	{s: ".example", err: federation.ErrLabelEmpty},
	{s: "a..example", err: federation.ErrLabelEmpty},
	{s: "example..", err: federation.ErrLabelEmpty},
	{s: hostname(254), err: federation.ErrNameTooLong},
	{s: strings.Repeat("ü", 4*254), err: federation.ErrNameTooLong},
	{s: "a" + of63 + ".example", err: federation.ErrLabelTooLong},
	{s: "-a.example", err: federation.ErrLabelHyphen},
	{s: "a-.example", err: federation.ErrLabelHyphen},
	{s: "a b.example", err: federation.ErrLabelCharacter},
	{s: "*.example", err: federation.ErrLabelCharacter},
	{s: `a\.b.example`, err: federation.ErrLabelCharacter},
	{s: "a/b.example", err: federation.ErrLabelCharacter},
	{s: "a\x00.example", err: federation.ErrLabelCharacter},
	{s: "`.example", err: federation.ErrLabelCharacter}, // before and behind the characters that are allowed
	{s: "{.example", err: federation.ErrLabelCharacter},
	{s: ":.example", err: federation.ErrLabelCharacter},
	{s: "a@.example", err: federation.ErrLabelCharacter},
	{s: "A[.example", err: federation.ErrLabelCharacter},
	{s: "abc" + strings.Repeat("\u00ad", 507), err: federation.ErrNameTooLong},
	{s: "a\xff.example", err: federation.ErrNameIDNA},
	{s: "a\x80.example", err: federation.ErrNameIDNA},
	{s: "xn--a.example", err: federation.ErrNameIDNA},
	{s: "a\u200bb\u0300\u0001.example", err: federation.ErrLabelCharacter},

	{s: "_tcp.example", err: federation.ErrLabelReserved, origin: "_tcp.example."},
	{s: "_" + of63[1:] + ".example", err: federation.ErrLabelReserved, origin: "_" + of63[1:] + ".example."},
	{s: "__tcp.example", err: federation.ErrLabelReserved},
	{s: "_.example", err: federation.ErrLabelReserved},
	{s: "192.0.2.1", err: federation.ErrNameNumeric, origin: "192.0.2.1."},
	{s: "example.1", err: federation.ErrNameNumeric, origin: "example.1."},
	{s: "1", err: federation.ErrNameNumeric, origin: "1."},
	{s: "0xa9fea9fe", err: federation.ErrNameNumeric, origin: "0xa9fea9fe."},
	{s: "0XA9FEA9FE.", err: federation.ErrNameNumeric, origin: "0xa9fea9fe."},
	{s: "0x7f.0x0.0x0.0x1", err: federation.ErrNameNumeric, origin: "0x7f.0x0.0x0.0x1."},
	{s: "0251.0376.0251.0xfe", err: federation.ErrNameNumeric, origin: "0251.0376.0251.0xfe."},
	{s: "example.0x", err: federation.ErrNameNumeric, origin: "example.0x."},
	{s: "0xfe.example", fqdn: "0xfe.example."},
	{s: "example.0xg", fqdn: "example.0xg."},
	{s: "example.x0", fqdn: "example.x0."},
	{s: "example.a0x1", fqdn: "example.a0x1."},
}

func TestParseFQDN(t *testing.T) {
	for _, tt := range nameTests {
		got, err := federation.ParseFQDN(tt.s)
		if got.String() != tt.fqdn || !errors.Is(err, tt.err) {
			t.Errorf("%q is %q with the error %v, expected %q, %v", tt.s, got, err, tt.fqdn, tt.err)
		}
		if got.IsZero() != (err != nil) {
			t.Errorf("of %q: IsZero is %v with the error %v", tt.s, got.IsZero(), err)
		}
	}
}

func TestParseOrigin(t *testing.T) {
	for _, tt := range nameTests {
		want := tt.fqdn + tt.origin
		got, err := federation.ParseOrigin(tt.s)
		if got.String() != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q with the error %v, expected %q", tt.s, got, err, want)
		}
	}
	if _, err := federation.ParseOrigin("_" + of63 + ".example"); !errors.Is(err, federation.ErrLabelTooLong) {
		t.Errorf("a label of 64 octets that begins with '_': %v", err)
	}
}

func TestParseLabel(t *testing.T) {
	for _, tt := range []struct {
		id, want string
		err      error
	}{
		{id: "v1", want: "v1"},
		{id: "V1.", want: "v1"},
		{id: "v1.canary", want: "v1.canary"},
		{id: "1", want: "1"},
		{id: "192.0.2.1", want: "192.0.2.1"},
		{id: "addr", want: "addr"},
		{id: "addr.v1", want: "addr.v1"},
		{id: "xaddr", want: "xaddr"},
		{id: "ü", want: "xn--tda"},
		{id: "", err: federation.ErrNameEmpty},
		{id: ".", err: federation.ErrNameEmpty},
		{id: "v1.addr", err: federation.ErrLabelAddr},
		{id: "v1.ADDR.", err: federation.ErrLabelAddr},
		{id: "v1..x", err: federation.ErrLabelEmpty},
		{id: "v 1", err: federation.ErrLabelCharacter},
		{id: "a/b", err: federation.ErrLabelCharacter},
		{id: "_v1", err: federation.ErrLabelReserved},
		{id: "v1-", err: federation.ErrLabelHyphen},
		{id: of63 + "a", err: federation.ErrLabelTooLong},
		{id: "\xff", err: federation.ErrNameIDNA},
	} {
		got, err := federation.ParseLabel(tt.id)
		if got.String() != tt.want || !errors.Is(err, tt.err) || got == (federation.Label{}) != (err != nil) {
			t.Errorf("%q is %q with the error %v, expected %q, %v", tt.id, got, err, tt.want, tt.err)
		}
	}
}

func TestWithin(t *testing.T) {
	for _, tt := range []struct {
		name, origin string
		want         bool
	}{
		{"fed.example", "fed.example", true},
		{"web.fed.example", "fed.example", true},
		{"a.web.fed.example", "fed.example", true},
		{"webfed.example", "fed.example", false},
		{"example", "fed.example", false},
		{"fed.example.org", "fed.example", false},
		{"web.fed.example", ".", true},
		{".", ".", true},
		{".", "example", false},
		{"", ".", false},
		{"", "example", false},
		{"example", "", false},
		{"", "", false},
	} {
		if got := origin(t, tt.name).Within(origin(t, tt.origin)); got != tt.want {
			t.Errorf("%q within %q: %v, expected %v", tt.name, tt.origin, got, tt.want)
		}
	}
}

func TestRename(t *testing.T) {
	for _, tt := range []struct {
		name, from, to, want string
		err                  error
	}{
		{name: "web.fed.example", from: "fed.example", to: "partner.example", want: "web.partner.example."},
		{name: "a.web.fed.example", from: "fed.example", to: "org", want: "a.web.org."},
		{name: "fed.example", from: "fed.example", to: "partner.example", want: "partner.example."},
		{name: "web.fed.example", from: "fed.example", to: ".", want: "web."},
		{name: "fed.example", from: "fed.example", to: ".", want: "."},
		{name: "web.fed.example", from: ".", to: "partner.example", want: "web.fed.example.partner.example."},
		{name: "web.fed.example", from: "other.example", to: "partner.example", want: "web.fed.example."},
		{name: "webfed.example", from: "fed.example", to: "partner.example", want: "webfed.example."},
		{name: "web.fed.example", from: "", to: "partner.example", want: "web.fed.example."},
		{name: "a.example", from: "example", to: hostname(251), want: "a." + hostname(251) + "."},
		{name: "a.example", from: "example", to: hostname(252), err: federation.ErrNameTooLong},
	} {
		got, err := origin(t, tt.name).Rename(origin(t, tt.from), origin(t, tt.to))
		if got.String() != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%q with %q as %q is %q with the error %v, expected %q, %v", tt.name, tt.from, tt.to, got, err, tt.want, tt.err)
		}
	}
}

// origin returns the name that s spells, and no name for "".
func origin(tb testing.TB, s string) federation.FQDN {
	tb.Helper()
	if s == "" {
		return federation.FQDN{}
	}
	return must.Get(federation.ParseOrigin(s))(tb)
}
