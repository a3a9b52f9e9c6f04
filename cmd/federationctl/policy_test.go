package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const policyCatalog = `services:
- name: shop
  fqdn: shop.fed.example
  description: Web shop
  tags: [sample]
  labels: {team: storefront, internal-cost: "7"}
  sans: [spiffe://owner.example/shop]
  endpoints:
  - {address: 192.0.2.10, port: 443, labels: [stable], description: rack 7}
  - {address: "2001:db8::10", port: 443, labels: [canary]}
  instances:
  - {id: v1, protocol: HTTPS, endpointSelector: [stable], metadata: {SNI: shop.internal, internal-rack: "7"}}
  - {id: v2, protocol: HTTPS, endpointSelector: [canary]}
- name: api
  fqdn: api.pay.example
  labels: {tier: public}
  endpoints: [{address: 192.0.2.20, port: 80}]
  instances: [{id: v1, protocol: HTTP}]
- name: ledger
  fqdn: ledger.pay.example
  endpoints: [{address: 192.0.2.30, port: 80}]
  instances: [{id: v1, protocol: HTTP}]
- name: vault
  fqdn: vault.fed.example
  tags: [sample]
  endpoints: [{address: 192.0.2.40, port: 80, labels: [inside]}]
  instances: [{id: v1, protocol: TCP}]
`

// policyText is a configuration with a rule of each kind.
const policyText = `listen: "127.0.0.1:0"
metrics: "127.0.0.1:0"
identity:
  files: {cert: owner.pem, key: owner-key.pem, ca: ca.pem}
allow:
  ids: ["spiffe://acme.example/ns/dns", "spiffe://partner.example/coredns"]
  file: consumers.txt
catalogs:
- sources:
  - file: {path: catalog.yaml}
  exports:
  - match: {fqdn: ["*.pay.example"], labels: {tier: public}}
    to: ["spiffe://partner.example/*"]
    as: {pay.example: pay.partner.example}
  - match: {tags: [sample]}
    to: ["spiffe://partner.example/**", "*.dns.example", spiffe://later.example/coredns]
    endpoints: {labels: [stable]}
    strip: [description, tags, labels.internal-*, metadata.internal-*]
  - to: ["spiffe://acme.example/ns/*"]
`

const policyConsumers = "a.dns.example\nspiffe://stranger.example/coredns\nspiffe://acme.example/ns/dns\n"

// policyFiles makes a directory with the configuration owner.yaml and its files the
// current one.
func policyFiles(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	write(t, "owner.yaml", policyText)
	write(t, "catalog.yaml", policyCatalog)
	write(t, "consumers.txt", policyConsumers)
}

// policyCase is a command, without the word policy, and what comes of it.
type policyCase struct {
	args   string // fields
	code   int
	stdout string
	stderr string
}

func (c policyCase) check(t *testing.T) {
	t.Helper()
	expectCtl(t, c.code, c.stdout, c.stderr, append([]string{"policy"}, strings.Fields(c.args)...)...)
}

const (
	rule1 = "rule 1 (owner.yaml:12: fqdn *.pay.example, labels tier=public to spiffe://partner.example/*)"
	rule2 = "rule 2 (owner.yaml:15: tags sample to spiffe://partner.example/**,*.dns.example,spiffe://later.example/coredns)"
	rule3 = "rule 3 (owner.yaml:19: everything to spiffe://acme.example/ns/*)"

	shopShaped = `  fqdn       shop.fed.example
  instances  v1/HTTPS
  endpoints  192.0.2.10:443
  changes    -description, -tags[sample], -labels.internal-cost, -endpoints[192.0.2.10:443].description, -endpoints[[2001:db8::10]:443], -instances[v1].metadata.internal-rack, -instances[v2]
`
	apiShaped = `  fqdn       api.pay.partner.example, an alias of api.pay.example
  instances  v1/HTTP
  endpoints  192.0.2.20:80
`
	apiWhole = `  fqdn       api.pay.example
  instances  v1/HTTP
  endpoints  192.0.2.20:80
`
	vaultHidden = rule2 + " hides it: none of its endpoints has a label that the rule asks for"
)

