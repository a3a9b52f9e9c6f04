package corefile

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/plugin/pkg/fall"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/status/page"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

var compareValues = cmpopts.EquateComparable(federation.FQDN{}, federation.ID{}, netip.Prefix{}, pattern.Name{})

// around is a server block for fed.example.
var around = Server{Keys: []string{"dns://fed.example.:53", "tls://fed.example.:853"}}

// parse parses blocks in a server block.
func parse(input string, server Server) ([]Block, error) {
	blocks, _, err := Parse(caddyfile.NewDispenser("Testfile", strings.NewReader(input)), server)
	return blocks, err
}

func zones(t testing.TB, names ...string) []federation.FQDN {
	t.Helper()
	var zones []federation.FQDN
	for _, name := range names {
		zone := must.Get(federation.ParseOrigin(name))(t)
		zones = append(zones, zone)
	}
	return zones
}

func id(t *testing.T, s string) federation.ID {
	t.Helper()
	return must.Get(federation.ParseID(s))(t)
}

func name(t *testing.T, s string) pattern.Name {
	t.Helper()
	return must.Get(pattern.ParseName(s))(t)
}

func TestParse(t *testing.T) {
	// minimal returns the block with only the required properties, changed.
	minimal := func(change func(*Block)) Block {
		b := Block{
			Position: "Testfile:1",
			Owner: agent.OwnerConfig{
				Identity:     mtls.Origin{Files: mtls.Files{Cert: "cert.pem", Key: "key.pem", CA: "ca.pem"}},
				Subscription: consumer.Subscription{Addresses: []string{"owner.example:8008"}, Version: wire.V1Alpha2},
				Rules:        catalog.Rules{Retention: 24 * time.Hour, Settle: 5 * time.Second, MaxCatalog: 1073741824},
			},
			Zone: zone.Owner{Origins: zones(t, "fed.example."), TTL: 30, NegativeTTL: 5, Sharing: zone.Sharing{Min: 1}},
		}
		change(&b)
		b.Owner.Name = b.Owner.Consumer.OwnerName(b.Owner.Subscription.Addresses)
		return b
	}
	const required = "owner owner.example:8008\ntls cert.pem key.pem ca.pem\n"
	block := func(properties string) string { return "federation {\n" + required + properties + "\n}" }

	for _, tc := range []struct {
		name  string
		input string
		want  []Block
	}{
		{"defaults", block(""), []Block{minimal(func(*Block) {})}},
		{
			"everything",
			`federation Fed.Example mesh.example. {
				name Mesh-A/1
				owner https://Owner.Example.:8008 192.0.2.1:8009 [2001:DB8:0::1]:08010
				tls cert.pem /etc/key.pem certs/../ca.pem
				tls_servername Gateway.Example.
				owner_id spiffe://example.org/owner Owner.Example.
				api v1alpha1
				ttl 3600
				negative_ttl 1
				retention 90m
				settle 100ms
				persist state/catalog.db
				rename corp.internal fed.example
				rename a.corp.internal a.mesh.example
				max_catalog 1TiB
				allow_addresses 127.0.0.0/8 fe80::/10
				allow_addresses 169.254.0.0/16
				import_names *.Pay.example. web.example
				import_names *
				share web.fed.example *.Shop.fed.example.
				share *.mesh.example
				tier 0 zone/eu-1a
				tier 2
				min 3
				fallthrough Fed.Example
				status [::]:09154 status.pem ../key.pem /etc/readers.pem
			}`,
			[]Block{{
				Position: "Testfile:1",
				Owner: agent.OwnerConfig{
					Name:     "Mesh-A/1",
					Identity: mtls.Origin{Files: mtls.Files{Cert: "cert.pem", Key: "/etc/key.pem", CA: "ca.pem"}},
					Consumer: mtls.Consumer{
						ServerName: "gateway.example",
						IDs:        []federation.ID{id(t, "spiffe://example.org/owner"), id(t, "owner.example")},
					},
					Subscription: consumer.Subscription{
						Addresses: []string{"owner.example:8008", "192.0.2.1:8009", "[2001:db8::1]:8010"},
						Version:   wire.V1Alpha1,
						File:      "state/catalog.db",
					},
					Rules: catalog.Rules{Retention: 90 * time.Minute, Settle: 100 * time.Millisecond, MaxCatalog: 1099511627776},
					Policy: wire.AddressPolicy{AllowAddresses: []netip.Prefix{
						netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("169.254.0.0/16"),
					}},
				},
				Zone: zone.Owner{
					Origins: zones(t, "fed.example.", "mesh.example."),
					Renames: []zone.Rename{
						{From: zones(t, "a.corp.internal.")[0], To: zones(t, "a.mesh.example.")[0]},
						{From: zones(t, "corp.internal.")[0], To: zones(t, "fed.example.")[0]},
					},
					TTL:         3600,
					NegativeTTL: 1,
					Import:      pattern.NameFilter{name(t, "*.pay.example"), name(t, "web.example"), name(t, "*")},
					Sharing: zone.Sharing{
						Names: []pattern.Name{name(t, "web.fed.example"), name(t, "*.shop.fed.example"), name(t, "*.mesh.example")},
						Tiers: []zone.TierRule{{N: 0, Label: "zone/eu-1a"}, {N: 2}},
						Min:   3,
					},
				},
				Fall: fall.F{Zones: []string{"fed.example."}},
				Status: page.Config{
					Address: "[::]:9154", Files: mtls.Files{Cert: "status.pem", Key: "../key.pem", CA: "/etc/readers.pem"},
				},
			}},
		},
		{
			"several blocks in Corefile order",
			"federation b.example {\n" + required + "}\nfederation a.example {\n" + required + "}",
			[]Block{
				minimal(func(b *Block) { b.Zone.Origins = zones(t, "b.example.") }),
				minimal(func(b *Block) { b.Position, b.Zone.Origins = "Testfile:5", zones(t, "a.example.") }),
			},
		},
		{
			"two owners in one zone",
			block("") + "\nfederation {\nowner other.example:8008\ntls cert.pem key.pem ca.pem\n}",
			[]Block{
				minimal(func(*Block) {}),
				minimal(func(b *Block) {
					b.Position, b.Owner.Subscription.Addresses = "Testfile:6", []string{"other.example:8008"}
				}),
			},
		},
		{
			"two owners behind one address",
			block("tls_servername a.example") + "\n" + block("tls_servername b.example"),
			[]Block{
				minimal(func(b *Block) { b.Owner.Consumer.ServerName = "a.example" }),
				minimal(func(b *Block) { b.Position, b.Owner.Consumer.ServerName = "Testfile:6", "b.example" }),
			},
		},
		{
			"the root zone",
			"federation . {\n" + required + "}",
			[]Block{minimal(func(b *Block) { b.Zone.Origins = zones(t, ".") })},
		},
		{"retention forever", block("retention forever"), []Block{minimal(func(b *Block) { b.Owner.Rules.Retention = catalog.Forever })}},
		{"retention bare seconds", block("retention 7200"), []Block{minimal(func(b *Block) { b.Owner.Rules.Retention = 2 * time.Hour })}},
		{
			"spiffe", "federation {\nowner owner.example:8008\nspiffe unix:///agent.sock b.example c.example\nowner_id owner.example spiffe://b.example/owner\n}",
			[]Block{minimal(func(b *Block) {
				b.Owner.Identity = mtls.Origin{SPIFFE: mtls.SPIFFE{Socket: "unix:///agent.sock", TrustDomains: []string{"b.example", "c.example"}}}
				b.Owner.Consumer.IDs = []federation.ID{id(t, "owner.example"), id(t, "spiffe://b.example/owner")}
			})},
		},
		{"max_catalog GiB", block("max_catalog 4GiB"), []Block{minimal(func(b *Block) { b.Owner.Rules.MaxCatalog = 4294967296 })}},
		{"fallthrough everything", block("fallthrough"), []Block{minimal(func(b *Block) { b.Fall = fall.Root })}},
		{"status", block("status LocalHost.:9154"), []Block{minimal(func(b *Block) { b.Status.Address = "localhost:9154" })}},
		{
			"status everywhere", block("status :9154 a b c"),
			[]Block{minimal(func(b *Block) {
				b.Status = page.Config{Address: ":9154", Files: mtls.Files{Cert: "a", Key: "b", CA: "c"}}
			})},
		},
		{
			"one status for several blocks",
			block("status localhost:9154") + "\n" + block("status LOCALHOST:9154\ntls_servername b.example") + "\n" + block("tls_servername c.example"),
			[]Block{
				minimal(func(b *Block) { b.Status.Address = "localhost:9154" }),
				minimal(func(b *Block) {
					b.Position, b.Status.Address, b.Owner.Consumer.ServerName = "Testfile:6", "localhost:9154", "b.example"
				}),
				minimal(func(b *Block) { b.Position, b.Owner.Consumer.ServerName = "Testfile:12", "c.example" }),
			},
		},
		{
			"rename everything", block("rename . old.fed.example"),
			[]Block{minimal(func(b *Block) {
				b.Zone.Renames = []zone.Rename{{From: zones(t, ".")[0], To: zones(t, "old.fed.example")[0]}}
			})},
		},
		{
			"an internationalized zone", "federation bücher.example {\n" + required + "}",
			[]Block{minimal(func(b *Block) { b.Zone.Origins = zones(t, "xn--bcher-kva.example.") })},
		},
		{"no block at all", "", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := must.Get(parse(tc.input, around))(t)
			if diff := cmp.Diff(tc.want, got, compareValues); diff != "" {
				t.Errorf("blocks (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseRoot(t *testing.T) {
	input := "federation {\nowner owner.example:8008\ntls cert.pem /etc/key.pem ../ca.pem\npersist catalog.db\n" +
		"status :9154 status.pem /etc/status-key.pem ../readers.pem\n}"
	blocks := must.Get(parse(input, Server{Keys: around.Keys, Root: "/srv/dns"}))(t)
	want := mtls.Files{Cert: "/srv/dns/cert.pem", Key: "/etc/key.pem", CA: "/srv/ca.pem"}
	if diff := cmp.Diff(want, blocks[0].Owner.Identity.Files); diff != "" {
		t.Errorf("tls (-want +got):\n%s", diff)
	}
	want = mtls.Files{Cert: "/srv/dns/status.pem", Key: "/etc/status-key.pem", CA: "/srv/readers.pem"}
	if diff := cmp.Diff(want, blocks[0].Status.Files); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if want := "/srv/dns/catalog.db"; blocks[0].Owner.Subscription.File != want {
		t.Errorf("persist = %q, want %q", blocks[0].Owner.Subscription.File, want)
	}
}

// oldPlugin ends the error for a line of CoreDNS's federation before 1.7.0.
const oldPlugin = "; NAME DOMAIN and upstream are of another plugin with this name, which CoreDNS had before 1.7.0: " +
	"remove its block, and begin a new one with owner and tls"

func TestParseErrors(t *testing.T) {
	const required = "owner owner.example:8008\ntls cert.pem key.pem ca.pem\n"
	const exposed = "is not a loopback address such as localhost:9154; what is published is not for everybody: " +
		"elsewhere a certificate, its key and the CA of those who may read are needed"

	// In a row with only a property, the property stands on line 4 of an otherwise
	// correct block.
	for _, tc := range []struct{ property, input, want string }{
		{input: "federation", want: "1: owner: is missing; it takes the owner's address as HOST:PORT"},
		{input: "\n\nfederation {\ntls a b c\n}", want: "3: owner: is missing; it takes the owner's address as HOST:PORT"},
		{input: "federation {\nowner a:1\n}", want: "1: tls: is missing, and so is spiffe; there is no unsecured mode: tls takes the files CERT KEY CA, and spiffe takes SOCKET [TRUST_DOMAIN...]"},
		{input: "federation {\n" + required + "} tail", want: `4: unexpected "tail"`},
		{input: "federation {\n" + required + "}\n}", want: `5: unexpected "}"`},
		{input: "federation {\n" + required + "ttl\n{\n5\n}\n}", want: "4: ttl: takes SECONDS, not 0 arguments"},

		{input: "federation fed..example {\n" + required + "}", want: `1: zones: "fed..example": name has an empty label`},
		{input: "federation fed.example:53 {\n" + required + "}", want: `1: zones: "fed.example:53": label has a character other than a-z, 0-9, '-' and '_'`},
		{input: "federation 10.0.0.0/8 {\n" + required + "}", want: `1: zones: "10.0.0.0/8" is a reverse zone, and services are published by name only`},
		{input: "federation ip6.arpa {\n" + required + "}", want: `1: zones: "ip6.arpa" is a reverse zone, and services are published by name only`},
		{input: "federation fed.example FED.example. {\n" + required + "}", want: `1: zones: "FED.example." is given twice`},

		{property: "share", want: "4: share: takes NAME..., not 0 arguments"},
		{property: "share web.other.example", want: `4: share: "web.other.example" is outside the zones of the block, so there is nothing to share`},
		{property: "tier 5", want: "1: share: is missing, and tier at Testfile:4 is about the names that it shares"},
		{property: "share *\nmin 0", want: `5: min: "0" is not a whole number from 1`},
		{property: "share *\ntier", want: "5: tier: takes N [LABEL], not 0 arguments"},
		{property: "share *\ntier 10 a", want: `5: tier: "10" is not a whole number from 0 to 9`},
		{property: "share *\ntier 1 a\ntier 2 a", want: `6: tier: "a" is in tier 1 already`},
		{property: "share *\ntier 1\ntier 2", want: "6: tier: a line before it is for all other endpoints already"},
		{property: "share *\ntier 1\ntier 2 a", want: "6: tier: no endpoint is left for it: a line before it, without a label, is for all others"},
		{property: "bogus 1", want: "4: bogus: is not a property of federation"},
		{property: "prod prod.feddomain.com", want: "4: prod: is not a property of federation" + oldPlugin},
		{property: "upstream 192.0.2.53:53 /etc/resolv.conf", want: "4: upstream: is not a property of federation" + oldPlugin},
		{property: "ttl 5\nttl 6", want: "5: ttl: is already set at Testfile:4"},
		{property: "owner b:1", want: "4: owner: is already set at Testfile:2"},
		{property: "fallthrough\nfallthrough", want: "5: fallthrough: is already set at Testfile:4"},
		{property: "fallthrough {\nfed.example\n}", want: "4: fallthrough: takes no block in braces"},

		{input: "federation {\nowner\n}", want: "2: owner: takes ADDRESS..., not 0 arguments"},
		{input: "federation {\nowner owner.example\n}", want: `2: owner: "owner.example" is not HOST:PORT or https://HOST:PORT`},
		{input: "federation {\nowner http://owner.example:80\n}", want: `2: owner: "http://owner.example:80" is not HOST:PORT or https://HOST:PORT`},
		{input: "federation {\nowner a:0\n}", want: `2: owner: "a:0" has no port from 1 to 65535`},
		{input: "federation {\nowner https://a:1/path\n}", want: `2: owner: "https://a:1/path" has no port from 1 to 65535`},
		{input: "federation {\nowner a..b:1\n}", want: `2: owner: "a..b": address is neither an IP address nor a host name: name has an empty label`},
		{input: "federation {\nowner a:1 https://A.:01\n}", want: `2: owner: "https://A.:01" is given twice`},

		{input: "federation {\ntls a b\n}", want: "2: tls: takes CERT KEY CA, not 2 arguments"},
		{input: "federation {\ntls a \"\" c\n}", want: "2: tls: the name of the file is empty"},

		{property: "tls_servername", want: "4: tls_servername: takes NAME, not 0 arguments"},
		{property: "tls_servername -a", want: `4: tls_servername: "-a": address is neither an IP address nor a host name: label begins or ends with '-'`},
		{property: "owner_id", want: "4: owner_id: takes ID..., not 0 arguments"},
		{property: "owner_id https://a/b", want: `4: owner_id: identity "https://a/b": only the scheme spiffe:// is an identity`},
		{property: "owner_id a.example A.example.", want: `4: owner_id: "A.example." is given twice`},
		{property: "api v2", want: `4: api: "v2" is not v1alpha2 or v1alpha1`},

		{property: "ttl 0", want: `4: ttl: "0" is not a whole number of seconds from 1 to 3600`},
		{property: "ttl 3601", want: `4: ttl: "3601" is not a whole number of seconds from 1 to 3600`},
		{property: "negative_ttl -1", want: `4: negative_ttl: "-1" is not a whole number of seconds from 1 to 3600`},
		{property: "retention 999ms", want: `4: retention: "999ms" is not a duration of 1s or more; write 24h, or forever`},
		{property: "retention 0", want: `4: retention: "0" is not a duration of 1s or more; write 24h, or forever`},
		{property: "retention never", want: `4: retention: "never" is not a duration of 1s or more; write 24h, or forever`},
		{property: "settle 99ms", want: `4: settle: "99ms" is not a duration of 100ms to 10m0s`},
		{property: "settle 601", want: `4: settle: "601" is not a duration of 100ms to 10m0s`},

		{property: "persist", want: "4: persist: takes FILE, not 0 arguments"},
		{property: "persist \"\"", want: "4: persist: the name of the file is empty"},
		{property: "status", want: "4: status: takes ADDRESS [CERT KEY CA], not 0 arguments"},
		{property: "status localhost:9154 a b", want: "4: status: takes ADDRESS [CERT KEY CA], not 3 arguments"},
		{property: "status localhost:9154 a b c d", want: "4: status: takes ADDRESS [CERT KEY CA], not 5 arguments"},
		{property: "status localhost:9154\nstatus localhost:9154", want: "5: status: is already set at Testfile:4"},
		{property: "status localhost", want: `4: status: "localhost" is not HOST:PORT`},
		{property: "status :9154 a \"\" c", want: "4: status: the name of the file is empty"},
		{property: "status :9154", want: `4: status: ":9154" ` + exposed},
		{property: "status :9154 a b catalog.db\npersist ./catalog.db", want: `1: persist: "catalog.db" is a file of status and would be overwritten`},
		{
			input: "federation {\n" + required + "status localhost:9154\n}\nfederation b.example {\n" + required + "status localhost:9155\n}",
			want:  "6: status: localhost:9155 is not localhost:9154, and a process has one status, in the block at Testfile:1",
		},
		{
			input: "federation {\n" + required + "status :9154 a b c\n}\nfederation b.example {\n" + required + "status :9154 a b d\n}",
			want:  "6: status: :9154 has other files, and a process has one status, in the block at Testfile:1",
		},

		{property: "persist ./key.pem", want: `1: persist: "key.pem" is a file of tls and would be overwritten`},

		{property: "rename a.example", want: "4: rename: takes FROM TO, not 1 argument"},
		{property: "rename a..b fed.example", want: `4: rename: "a..b": name has an empty label`},
		{property: "rename fed.example FED.example", want: `4: rename: "fed.example" is renamed to itself`},
		{property: "rename a.example fed.example\nrename A.example. x.fed.example", want: `5: rename: "A.example." is renamed twice`},
		{property: "rename a.example b.example", want: `4: rename: "b.example" is outside the zones of the block, so no name could be published`},

		{property: "max_catalog 1048575", want: `4: max_catalog: "1048575" is not a size of 1MiB to 1TiB`},
		{property: "max_catalog 1025GiB", want: `4: max_catalog: "1025GiB" is not a size of 1MiB to 1TiB`},
		{property: "max_catalog 1MB", want: `4: max_catalog: "1MB" is not a size such as 512MiB`},

		{property: "allow_addresses 127.0.0.1", want: `4: allow_addresses: "127.0.0.1" is not a CIDR such as 127.0.0.0/8 or fe80::/10`},
		{property: "allow_addresses 127.0.0.1/8", want: `4: allow_addresses: "127.0.0.1/8" has host bits set; its prefix is 127.0.0.0/8`},
		{property: "allow_addresses fe80::/10\nallow_addresses fe80::/10", want: `5: allow_addresses: "fe80::/10" is given twice`},
		{property: "spiffe unix:///agent.sock", want: "4: spiffe: tls is set at Testfile:3, and a block takes one of tls and spiffe"},
		{input: "federation {\nspiffe unix:///agent.sock\ntls a b c\n}", want: "3: tls: spiffe is set at Testfile:2, and a block takes one of tls and spiffe"},
		{input: "federation {\nspiffe\n}", want: "2: spiffe: takes SOCKET [TRUST_DOMAIN...], not 0 arguments"},
		{input: "federation {\nspiffe \"\"\n}", want: "2: spiffe: the socket is empty; name that of the agent, such as unix:///run/spire/agent.sock"},
		{input: "federation {\nspiffe unix:///agent.sock b.example b.example\n}", want: `2: spiffe: "b.example" is given twice`},
		{
			input: "federation {\nspiffe unix:///agent.sock spiffe://b.example/x\n}",
			want:  `2: spiffe: trust domain "spiffe://b.example/x": name it alone, as in b.example`,
		},
		{
			input: "federation {\nowner a:1\nspiffe unix:///agent.sock\nowner_id owner.example\n}",
			want:  "1: owner_id: with spiffe, one SPIFFE ID at least is needed, such as spiffe://owner.example/hamlet; a host name is no identity in SPIFFE",
		},
		{property: "import_names *.a.example\nimport_names *.A.example.", want: `5: import_names: "*.A.example." is given twice`},
		{property: "fallthrough other.example", want: `4: fallthrough: "other.example" is outside the zones of the block`},

		{
			input: "federation {\n" + required + "}\nfederation a.fed.example {\n" + required + "}",
			want:  "5: owner: zone a.fed.example. of owner.example:8008 overlaps its zone fed.example. in the block at Testfile:1",
		},
		{
			input: "federation {\n" + required + "}\nfederation {\nowner b:1 owner.example:8008\ntls a b c\ntls_servername owner.example\n}",
			want:  "5: owner: zone fed.example. of owner.example:8008 overlaps its zone fed.example. in the block at Testfile:1",
		},
		{
			input: "federation {\n" + required + "}\nfederation dns.fed.example {\nowner b:1\ntls a b c\n}",
			want:  "5: zones: dns.fed.example. is within dns.fed.example., which holds the name server of the zone fed.example.",
		},
		{
			input: "federation a.dns.fed.example {\n" + required + "}\nfederation {\nowner b:1\ntls a b c\n}",
			want:  "5: zones: a.dns.fed.example. is within dns.fed.example., which holds the name server of the zone fed.example.",
		},
		{
			input: "federation . ns.dns {\n" + required + "}",
			want:  "1: zones: ns.dns. is within dns., which holds the name server of the zone .",
		},
		{
			input: "federation {\n" + required + "share *.shop.fed.example\nmin 3\n}\nfederation {\nowner b:1\ntls a b c\nmin 2\nshare web.shop.fed.example\n}",
			want:  "10: min: is 2 here and 3 at Testfile:5, in blocks that share web.shop.fed.example",
		},
		{
			input: "federation {\n" + required + "min 2\nshare *\n}\nfederation {\nowner b:1\ntls a b c\nshare *\n}",
			want:  "10: min: is 1 by default here and 2 at Testfile:4, in blocks that share *",
		},
		{
			input: "federation {\n" + required + "persist x.db\n}\nfederation {\nowner b:1\ntls a b c\npersist ./x.db\n}",
			want:  `6: persist: "x.db" is the file of another owner in the block at Testfile:1`,
		},
		{
			input: "federation {\n" + required + "persist /p/x\n}\nfederation {\nowner b:1\ntls a b c\npersist /p/../p/x\n}",
			want:  `6: persist: "/p/../p/x" is the file of another owner in the block at Testfile:1`,
		},
		{
			input: "federation {\nowner b:1\ntls a b /p/ca.pem\npersist /p/./ca.pem\n}",
			want:  `1: persist: "/p/./ca.pem" is a file of tls and would be overwritten`,
		},
	} {
		input := tc.input
		if tc.property != "" {
			input = "federation {\n" + required + tc.property + "\n}"
		}
		t.Run(strings.ReplaceAll(tc.property+tc.input, "\n", ";"), func(t *testing.T) {
			line, text, _ := strings.Cut(tc.want, ": ")
			want := "Testfile:" + line + " - Error during parsing: " + text
			blocks, err := parse(input, around)
			if err == nil {
				t.Fatalf("Parse = %+v, want %q", blocks, want)
			}
			if first, _, _ := strings.Cut(err.Error(), "\n"); first != want { // others may follow from it
				t.Errorf("error:\n got %s\nwant %s", first, want)
			}
		})
	}
}

func TestParseServerBlockZones(t *testing.T) {
	long := strings.Repeat(strings.Repeat("l", 60)+".", 4)
	if n := len(long); n != 244 {
		t.Fatalf("the zone has %d characters", n)
	}
	const block = "federation {\nowner owner.example:8008\ntls cert.pem key.pem ca.pem\n}"
	for _, tc := range []struct {
		name string
		keys []string
		want []string
		err  string
	}{
		{"each zone once", []string{"tls://B.example.:853", "dns://a.example.:53", "dns://b.example.:53"}, []string{"a.example.", "b.example."}, ""},
		{"root", []string{"dns://.:53"}, []string{"."}, ""},
		{
			"reverse",
			[]string{"dns://a.example.:53", "dns://10.in-addr.arpa.:53"},
			nil,
			`Testfile:1 - Error during parsing: zones: "10.in-addr.arpa." is a reverse zone, and services are published by name only`,
		},
		{"as long as can be", []string{"dns://" + long[1:] + ":53"}, []string{long[1:]}, ""},
		{
			"longer",
			[]string{"dns://" + long + ":53"},
			nil,
			"Testfile:1 - Error during parsing: zones: " + safetext.Quote(long) +
				" has 244 characters with its final dot, and a zone may have 243: its SOA names hostmaster.ZONE; take a shorter zone",
		},
		{"none", nil, nil, "Testfile:1 - Error during parsing: zones: the server block has none; name those that the owner may publish in, behind federation"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			blocks, err := parse(block, Server{Keys: tc.keys})
			switch {
			case tc.err != "":
				if err == nil || err.Error() != tc.err {
					t.Errorf("Parse = %v, want %q", err, tc.err)
				}
			case err != nil:
				t.Error(err)
			default:
				if diff := cmp.Diff(zones(t, tc.want...), blocks[0].Zone.Origins, compareValues); diff != "" {
					t.Errorf("zones (-want +got):\n%s", diff)
				}
			}
		})
	}
}
