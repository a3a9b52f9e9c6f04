package mtls_test

import (
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

func TestParseOwnerName(t *testing.T) {
	for _, good := range []string{"a", "mesh-a", "owner.example:8008", "spiffe://mesh-a.example/hamlet", "a,b/c", "~!", strings.Repeat("a", 255)} {
		if got, err := mtls.ParseOwnerName(good); err != nil || got != good {
			t.Errorf("%q is %q, %v", good, got, err)
		}
	}
	for _, bad := range []string{"", " ", "mesh a", "a\t", "a\n", "\x00", "\x7f", "café", "\xff", `a"`, `a\b`, strings.Repeat("a", 256)} {
		if got, err := mtls.ParseOwnerName(bad); err == nil || got != "" || !strings.Contains(err.Error(), "is no name of an owner: it takes 1 to 255 characters") {
			t.Errorf("%q is %q, %v", bad, got, err)
		}
	}
}

// An owner that is given no name has its only identity for one, or its first address.
func TestOwnerName(t *testing.T) {
	identity := func(s string) federation.ID {
		return must.Get(federation.ParseID(s))(t)
	}
	a, b := identity("spiffe://mesh-a.example/hamlet"), identity("b.example")
	for _, tc := range []struct {
		addresses  []string
		serverName string
		ids        []federation.ID
		want       string
	}{
		{[]string{"a:1"}, "", nil, "a:1"},
		{[]string{"a:1", "b:1"}, "", nil, "a:1"},
		{[]string{"a:1"}, "shop", nil, "a:1/shop"},
		{[]string{"a:1"}, "", []federation.ID{a}, "spiffe://mesh-a.example/hamlet"},
		{[]string{"a:1"}, "shop", []federation.ID{b}, "b.example/shop"},
		{[]string{"a:1"}, "", []federation.ID{a, b}, "a:1"},
	} {
		c := mtls.Consumer{ServerName: tc.serverName, IDs: tc.ids}
		if got := c.OwnerName(tc.addresses); got != tc.want {
			t.Errorf("%v with %q and %v is %s, want %s", tc.addresses, tc.serverName, tc.ids, got, tc.want)
		}
	}
}