func TestPolicyTest(t *testing.T) {
	policyFiles(t)
	for _, c := range []policyCase{
		{"test owner.yaml --as spiffe://partner.example/coredns shop", 0, "shop: told by " + rule2 + "\n" + shopShaped, ""},
		{"test owner.yaml --as spiffe://partner.example/coredns Shop.Fed.Example. api", 0, "Shop.Fed.Example.: service shop is told by " + rule2 + "\n" + shopShaped + "api: told by " + rule1 + "\n" + apiShaped, ""},
		{"test owner.yaml --as spiffe://partner.example/coredns api.pay.partner.example", 0, "api.pay.partner.example: service api is told by " + rule1 + "\n" + apiShaped, ""},
		{"test owner.yaml --as spiffe://acme.example/ns/dns api.pay.example", 0, "api.pay.example: service api is told by " + rule3 + "\n" + apiWhole, ""},
		{"test owner.yaml --as spiffe://partner.example/coredns api ledger", 1, "api: told by " + rule1 + "\n" + apiShaped + "ledger: not told: it does not meet the labels of rule 1, the tags of rule 2\n", ""},
		{"test owner.yaml --as spiffe://partner.example/coredns vault", 1, "vault: not told: " + vaultHidden + "\n", ""},
		{"test owner.yaml --as spiffe://stranger.example/coredns shop", 1, "shop: not told: no rule is for this consumer\n", ""},
		{"test owner.yaml --as spiffe://partner.example/other shop", 1, "shop: not told: the consumer may not subscribe, allow does not name it\n", ""},
		// One of several identities is allowed, and another one is in a rule.
		{"test owner.yaml --as spiffe://stranger.example/coredns --as b.dns.example shop", 0, "shop: told by " + rule2 + "\n" + shopShaped, ""},
		// The alias is no name for who is not told it.
		{"test owner.yaml --as spiffe://acme.example/ns/dns api.pay.partner.example", 2, "", "federationctl: owner.yaml: the default catalog has no service with the name or fqdn api.pay.partner.example\nfederationctl: see 'federationctl policy test --help'\n"},
	} {
		c.check(t)
	}
}

func TestPolicyWhoCan(t *testing.T) {
	policyFiles(t)
	everything, _, _ := strings.Cut(policyText, "  exports:")
	write(t, "everything.yaml", everything)
	write(t, "nothing.yaml", everything+"  exports: []\n")
	for _, c := range []policyCase{
		{"who-can owner.yaml api", 0, "api: told to 2 of 4 consumers\n" +
			"told by " + rule3 + "\n" + apiWhole + "  consumer   spiffe://acme.example/ns/dns\n" +
			"told by " + rule1 + "\n" + apiShaped + "  consumer   spiffe://partner.example/coredns\n" +
			"not told: it does not meet the tags of rule 2\n  consumer   a.dns.example\n" +
			"not told: no rule is for this consumer\n  consumer   spiffe://stranger.example/coredns\n" +
			"told once allow names them:\n  consumer   spiffe://partner.example/*, by rule 1\n  consumer   spiffe://acme.example/ns/*, by rule 3\n", ""},
		{"who-can owner.yaml vault", 0, "vault: told to 1 of 4 consumers\n" +
			"told by " + rule3 + "\n  fqdn       vault.fed.example\n  instances  v1/TCP\n  endpoints  192.0.2.40:80\n  consumer   spiffe://acme.example/ns/dns\n" +
			"not told: " + vaultHidden + "\n  consumer   spiffe://partner.example/coredns\n  consumer   a.dns.example\n" +
			"not told: no rule is for this consumer\n  consumer   spiffe://stranger.example/coredns\n" +
			"told once allow names them:\n  consumer   spiffe://acme.example/ns/*, by rule 3\n", ""},
		{"who-can everything.yaml api.pay.example", 0, "api.pay.example: service api is told to 4 of 4 consumers\n" +
			"told, as the catalog has no exports: every consumer is told everything\n" + apiWhole +
			"  consumer   spiffe://acme.example/ns/dns\n  consumer   spiffe://partner.example/coredns\n  consumer   a.dns.example\n  consumer   spiffe://stranger.example/coredns\n", ""},
		{"who-can nothing.yaml api", 1, "api: told to 0 of 4 consumers\nnot told: no rule is for this consumer\n" +
			"  consumer   spiffe://acme.example/ns/dns\n  consumer   spiffe://partner.example/coredns\n  consumer   a.dns.example\n  consumer   spiffe://stranger.example/coredns\n", ""},
	} {
		c.check(t)
	}
	// By the name that one of the consumers knows.
	_, byAlias, _ := ctl(t, "policy", "who-can", "owner.yaml", "api.pay.partner.example")
	_, byName, _ := ctl(t, "policy", "who-can", "owner.yaml", "api")
	if want := strings.Replace(byName, "api: ", "api.pay.partner.example: service api is ", 1); byAlias != want {
		t.Errorf("who-can says of an alias\n%s\nexpected\n%s", byAlias, want)
	}
	_, shop, _ := ctl(t, "policy", "who-can", "owner.yaml", "shop")
	// Rule 2 decides about partner.example, also where rule 1 does not match.
	if want := "once allow names them:\n  consumer   spiffe://partner.example/**, by rule 2\n  consumer   *.dns.example, by rule 2\n  consumer   spiffe://later.example/coredns, by rule 2\n  consumer   spiffe://acme.example/ns/*, by rule 3\n"; !strings.HasSuffix(shop, want) {
		t.Errorf("who-can ends with\n%s\nexpected\n%s", shop, want)
	}
}

