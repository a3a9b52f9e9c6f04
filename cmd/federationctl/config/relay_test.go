package config_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// relaying returns a configuration whose second catalog has the relay, which begins on
// line 9.
func relaying(relay string) []byte {
	return []byte(least + "- server_name: mesh-b.relay.example\n  relay: " + relay)
}

func TestRelay(t *testing.T) {
	c, problems := config.Parse(relaying(`
    addresses: ["b-0.example:8008", "[2001:db8::1]:8008", B-1.example.:8008]
    owner_ids: ["spiffe://mesh-b.example/hamlet"]
    tls_servername: Mesh-B.example.
    api: v1alpha1
    zones: [b.fed.example, b]
    settle: 10s
    max_catalog: 64MiB
    persist: b.catalog
  exports:
  - to: ["*"]
`))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	zones := make([]federation.FQDN, 2)
	for i, name := range []string{"b.fed.example", "b"} {
		var err error
		if zones[i], err = federation.ParseOrigin(name); err != nil {
			t.Fatal(err)
		}
	}
	want := []config.Source{{Name: "relay:spiffe://mesh-b.example/hamlet/mesh-b.example", Lifetime: source.NoLifetime, Relay: &config.PartialRelay{Relay: config.Relay{Owner: consumer.Owner{
		Name: "spiffe://mesh-b.example/hamlet/mesh-b.example", Addresses: []string{"b-0.example:8008", "[2001:db8::1]:8008", "b-1.example:8008"}, IDs: ids(t, "spiffe://mesh-b.example/hamlet"),
		ServerName: "mesh-b.example", Version: wire.V1Alpha1, Zones: zones, Settle: 10 * time.Second,
		MaxCatalog: 64 << 20,
	}, Persist: "/etc/owner/b.catalog"}}}}
	c.ResolvePaths("/etc/owner")
	got := c.Catalogs[1]
	if diff := cmp.Diff(want, got.Sources, equal); diff != "" {
		t.Errorf("unexpected sources (-want +got):\n%s", diff)
	}
	if got.Policy == nil {
		t.Error("the exports are not read")
	}

	c, problems = config.Parse(relaying(`{addresses: ["b.example:8008"]}`))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	want = []config.Source{{Name: "relay:b.example:8008", Lifetime: source.NoLifetime, Relay: &config.PartialRelay{Relay: config.Relay{Owner: consumer.Owner{
		Name: "b.example:8008", Addresses: []string{"b.example:8008"}, Version: wire.V1Alpha2, Settle: 5 * time.Second,
		MaxCatalog: 1 << 30,
	}}}}}
	if diff := cmp.Diff(want, c.Catalogs[1].Sources, equal); diff != "" {
		t.Errorf("unexpected defaults (-want +got):\n%s", diff)
	}
}

// A relay has the name of its owner, which needs neither its addresses nor its identities
// where it is given.
func TestRelayName(t *testing.T) {
	for relay, want := range map[string]string{
		`{addresses: ["b.example:8008", "c.example:8008"]}`:                                   "b.example:8008",
		`{addresses: ["b.example:8008"], tls_servername: shop}`:                               "b.example:8008/shop",
		`{addresses: ["b.example:8008"], owner_ids: ["spiffe://b/c"]}`:                        "spiffe://b/c",
		`{addresses: ["b.example:8008"], owner_ids: ["spiffe://b/c", d.example]}`:             "b.example:8008",
		`{addresses: ["b.example:8008"], owner_ids: [d.example], tls_servername: shop}`:       "d.example/shop",
		`{name: mesh-b, addresses: ["b.example:8008"], owner_ids: [d], tls_servername: shop}`: "mesh-b",
	} {
		c, problems := config.Parse(relaying(relay))
		if len(problems) > 0 {
			t.Fatalf("%s: %v", relay, problems)
		}
		got := c.Catalogs[1].Sources[0]
		if got.Relay.Name != want || got.Name != "relay:"+want {
			t.Errorf("%s has the name %s as source %s, want %s", relay, got.Relay.Name, got.Name, want)
		}
	}
	_, problems := config.Parse(relaying(`{name: "mesh b", addresses: ["b.example:8008"]}`))
	want := `catalogs[1].relay.name: "mesh b" is no name of an owner: it takes 1 to 255 characters of printable ASCII, without spaces, double quotes and backslashes`
	if len(problems) != 1 || problems[0].String() != want {
		t.Errorf("problems are %v, want %s", problems, want)
	}
}

