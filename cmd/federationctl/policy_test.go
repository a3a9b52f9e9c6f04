package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

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

// policyCase is a command, without the word policy, and what comes of it. The services are
// those of catalog.yaml unless it names others.
type policyCase struct {
	args   string // fields
	code   int
	stdout string
	stderr string
}

func (c policyCase) check(t *testing.T) {
	t.Helper()
	args := append([]string{"policy"}, strings.Fields(c.args)...)
	if !slices.Contains(args, "--catalog") {
		args = append(args, "--catalog", "catalog.yaml")
	}
	expectCtl(t, c.code, c.stdout, c.stderr, args...)
}

const (
	rule1 = "rule 1 (owner.yaml:12: fqdn *.pay.example, labels tier=public to spiffe://partner.example/*)"
	rule2 = "rule 2 (owner.yaml:15: tags sample to spiffe://partner.example/**,*.dns.example,spiffe://later.example/coredns)"
	rule3 = "rule 3 (owner.yaml:19: everything to spiffe://acme.example/ns/*)"

	shopShaped = `  fqdn       shop.fed.example
  instances  v1/HTTPS
  endpoints  192.0.2.10:443
  changes    with 1 of 2 endpoints and 1 of 2 instances, stripped of descriptions, tags, labels, metadata
`
	apiShaped = `  fqdn       api.pay.partner.example
  instances  v1/HTTP
  endpoints  192.0.2.20:80
  changes    as api.pay.partner.example in place of api.pay.example
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
			"not told: no rule is for this consumer\n  consumer   spiffe://stranger.example/coredns\n", ""},
		{"who-can owner.yaml vault", 0, "vault: told to 1 of 4 consumers\n" +
			"told by " + rule3 + "\n  fqdn       vault.fed.example\n  instances  v1/TCP\n  endpoints  192.0.2.40:80\n  consumer   spiffe://acme.example/ns/dns\n" +
			"not told: " + vaultHidden + "\n  consumer   spiffe://partner.example/coredns\n  consumer   a.dns.example\n" +
			"not told: no rule is for this consumer\n  consumer   spiffe://stranger.example/coredns\n", ""},
		{"who-can everything.yaml api.pay.example", 0, "api.pay.example: service api is told to 4 of 4 consumers\n" +
			"told: a catalog without exports tells every consumer everything\n" + apiWhole +
			"  consumer   spiffe://acme.example/ns/dns\n  consumer   spiffe://partner.example/coredns\n  consumer   a.dns.example\n  consumer   spiffe://stranger.example/coredns\n", ""},
		{"who-can nothing.yaml api", 1, "api: told to 0 of 4 consumers\nnot told: no rule is for this consumer\n" +
			"  consumer   spiffe://acme.example/ns/dns\n  consumer   spiffe://partner.example/coredns\n  consumer   a.dns.example\n  consumer   spiffe://stranger.example/coredns\n", ""},
	} {
		c.check(t)
	}
	// By the name that one of the consumers knows.
	_, byAlias, _ := ctl(t, "policy", "who-can", "owner.yaml", "--catalog", "catalog.yaml", "api.pay.partner.example")
	_, byName, _ := ctl(t, "policy", "who-can", "owner.yaml", "--catalog", "catalog.yaml", "api")
	if want := strings.Replace(byName, "api: ", "api.pay.partner.example: service api is ", 1); byAlias != want {
		t.Errorf("who-can says of an alias\n%s\nexpected\n%s", byAlias, want)
	}
}

// TestPolicyJSON reads what scripts get.
func TestPolicyJSON(t *testing.T) {
	policyFiles(t)
	for _, tt := range []struct {
		args, want string
		code       int
	}{
		{"test owner.yaml --as spiffe://partner.example/coredns api ledger", `{"asked":"api","name":"api","fqdn":"api.pay.example","told":true,"rule":{"number":1,"file":"owner.yaml","line":12,"match":"fqdn *.pay.example, labels tier=public","to":"spiffe://partner.example/*"},"as":"api.pay.partner.example","service":{"name":"api","labels":{"tier":"public"},"fqdn":"api.pay.partner.example","endpoints":[{"address":"192.0.2.20","port":80}],"instances":[{"id":"v1","protocol":"HTTP"}]},"changes":"as api.pay.partner.example in place of api.pay.example"}
{"asked":"ledger","name":"ledger","fqdn":"ledger.pay.example","told":false,"reason":"it does not meet the labels of rule 1, the tags of rule 2"}
`, 1},
		{"who-can owner.yaml ledger", `{"asked":"ledger","name":"ledger","fqdn":"ledger.pay.example","told":[{"consumers":["spiffe://acme.example/ns/dns"],"rule":{"number":3,"file":"owner.yaml","line":19,"match":"everything","to":"spiffe://acme.example/ns/*"},"as":"ledger.pay.example","service":{"name":"ledger","fqdn":"ledger.pay.example","endpoints":[{"address":"192.0.2.30","port":80}],"instances":[{"id":"v1","protocol":"HTTP"}]}}],"notTold":[{"consumers":["spiffe://partner.example/coredns"],"reason":"it does not meet the labels of rule 1, the tags of rule 2"},{"consumers":["a.dns.example"],"reason":"it does not meet the tags of rule 2"},{"consumers":["spiffe://stranger.example/coredns"],"reason":"no rule is for this consumer"}]}
`, 0},
	} {
		policyCase{tt.args + " -o json", tt.code, tt.want, ""}.check(t)
	}
}

// TestPolicyMistakes has questions that have no answer.
func TestPolicyMistakes(t *testing.T) {
	policyFiles(t)
	const (
		hint = "federationctl: see 'federationctl policy %s --help'\n"
		as   = " --as spiffe://partner.example/coredns"
	)
	write(t, "bad.yaml", strings.Replace(policyText, "[stable]", "[stable, \"*\"]", 1))
	write(t, "nobody.yaml", strings.Replace(policyText, "consumers.txt", "none.txt", 1))
	write(t, "broken-catalog.yaml", strings.Replace(policyCatalog, "protocol: TCP", "protocol: UDP", 1))
	write(t, "named.yaml", strings.Replace(policyText, "- sources:", "- server_name: a.owner.example\n  sources:", 1))
	for _, c := range []policyCase{
		{"test owner.yaml" + as, 2, "", "federationctl: test takes CONFIG and a NAME, or several, not 1 argument\n" + fmt.Sprintf(hint, "test")},
		{"test owner.yaml api", 2, "", "federationctl: required flag(s) \"as\" not set\n" + fmt.Sprintf(hint, "test")},
		{"who-can owner.yaml", 2, "", "federationctl: who-can takes CONFIG and a NAME, not 1 argument\n" + fmt.Sprintf(hint, "who-can")},
		{"who-can nobody.yaml api", 2, "", "federationctl: allow file: stat none.txt: no such file or directory\n"},
		{"who-can bad.yaml api", 2, "", "federationctl: configuration file bad.yaml: line 17: catalogs[0].exports[1].endpoints.labels[1]: is taken as it is written, and \"*\" stands for nothing here; leave the list out for all; 'federationctl check bad.yaml' shows each mistake in a line\n"},
		{"test named.yaml api" + as, 2, "", "federationctl: named.yaml does not have the default catalog; choose with --server-name: catalog a.owner.example\n"},
		{"test owner.yaml api --server-name b.example" + as, 2, "", "federationctl: owner.yaml does not have catalog b.example; choose with --server-name: the default catalog\n"},
		{"test owner.yaml api --catalog broken-catalog.yaml" + as, 2, "", `federationctl: broken-catalog.yaml: line 27: service "vault": instances[0].protocol: "UDP" is none of HTTP, HTTPS, GRPC, HTTP2, MONGO, TCP, TLS, MTLS; 'federationctl check broken-catalog.yaml' shows each mistake in a line` + "\n"},
		{"test owner.yaml api --max-catalog 9 --catalog catalog.yaml" + as, 2, "", "federationctl: catalog.yaml is larger than allowed: it has " + fmt.Sprint(len(policyCatalog)) + " bytes, the limit is 9; --max-catalog raises it\n"},
	} {
		c.check(t)
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
	for _, args := range []string{"test owner.yaml --as spiffe://partner.example/coredns shop.fed.example", "who-can owner.yaml shop.fed.example"} {
		for _, format := range formats {
			_, stdout, stderr := ctl(t, append([]string{"policy", "-o", format, "--catalog", "catalog.yaml"}, strings.Fields(args)...)...)
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