func TestPolicyDiff(t *testing.T) {
	policyFiles(t)
	edit := func(name string, edits ...string) {
		t.Helper()
		text := policyText
		for i := 0; i < len(edits); i += 2 {
			if !strings.Contains(text, edits[i]) {
				t.Fatalf("%q is not in the configuration", edits[i])
			}
			text = strings.Replace(text, edits[i], edits[i+1], 1)
		}
		write(t, name, text)
	}
	edit("same.yaml", "  - to: [\"spiffe://acme.example/ns/*\"]\n", "", "  exports:\n", "  exports:\n  - to: [\"spiffe://acme.example/ns/*\"]\n")
	edit("shape.yaml", "labels: [stable]", "labels: [stable, inside]", "pay.partner.example", "pay.example.net", "strip: [", "strip: [sans, ")
	edit("allow.yaml", `, "spiffe://partner.example/coredns"`, `, "spiffe://acme.example/ns/db"`)
	edit("hide.yaml", "labels: [stable]", "labels: [nowhere]", "tier: public", "tier: private")
	edit("catalogs.yaml", "catalogs:\n", "catalogs:\n- server_name: b.owner.example\n  sources:\n  - file: {path: b.yaml}\n")
	write(t, "b.yaml", oneService("b"))
	edit("services.yaml", "path: catalog.yaml", "path: new.yaml")
	write(t, "new.yaml", strings.NewReplacer("name: ledger", "name: journal", "tags: [sample]\n  labels", "labels", "192.0.2.20, port: 80", "192.0.2.20, port: 81").Replace(policyCatalog))

	for _, c := range []policyCase{
		{"diff owner.yaml owner.yaml", 0, "", ""},
		{"diff owner.yaml same.yaml", 0, "", ""}, // another order of rules that do not meet
		{"diff owner.yaml shape.yaml", 1, `1 consumer: spiffe://partner.example/coredns
  ~ api (api.pay.example.net): fqdn: api.pay.partner.example -> api.pay.example.net
  ~ shop (shop.fed.example): -sans[spiffe://owner.example/shop]
  + vault (vault.fed.example): rule 2 (shape.yaml:15: tags sample to spiffe://partner.example/**,*.dns.example,spiffe://later.example/coredns)
1 consumer: a.dns.example
  ~ shop (shop.fed.example): -sans[spiffe://owner.example/shop]
  + vault (vault.fed.example): rule 2 (shape.yaml:15: tags sample to spiffe://partner.example/**,*.dns.example,spiffe://later.example/coredns)
`, ""},
		{"diff owner.yaml allow.yaml --as b.dns.example", 1, `1 consumer, access lost: spiffe://partner.example/coredns
  - api (api.pay.partner.example): the consumer may not subscribe, allow does not name it
  - shop (shop.fed.example): the consumer may not subscribe, allow does not name it
1 consumer, access gained: spiffe://acme.example/ns/db
  + api (api.pay.example): rule 3 (allow.yaml:19: everything to spiffe://acme.example/ns/*)
  + ledger (ledger.pay.example): rule 3 (allow.yaml:19: everything to spiffe://acme.example/ns/*)
  + shop (shop.fed.example): rule 3 (allow.yaml:19: everything to spiffe://acme.example/ns/*)
  + vault (vault.fed.example): rule 3 (allow.yaml:19: everything to spiffe://acme.example/ns/*)
`, "federationctl: b.dns.example may subscribe by neither owner.yaml nor allow.yaml\n"},
		{"diff owner.yaml hide.yaml", 1, `1 consumer: spiffe://partner.example/coredns
  - api (api.pay.partner.example): it does not meet the labels of rule 1, the tags of rule 2
  - shop (shop.fed.example): rule 2 (hide.yaml:15: tags sample to spiffe://partner.example/**,*.dns.example,spiffe://later.example/coredns) hides it: none of its endpoints has a label that the rule asks for
1 consumer: a.dns.example
  - shop (shop.fed.example): rule 2 (hide.yaml:15: tags sample to spiffe://partner.example/**,*.dns.example,spiffe://later.example/coredns) hides it: none of its endpoints has a label that the rule asks for
`, ""},
		{"diff owner.yaml catalogs.yaml", 1, `4 consumers of b.owner.example: spiffe://acme.example/ns/dns, spiffe://partner.example/coredns, a.dns.example, spiffe://stranger.example/coredns
  + b (b.fed.example)
`, ""},
		{"diff catalogs.yaml owner.yaml --server-name B.owner.example.", 1, `4 consumers of b.owner.example: spiffe://acme.example/ns/dns, spiffe://partner.example/coredns, a.dns.example, spiffe://stranger.example/coredns
  - b (b.fed.example): it is not in the catalog any more
`, ""},
		{"diff owner.yaml catalogs.yaml --server-name=", 0, "", ""},
		{"diff owner.yaml services.yaml", 1, `1 consumer: spiffe://acme.example/ns/dns
  ~ api (api.pay.example): -endpoints[192.0.2.20:80], +endpoints[192.0.2.20:81]
  + journal (ledger.pay.example): rule 3 (services.yaml:19: everything to spiffe://acme.example/ns/*)
  - ledger (ledger.pay.example): it is not in the catalog any more
  ~ shop (shop.fed.example): -tags[sample]
1 consumer: spiffe://partner.example/coredns
  ~ api (api.pay.partner.example): -endpoints[192.0.2.20:80], +endpoints[192.0.2.20:81]
  - shop (shop.fed.example): it does not meet the fqdn of rule 1, the tags of rule 2
1 consumer: a.dns.example
  - shop (shop.fed.example): it does not meet the tags of rule 2
`, ""},
	} {
		c.check(t)
	}
}