func TestMistakesOfRelays(t *testing.T) {
	for name, tc := range map[string]struct {
		text     []byte
		problems []string
	}{
		"nothing in it": {relaying("{}"), []string{"9: catalogs[1].relay.addresses: required"}},
		"no mapping":    {relaying("b.example:8008"), []string{`9: catalogs[1].relay: must be a mapping, not "b.example:8008"`}},
		"all at once": {relaying(`
    address: b.example:8008
    addresses: ["b.example", ":8008", "b.example:0", "a b:1", "b.example:8008", "b.example.:8008"]
    owner_ids: []
    tls_servername: a b
    api: v2
    zones: []
    settle: 1ms
    max_catalog: 1
    persist: ""
    lifetime: 1h
`), []string{
			"10: catalogs[1].relay.address: there is no such key; those that there are: addresses, api, max_catalog, name, owner_ids, persist, settle, tls_servername, zones",
			`11: catalogs[1].relay.addresses[0]: "b.example" is not HOST:PORT or https://HOST:PORT`,
			`11: catalogs[1].relay.addresses[1]: ":8008" is not HOST:PORT or https://HOST:PORT`,
			`11: catalogs[1].relay.addresses[2]: "b.example:0" has no port from 1 to 65535`,
			`11: catalogs[1].relay.addresses[3]: "a b": address is neither an IP address nor a host name: label has a character other than a-z, 0-9, '-' and '_'`,
			`11: catalogs[1].relay.addresses[5]: "b.example:8008" is there twice, first on line 11`,
			"12: catalogs[1].relay.owner_ids: at least one is required; leave it out where the server name is that of the certificate",
			`13: catalogs[1].relay.tls_servername: "a b": address is neither an IP address nor a host name: label has a character other than a-z, 0-9, '-' and '_'`,
			`14: catalogs[1].relay.api: "v2" is not v1alpha2 or v1alpha1`,
			"15: catalogs[1].relay.zones: at least one is required; leave it out for all",
			`16: catalogs[1].relay.settle: "1ms" is not a duration of 100ms to 10m0s`,
			`17: catalogs[1].relay.max_catalog: "1" is not a size of 1MiB to 1TiB`,
			"18: catalogs[1].relay.persist: is empty",
			"19: catalogs[1].relay.lifetime: there is no such key; those that there are: addresses, api, max_catalog, name, owner_ids, persist, settle, tls_servername, zones",
		}},
		"beside sources": {relaying("{addresses: [\"b.example:8008\"]}\n  sources: [file: {path: a}]\n"), []string{
			"9: catalogs[1].relay: cannot be used with sources on line 10: a relay is the whole catalog; beside other sources it is one of them, in their list",
		}},
		"two of a catalog": {[]byte(least + "  - relay: {addresses: [\"b.example:8008\"], lifetime: 1m}\n  - relay: {addresses: [\"c.example:8008\"], persist: catalog.yaml}\n"), []string{
			"9: catalogs[0].sources[2]: is the second relay of the catalog, after that on line 8; consumers are told one path, so give it a catalog with a server_name of its own",
			"9: catalogs[0].sources[2].relay.persist: is a file of the configuration, and would be overwritten",
		}},
		"neither": {[]byte(least + "- server_name: a\n"), []string{"8: catalogs[1]: needs one of sources, relay: a relay is the whole catalog; beside other sources it is one of them, in their list"}},
		"a file that others have": {relaying(`{addresses: ["b.example:8008"], persist: ./b}
- server_name: c
  relay: {addresses: ["c.example:8008"], persist: b}
- server_name: d
  relay: {addresses: ["d.example:8008"], persist: ca.pem}
- server_name: e
  relay: {addresses: ["e.example:8008"], persist: ./catalog.yaml}
`), []string{
			"11: catalogs[2].relay.persist: is that of the relay on line 9 as well",
			"13: catalogs[3].relay.persist: is a file of the configuration, and would be overwritten",
			"15: catalogs[4].relay.persist: is a file of the configuration, and would be overwritten",
		}},
		"an agent": {[]byte(spiffe + "- server_name: b\n  relay: {addresses: [\"b.example:8008\"], owner_ids: [b.example]}\n"), []string{
			"9: catalogs[1].relay: needs a SPIFFE ID in owner_ids: where identities come from a SPIFFE agent the owner is known by that",
		}},
	} {
		_, problems := config.Parse(tc.text)
		if diff := cmp.Diff(tc.problems, shown(problems)); diff != "" {
			t.Errorf("%s: unexpected problems (-want +got):\n%s", name, diff)
		}
	}
}

func TestWarningsOfRelays(t *testing.T) {
	const warning = "9: catalogs[1].relay.addresses: has an IP address, for which the certificate of the owner must be valid; few are: name the owner in owner_ids, or its host in tls_servername"
	for text, want := range map[string][]string{
		`{addresses: ["b.example:8008"]}`:                                   nil,
		`{addresses: ["b.example:8008", "192.0.2.1:8008"]}`:                 {warning},
		`{addresses: ["[2001:db8::1]:8008"]}`:                               {warning},
		`{addresses: ["192.0.2.1:8008"], tls_servername: b.example}`:        nil,
		`{addresses: ["192.0.2.1:8008"], owner_ids: ["spiffe://b.test/b"]}`: nil,
	} {
		_, problems, warnings := config.Check(relaying(text))
		got := shown(warnings)
		if len(problems) > 0 || !slices.Equal(got, want) {
			t.Errorf("%s: warnings are %q, %v, expected %q", text, got, problems, want)
		}
	}
}
