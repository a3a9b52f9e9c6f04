package mtls_test

import (
	"testing"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

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