// TestPolicyJSON reads what scripts get.
func TestPolicyJSON(t *testing.T) {
	policyFiles(t)
	write(t, "new.yaml", strings.Replace(policyText, "[\"spiffe://acme.example/ns/*\"]", "[nobody.example]", 1))
	for _, tt := range []struct {
		args, want string
		code       int
	}{
		{"test owner.yaml --as spiffe://partner.example/coredns api ledger", `{"asked":"api","name":"api","fqdn":"api.pay.example","told":true,"rule":{"number":1,"file":"owner.yaml","line":12,"match":"fqdn *.pay.example, labels tier=public","to":"spiffe://partner.example/*"},"as":"api.pay.partner.example","service":{"name":"api","labels":{"tier":"public"},"fqdn":"api.pay.partner.example","endpoints":[{"address":"192.0.2.20","port":80}],"instances":[{"id":"v1","protocol":"HTTP"}]},"changes":[{"change":"~","field":"fqdn","before":"api.pay.example","after":"api.pay.partner.example"}]}
{"asked":"ledger","name":"ledger","fqdn":"ledger.pay.example","told":false,"reason":"it does not meet the labels of rule 1, the tags of rule 2"}
`, 1},
		{"who-can owner.yaml ledger", `{"asked":"ledger","name":"ledger","fqdn":"ledger.pay.example","told":[{"consumers":["spiffe://acme.example/ns/dns"],"rule":{"number":3,"file":"owner.yaml","line":19,"match":"everything","to":"spiffe://acme.example/ns/*"},"as":"ledger.pay.example","service":{"name":"ledger","fqdn":"ledger.pay.example","endpoints":[{"address":"192.0.2.30","port":80}],"instances":[{"id":"v1","protocol":"HTTP"}]}}],"notTold":[{"consumers":["spiffe://partner.example/coredns"],"reason":"it does not meet the labels of rule 1, the tags of rule 2"},{"consumers":["a.dns.example"],"reason":"it does not meet the tags of rule 2"},{"consumers":["spiffe://stranger.example/coredns"],"reason":"no rule is for this consumer"}],"further":[{"to":"spiffe://acme.example/ns/*","rule":{"number":3,"file":"owner.yaml","line":19,"match":"everything","to":"spiffe://acme.example/ns/*"}}]}
`, 0},
		{"diff owner.yaml new.yaml", `{"consumers":["spiffe://acme.example/ns/dns"],"changes":[{"change":"-","name":"api","fqdn":"api.pay.example","reason":"no rule is for this consumer"},{"change":"-","name":"ledger","fqdn":"ledger.pay.example","reason":"no rule is for this consumer"},{"change":"-","name":"shop","fqdn":"shop.fed.example","reason":"no rule is for this consumer"},{"change":"-","name":"vault","fqdn":"vault.fed.example","reason":"no rule is for this consumer"}]}
`, 1},
	} {
		policyCase{tt.args + " -o json", tt.code, tt.want, ""}.check(t)
	}
}

// TestPolicyMistakes has questions that have no answer.
func TestPolicyMistakes(t *testing.T) {
	policyFiles(t)
	const (
		hint   = "federationctl: see 'federationctl policy %s --help'\n"
		as     = " --as spiffe://partner.example/coredns"
		config = "bad.yaml:9: error: catalogs[0].surces: there is no such key; those that there are: exports, relay, server_name, sources\nbad.yaml:9: error: catalogs[0]: needs one of sources, relay: a relay is the whole catalog; beside other sources it is one of them, in their list\n"
	)
	write(t, "bad.yaml", strings.NewReplacer("sources:", "surces:", "window", "windw").Replace(policyText))
	write(t, "worse.yaml", strings.NewReplacer("[stable]", "[stable, \"*\"]", `"*.dns.example"`, `"*.*.example"`).Replace(policyText))
	write(t, "nobody.yaml", strings.Replace(policyText, "consumers.txt", "none.txt", 1))
	write(t, "broken.yaml", strings.Replace(policyText, "catalog.yaml", "broken-catalog.yaml", 1))
	write(t, "broken-catalog.yaml", strings.NewReplacer("port: 443", "port: 0", "protocol: TCP", "protocol: UDP").Replace(policyCatalog))
	write(t, "gone.yaml", strings.Replace(policyText, "catalog.yaml", "gone-catalog.yaml", 1))
	write(t, "named.yaml", strings.Replace(policyText, "- sources:", "- server_name: a.owner.example\n  sources:", 1))
	broken := `broken-catalog.yaml:9: error: service "shop": endpoints[0].port: 0 is not in 1 to 65535
broken-catalog.yaml:10: error: service "shop": endpoints[1].port: 0 is not in 1 to 65535
broken-catalog.yaml:27: error: service "vault": instances[0].protocol: "UDP" is none of HTTP, HTTPS, GRPC, HTTP2, MONGO, TCP, TLS, MTLS
federationctl: problems found: 3; fix them and try again
`
	for _, c := range []policyCase{
		{"test owner.yaml" + as, 2, "", "federationctl: test takes CONFIG and a NAME, or several, not 1 argument\n" + fmt.Sprintf(hint, "test")},
		{"test owner.yaml api", 2, "", "federationctl: required flag(s) \"as\" not set\n" + fmt.Sprintf(hint, "test")},
		{"test owner.yaml api --as *.example", 2, "", "federationctl: --as: identity \"*.example\": label has a character other than a-z, 0-9, '-' and '_'\n" + fmt.Sprintf(hint, "test")},
		{"test owner.yaml api -o xml" + as, 2, "", "federationctl: -o: \"xml\" is not one of table, json, yaml, name\n" + fmt.Sprintf(hint, "test")},
		{"who-can owner.yaml", 2, "", "federationctl: who-can takes CONFIG and a NAME, not 1 argument\n" + fmt.Sprintf(hint, "who-can")},
		{"who-can owner.yaml no-such", 2, "", "federationctl: owner.yaml: the default catalog has no service with the name or fqdn no-such\n" + fmt.Sprintf(hint, "who-can")},
		{"diff owner.yaml", 2, "", "federationctl: diff takes OLD and NEW, not 1 argument\n" + fmt.Sprintf(hint, "diff")},
		{"nothing", 2, "", "federationctl: unknown command \"nothing\" for \"federationctl policy\"\nfederationctl: see 'federationctl policy --help'\n"},
		{"test none.yaml api" + as, 2, "", "none.yaml: error: stat none.yaml: no such file or directory\nfederationctl: problems found: 1; fix them and try again\n"},
		{"who-can nobody.yaml api", 2, "", "none.txt: error: allow file: stat none.txt: no such file or directory\nfederationctl: problems found: 1; fix them and try again\n"},
		{"who-can bad.yaml api", 2, "", config + "federationctl: problems found: 2; fix them and try again\n"},
		{"diff bad.yaml worse.yaml", 2, "", config +
			"worse.yaml:16: error: catalogs[0].exports[1].to[1]: identity pattern \"*.*.example\": \"*\" stands alone, or as the first label before a name, as in *.dns.example\nworse.yaml:17: error: catalogs[0].exports[1].endpoints.labels[1]: is taken as it is written, and \"*\" stands for nothing here; leave the list out for all\nfederationctl: problems found: 4; fix them and try again\n"},
		{"who-can broken.yaml api", 2, "", broken},
		{"diff broken.yaml broken.yaml", 2, "", broken},
		{"test gone.yaml api" + as, 2, "", "federationctl: the services of file:gone-catalog.yaml (stat gone-catalog.yaml: no such file or directory) are not known here; give --catalog, a file with them\n" + fmt.Sprintf(hint, "test")},
		{"test named.yaml api" + as, 2, "", "federationctl: named.yaml has no default catalog; choose one with --server-name: a.owner.example\n" + fmt.Sprintf(hint, "test")},
		{"test owner.yaml api --server-name b.example" + as, 2, "", "federationctl: owner.yaml has no catalog with the server name b.example, only the default catalog\n" + fmt.Sprintf(hint, "test")},
		{"diff named.yaml owner.yaml --server-name b.example", 2, "", "federationctl: named.yaml has no catalog with the server name b.example, only a.owner.example\n" + fmt.Sprintf(hint, "diff")},
		{"test owner.yaml api --catalog broken-catalog.yaml" + as, 2, "", broken},
		{"test owner.yaml api --max-catalog 9 --catalog catalog.yaml" + as, 2, "", "catalog.yaml: error: catalog.yaml is larger than allowed: it has " + fmt.Sprint(len(policyCatalog)) + " bytes, the limit is 9; --max-catalog raises it\nfederationctl: problems found: 1; fix them and try again\n"},
	} {
		c.check(t)
	}
}

// clusterService returns the lines of a catalog for a service as a cluster has it.
func clusterService(name, fqdn, address string) string {
	return fmt.Sprintf("- name: %s\n  fqdn: %s\n  endpoints: [{address: %s, port: 80}]\n  instances: [{id: v1, protocol: HTTP}]\n", name, fqdn, address)
}

// TestPolicySources has services of a cluster, which cannot be asked.
func TestPolicySources(t *testing.T) {
	policyFiles(t)
	const as = " --as spiffe://acme.example/ns/dns"
	text := strings.Replace(policyText, "- sources:", "- sources:\n  - kubernetes: {cluster: west, zone: west.fed.example}", 1)
	write(t, "trap.yaml", text)
	text = strings.Replace(text, "tags: [sample]", "tags: [sample], fqdn: [shop.fed.example, vault.fed.example]", 1)
	write(t, "owner.yaml", text)
	write(t, "fewer.yaml", strings.Replace(text, "catalog.yaml", "fewer-catalog.yaml", 1))
	fewer, _, _ := strings.Cut(policyCatalog, "- name: ledger")
	write(t, "fewer-catalog.yaml", fewer)
	write(t, "west.yaml", "services:\n"+clusterService("west/shop/cart", "cart.shop.west.fed.example", "192.0.2.50"))
	write(t, "rival.yaml", "services:\n"+clusterService("west/shop/rival", "shop.fed.example", "192.0.2.51"))
	write(t, "other.yaml", "services:\n"+clusterService("other", "shop.fed.example", "192.0.2.52")+clusterService("more", "more.fed.example", "192.0.2.53"))
	cart := `{"name":"west/shop/cart","fqdn":"cart.shop.west.fed.example","endpoints":[{"address":"192.0.2.50","port":80}],"instances":[{"id":"v1","protocol":"HTTP"}]}`
	// What a consumer that is told everything has seen, with a service that has changed
	// and one that is gone.
	write(t, "seen.json", `{"op":"upsert","name":"west/shop/cart","service":`+strings.Replace(cart, "80", "79", 1)+`}
{"op":"upsert","name":"west/shop/gone","service":`+strings.ReplaceAll(cart, "cart", "gone")+`}
{"op":"upsert","name":"ledger","service":`+strings.ReplaceAll(cart, "west/shop/cart", "ledger")+`}
{"op":"delete","name":"west/shop/gone"}
{"op":"upsert","name":"west/shop/cart","service":`+cart+`}
{"op":"end"}
`)
	write(t, "torn.json", `{"op":"upsert","name":"a","service":`+cart+"}\n{\"op\":\"upsert\",\"na")
	write(t, "wrong.json", "{\"op\":\"end\"}\n"+`{"op":"upsert","name":"a","service":`+strings.Replace(cart, "HTTP", "UDP", 1)+"}\n")

	rule := strings.Replace(rule3, ":19:", ":20:", 1)
	toldCart := "west/shop/cart: told by " + rule + "\n  fqdn       cart.shop.west.fed.example\n  instances  v1/HTTP\n  endpoints  192.0.2.50:80\n"
	unknown := "federationctl: the services of kubernetes:west are not known here; give --catalog, a file with them\nfederationctl: see 'federationctl policy %s --help'\n"
	for _, c := range []policyCase{
		{"test owner.yaml api" + as, 2, "", fmt.Sprintf(unknown, "test")},
		{"who-can owner.yaml api", 2, "", fmt.Sprintf(unknown, "who-can")},
		{"diff owner.yaml owner.yaml", 2, "", fmt.Sprintf(unknown, "diff")},
		{
			"test trap.yaml west/shop/cart --catalog west.yaml" + as, 2, "",
			"trap.yaml:16: error: catalogs[0].exports[1].match.tags: is met by no service of kubernetes:west: they have no tags; limit the rule to other names with fqdn, or ask for a label\n" +
				"federationctl: problems found: 1; fix them and try again\n",
		},
		{"test owner.yaml west/shop/cart --catalog west.yaml" + as, 0, toldCart, ""},
		{"test owner.yaml west/shop/cart --catalog seen.json" + as, 0, toldCart, ""},
		{"test owner.yaml west/shop/gone --catalog seen.json" + as, 2, "", "federationctl: owner.yaml: the default catalog has no service with the name or fqdn west/shop/gone\nfederationctl: see 'federationctl policy test --help'\n"},
		// The cluster stands before the file.
		{"test owner.yaml shop --catalog rival.yaml" + as, 1, "shop: not told: it is not published: service \"west/shop/rival\" of kubernetes:west stands first\n", ""},
		// Other services stand behind both, and nothing is known of the cluster.
		{"test owner.yaml other more --catalog other.yaml" + as, 1, "other: not told: it is not published: service \"shop\" of file:catalog.yaml stands first\n" +
			"more: told by " + rule + "\n  fqdn       more.fed.example\n  instances  v1/HTTP\n  endpoints  192.0.2.53:80\n", "federationctl: --catalog has no service of kubernetes:west\n"},
		// What a file had is no service of the cluster.
		{"diff owner.yaml fewer.yaml --catalog seen.json", 1, `1 consumer: spiffe://acme.example/ns/dns
  - ledger (ledger.pay.example): it is not in the catalog any more
  - vault (vault.fed.example): it is not in the catalog any more
`, ""},
		{"test owner.yaml api --catalog torn.json" + as, 2, "", "torn.json: error: line 2: unexpected EOF\nfederationctl: problems found: 1; fix them and try again\n"},
		{"test owner.yaml api --catalog wrong.json" + as, 2, "", `wrong.json:2: error: service "west/shop/cart": instances[0].protocol: "UDP" is none of HTTP, HTTPS, GRPC, HTTP2, MONGO, TCP, TLS, MTLS` + "\nfederationctl: problems found: 1; fix them and try again\n"},
	} {
		c.check(t)
	}
	// A catalog file that is not there can be given as well.
	write(t, "gone.yaml", strings.Replace(policyText, "catalog.yaml", "gone-catalog.yaml", 1))
	if code, stdout, stderr := ctl(t, "policy", "who-can", "gone.yaml", "api", "--catalog", "catalog.yaml"); code != 0 || stderr != "" {
		t.Errorf("exit code %d, standard output %q, standard error %q", code, stdout, stderr)
	}
}

// TestPolicyBounded prints services and rules with terrible text.
func TestPolicyBounded(t *testing.T) {
	policyFiles(t)
	quoted := must.Get(json.Marshal(terrible))(t)
	text := string(quoted)
	long := strings.Repeat("x", 1000)
	var tags, to []string
	for i := range 200 {
		tags = append(tags, fmt.Sprintf("tag-%d-%s", i, long[:100]))
		to = append(to, fmt.Sprintf("spiffe://partner.example/%d/%s", i, long))
	}
	catalog := strings.NewReplacer("name: shop", "name: "+text, "Web shop", text, "[sample]", "["+text+","+strings.Join(tags, ",")+"]",
		"storefront", text, "SNI: shop.internal", text+": "+text, "id: v2", "id: "+text).Replace(policyCatalog)
	write(t, "catalog.yaml", catalog)
	write(t, "owner.yaml", strings.NewReplacer("tags: [sample]", "tags: ["+text+","+strings.Join(tags, ",")+"]", `["spiffe://partner.example/**"`, `["spiffe://partner.example/**", "`+strings.Join(to, `","`)+`"`,
		"metadata.internal-*", "metadata.*").Replace(policyText))
	write(t, "new.yaml", strings.Replace(policyText, "/ns/*", "/ns/**", 1))
	for _, args := range []string{"test owner.yaml --as spiffe://partner.example/coredns shop.fed.example", "who-can owner.yaml shop.fed.example", "diff owner.yaml new.yaml"} {
		for _, format := range formats {
			_, stdout, stderr := ctl(t, append([]string{"policy", "-o", format}, strings.Fields(args)...)...)
			output := stdout + stderr
			if strings.ContainsFunc(output, raw) || output == "" {
				t.Errorf("%s: %.2000q", args, output)
			}
			for line := range strings.Lines(output) {
				if len(line) > 4000 && format == "table" {
					t.Errorf("%s: a line has %d bytes: %.2000s", args, len(line), line)
				}
			}
		}
	}
}

// policyParty is a consumer with its certificate files.
type policyParty struct {
	name string
	leaf mtls.Leaf
}

func (p policyParty) as() []string {
	var flags []string
	for _, id := range slices.Concat(p.leaf.URIs, p.leaf.DNSNames) {
		flags = append(flags, "--as", id)
	}
	return flags
}

// TestPolicyAgreesWithOwner compares what policy test says with what an owner tells
// consumers, and the difference that policy diff finds with what that owner sends when its
// configuration is replaced.
func TestPolicyAgreesWithOwner(t *testing.T) {
	policyFiles(t)
	parties := []policyParty{
		{"partner", mtls.Leaf{URIs: []string{"spiffe://partner.example/coredns"}}},
		{"acme", mtls.Leaf{URIs: []string{"spiffe://acme.example/ns/dns"}}},
		{"host", mtls.Leaf{DNSNames: []string{"a.dns.example"}}},
		{"both", mtls.Leaf{URIs: []string{"spiffe://acme.example/other"}, DNSNames: []string{"a.dns.example", "b.dns.example"}}},
		{"stranger", mtls.Leaf{URIs: []string{"spiffe://stranger.example/coredns"}}},
		{"nobody", mtls.Leaf{URIs: []string{"spiffe://nobody.example/coredns"}}},
	}
	authority := must.Get(mtls.NewAuthority("test", 24*time.Hour))(t)
	for _, p := range append(parties, policyParty{"owner", mtls.Leaf{DNSNames: []string{"localhost"}, URIs: []string{pkiOwnerID}}}) {
		issued := must.Get(authority.Issue(p.leaf))(t)
		must.Do(t, issued.WriteFiles(filesOf("", p.name)))
	}
	serving := &configured{running: &running{t: t}, file: "owner.yaml"}
	serving.start(nil)
	serving.complete()
	services := []string{"shop", "api", "ledger", "vault"}

	// told returns the services in JSON, by consumer and name.
	told := func(config string) map[string]string {
		t.Helper()
		all := make(map[string]string)
		for _, p := range parties {
			code, stdout, stderr := ctl(t, slices.Concat([]string{"policy", "test", config, "-o", "json"}, p.as(), services)...)
			if code == exitUsage || stderr != "" {
				t.Fatalf("%s: exit code %d, standard error %q", p.name, code, stderr)
			}
			for line := range strings.Lines(stdout) {
				var answer struct {
					Name    string          `json:"name"`
					Service json.RawMessage `json:"service"`
				}
				must.Do(t, json.Unmarshal([]byte(line), &answer))
				if answer.Service != nil {
					all[p.name+" "+answer.Name] = string(answer.Service)
				}
			}
		}
		return all
	}
	// seen returns what the owner sends.
	seen := func() map[string]string {
		t.Helper()
		all := make(map[string]string)
		for _, p := range parties {
			code, stdout, stderr := ctl(t, slices.Concat([]string{"watch", serving.address, "--once", "-o", "json", "--owner-id", pkiOwnerID}, files("", p.name))...)
			if code != 0 && !strings.Contains(stderr, "Unauthenticated") {
				t.Fatalf("%s: exit code %d, standard error %q", p.name, code, stderr)
			}
			for line := range strings.Lines(stdout) {
				var event struct {
					Op      string          `json:"op"`
					Name    string          `json:"name"`
					Service json.RawMessage `json:"service"`
				}
				must.Do(t, json.Unmarshal([]byte(line), &event))
				if event.Op == "upsert" {
					all[p.name+" "+event.Name] = string(event.Service)
				}
			}
		}
		return all
	}
	before := told("owner.yaml")
	if diff := cmp.Diff(before, seen()); diff != "" || len(before) != 8 {
		t.Errorf("%d services are told; unexpected services of the owner (-said +sent):\n%s", len(before), diff)
	}

	// Of the parties with one identity, which diff knows by allow.
	edited := strings.NewReplacer("labels: [stable]", "labels: [canary, inside]", "spiffe://acme.example/ns/*", "spiffe://stranger.example/*",
		`, "spiffe://partner.example/coredns"`, "", "tier: public", `tier: "*"`).Replace(policyText)
	write(t, "new.yaml", edited)
	after := told("new.yaml")
	want := make(map[string]string)
	for _, p := range parties {
		for _, name := range services {
			key := p.name + " " + name
			was, is := before[key], after[key]
			if len(p.as()) != 2 || was == is {
				continue
			}
			want[p.as()[1]+" "+name] = map[bool]string{true: "~"}[was != "" && is != ""] + map[bool]string{true: "+"}[was == ""] + map[bool]string{true: "-"}[is == ""]
		}
	}
	_, stdout, stderr := ctl(t, "policy", "diff", "owner.yaml", "new.yaml", "-o", "json")
	got := make(map[string]string)
	for line := range strings.Lines(stdout) {
		var group struct {
			Consumers []string `json:"consumers"`
			Changes   []struct {
				Change string `json:"change"`
				Name   string `json:"name"`
			} `json:"changes"`
		}
		must.Do(t, json.Unmarshal([]byte(line), &group))
		for _, id := range group.Consumers {
			for _, c := range group.Changes {
				got[id+" "+c.Name] = c.Change
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || stderr != "" || len(want) < 8 {
		t.Errorf("%d changes, standard error %q; unexpected changes (-want +got):\n%s", len(want), stderr, diff)
	}
	write(t, "owner.yaml", edited)
	eventually(t, func() string { return cmp.Diff(after, seen()) })
	if code := serving.stop(); code != exitDone {
		t.Errorf("serve ended with exit code %d; standard error:\n%s", code, serving.errs)
	}
}

// TestPolicySPIFFE has an owner with a SPIFFE agent, for which host names in certificates
// count for nothing.
func TestPolicySPIFFE(t *testing.T) {
	policyFiles(t)
	write(t, "owner.yaml", strings.Replace(policyText, "files: {cert: owner.pem, key: owner-key.pem, ca: ca.pem}", `spiffe: {socket: "unix:///run/agent.sock"}`, 1))
	for _, c := range []policyCase{
		{"test owner.yaml --as a.dns.example shop", 1, "shop: not told: the consumer may not subscribe, allow does not name its SPIFFE ID; host names do not count with identity.spiffe\n", ""},
		{"test owner.yaml --as spiffe://stranger.example/coredns --as a.dns.example shop", 1, "shop: not told: no rule is for this consumer\n", ""},
		{"test owner.yaml --as spiffe://partner.example/coredns shop", 0, "shop: told by " + rule2 + "\n" + shopShaped, ""},
	} {
		c.check(t)
	}
}
