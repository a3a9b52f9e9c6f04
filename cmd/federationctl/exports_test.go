package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// watches follows the owner with the command watch, as a party.
func (c *configured) watches(party string) *running {
	c.t.Helper()
	return background(c.t, slices.Concat([]string{"watch", "-o", "json", "--owner-id", pkiOwnerID, c.address}, files(c.dir, party))...)
}

// tells compares the next lines of a watch, of which each is operation, name and fqdn.
func (r *running) tells(want ...string) {
	r.t.Helper()
	var got []string
	for range want {
		var line struct {
			Op      string `json:"op"`
			Name    string `json:"name"`
			Service struct {
				FQDN        string `json:"fqdn"`
				Description string `json:"description"`
			} `json:"service"`
		}
		must.Do(r.t, json.Unmarshal([]byte(r.line()), &line))
		got = append(got, strings.Join(strings.Fields(line.Op+" "+line.Name+" "+line.Service.FQDN+" "+line.Service.Description), " "))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		r.t.Errorf("unexpected lines (-want +got):\n%s", diff)
	}
}

// exportedText has services of two tiers.
const exportedText = `services:
- {name: pay, fqdn: pay.fed.example, description: internal, labels: {tier: private}, endpoints: [{address: 192.0.2.20, port: 80}], instances: [{id: v1, protocol: HTTP}]}
- {name: secret, fqdn: secret.other.example, endpoints: [{address: 192.0.2.21, port: 80}], instances: [{id: v1, protocol: HTTP}]}
- {name: shop, fqdn: shop.fed.example, labels: {tier: public}, endpoints: [{address: 192.0.2.22, port: 80}], instances: [{id: v1, protocol: HTTP}]}
`

// openText tells everything to two consumers.
const openText = `audit: true
listen: "127.0.0.1:0"
metrics: "127.0.0.1:0"
identity:
  files: {cert: owner.pem, key: owner-key.pem, ca: ca.pem}
allow:
  ids: ["` + pkiConsumerID + `", "` + partnerID + `"]
catalogs:
- sources:
  - file: {path: catalog.yaml}
`

// exporting tells them different things.
const exporting = openText + `  exports:
  - match: {labels: {tier: public}}
    to: ["` + pkiConsumerID + `"]
  - match: {fqdn: ["*.fed.example"], labels: {tier: private}}
    to: ["spiffe://partner.example/*"]
    as: {fed.example: partner.example}
    strip: [description]
`

// TestExports has two consumers that are told different things. Edits of the exports
// move services in and out of what their open streams see.
func TestExports(t *testing.T) {
	c := serveConfig(t, exporting, map[string]string{"catalog.yaml": exportedText})
	c.metrics(map[string]float64{`services`: 3}) // before that a stream ends, which is told as well
	consumer, partner := c.watches("consumer"), c.watches("partner")
	consumer.tells("upsert shop shop.fed.example", "end")
	partner.tells("upsert pay pay.partner.example", "end")
	c.metrics(map[string]float64{
		`services`: 3, `consumers{version="v1alpha2"}`: 2,
		`class_consumers{class="1"}`: 1, `class_services{class="1"}`: 1, `class_consumers{class="2"}`: 1, `class_services{class="2"}`: 1,
	})
	c.shows("", `"classes":[{"name":"1","consumers":1,"services":1},{"name":"2","consumers":1,"services":1}]`)

	// The consumer may be told more, and the partner less.
	write(t, c.file, strings.NewReplacer("- match: {labels: {tier: public}}", "- match: {fqdn: [\"*.fed.example\"]}", "tier: private}}", "tier: secret}}").Replace(exporting))
	consumer.tells("upsert pay pay.fed.example internal")
	partner.tells("delete pay")

	// A broken edit changes nothing, and is reported.
	write(t, c.file, strings.Replace(exporting, "match: {fqdn", "match: {fdqn", 1))
	c.metrics(map[string]float64{`file_broken{file="config"}`: 1, `class_services{class="1"}`: 2, `class_services{class="2"}`: 0})
	c.shows("", `"config":"configuration file `+c.file+": line 14: catalogs[0].exports[1].match.fdqn: there is no such key; those that there are: fqdn, labels, tags")

	// Another rule comes first: one service goes, another one comes, a third changes.
	write(t, c.file, strings.Replace(exporting, "  exports:\n", "  exports:\n  - match: {fqdn: [\"*.other.example\", pay.fed.example]}\n    to: [\"*\"]\n    as: {other.example: fed.example}\n    strip: [description]\n", 1))
	consumer.tells("upsert secret secret.fed.example", "upsert pay pay.fed.example")
	partner.tells("upsert pay pay.fed.example", "upsert secret secret.fed.example")
	c.metrics(map[string]float64{`file_broken{file="config"}`: 0, `class_services{class="1+2"}`: 3, `class_services{class="1+3"}`: 2})

	// What changes in the catalog moves services as well.
	write(t, c.dir+"/catalog.yaml", strings.Replace(exportedText, "tier: public", "tier: internal", 1))
	consumer.tells("delete shop")

	// Nobody is told anything, and then everybody everything.
	write(t, c.file, openText+"  exports: []\n")
	consumer.tells("delete pay", "delete secret")
	partner.tells("delete pay", "delete secret")
	c.metrics(map[string]float64{`class_consumers{class="none"}`: 2, `class_services{class="none"}`: 0})
	write(t, c.file, openText)
	everything := []string{"upsert pay pay.fed.example internal", "upsert secret secret.other.example", "upsert shop shop.fed.example"}
	consumer.tells(everything...)
	partner.tells(everything...)

	for _, watch := range []*running{consumer, partner} {
		if watch.stop(); watch.errs.String() != "" {
			t.Errorf("a stream ended meanwhile: %s", watch.errs)
		}
	}
	if code := c.stop(); code != exitDone {
		t.Errorf("serve ended with exit code %d; standard error:\n%s", code, c.errs)
	}
	for _, line := range []string{
		`level=INFO msg="service told" catalog="" consumer=` + partnerID + ` service=pay fqdn=pay.partner.example rule=2` + "\n",
		`level=INFO msg="service told" catalog="" consumer=` + partnerID + ` service=secret fqdn=secret.fed.example rule=1` + "\n",
		`level=INFO msg="service withdrawn" catalog="" consumer=` + pkiConsumerID + ` service=shop reason=`,
	} {
		if !strings.Contains(c.errs.String(), line) {
			t.Errorf("the log has no line %q:\n%s", line, c.errs)
		}
	}
}

// TestSPIFFEAgentAway has an owner whose agent is away: it listens, and says what it
// waits for.
func TestSPIFFEAgentAway(t *testing.T) {
	text := strings.Replace(ownerText, "files: {cert: owner.pem, key: owner-key.pem, ca: ca.pem}", "spiffe: {socket: \"unix:///nowhere/agent.sock\"}", 1)
	c := serveConfig(t, text, map[string]string{"catalog.yaml": oneService("a")})
	want := "not ready\nthere is no certificate yet from the SPIFFE agent at unix:///nowhere/agent.sock\n"
	eventually(t, func() string { // the catalog is complete soon
		if code, body := c.get("readyz"); code != http.StatusServiceUnavailable || body != want {
			return fmt.Sprintf("/readyz is %d, %q, expected %q", code, body, want)
		}
		return ""
	})
	code, stdout, stderr := ctl(t, slices.Concat([]string{"watch", "--once", c.address}, files(c.dir, "consumer"))...)
	if code != exitFailed || stdout != "" || !strings.Contains(stderr, "handshake") {
		t.Errorf("watch ended with exit code %d, standard output %q, standard error %q", code, stdout, stderr)
	}
	if _, page := c.get(""); strings.Contains(page, "certificate:") {
		t.Errorf("the status tells of a certificate:\n%s", page)
	}
	if _, metrics := c.get("metrics"); strings.Contains(metrics, "certificate_expiry_timestamp_seconds{") {
		t.Error("there is a metric of a certificate")
	}
	if code := c.stop(); code != exitDone || !strings.Contains(c.errs.String(), "the SPIFFE agent is away") {
		t.Errorf("serve ended with exit code %d; standard error:\n%s", code, c.errs)
	}
}

// TestDocumentedExports evaluates the example in docs/owner.md, whose table says what
// becomes of some services.
func TestDocumentedExports(t *testing.T) {
	document := must.Get(os.ReadFile("../../docs/owner.md"))(t)
	example := regexp.MustCompile("(?s)## An example between two organisations.*?```yaml\n(.*?)```").FindSubmatch(document)
	if example == nil {
		t.Fatal("docs/owner.md has no example")
	}
	config, problems, warnings := config.Check(example[1])
	if len(problems)+len(warnings) > 0 {
		t.Fatalf("problems %v, warnings %v", problems, warnings)
	}
	exports := config.Catalogs[0].Policy
	address := must.Get(federation.ParseAddress("192.0.2.1"))(t)
	for _, tt := range []struct {
		fqdn, tier, endpoint string
		want                 [3]string // for each of allow.ids
	}{
		{"checkout.pay.west.acme.example", "public", "edge", [3]string{"1 checkout.pay.acme.partner.example tier", "1 checkout.pay.acme.partner.example tier", "3 checkout.pay.west.acme.example tier"}},
		{"checkout.pay.west.acme.example", "public", "inner", [3]string{"1", "1", "3 checkout.pay.west.acme.example tier"}},
		{"shop.web.west.acme.example", "public", "edge", [3]string{"2 shop.web.acme.partner.example", "0", "3 shop.web.west.acme.example tier"}},
		{"db.web.west.acme.example", "private", "edge", [3]string{"0", "0", "3 db.web.west.acme.example tier"}},
	} {
		name := must.Get(federation.ParseFQDN(tt.fqdn))(t)
		s := &federation.Service{
			Name: "west/a/b", FQDN: name, Labels: []federation.Pair{{Key: "tier", Value: tt.tier}},
			Endpoints: []federation.Endpoint{{Address: address, Port: 80, Labels: []string{tt.endpoint}}},
			Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTP}},
		}
		must.Do(t, s.Validate())
		for i, id := range config.Allow.IDs {
			class := exports.Class([]federation.ID{id})
			if rules := fmt.Sprint(class.Rules()); rules != []string{"[1 2]", "[1]", "[3]"}[i] {
				t.Errorf("the rules of %v are %s", id, rules)
			}
			d := exports.Explain(class, s)
			got := strconv.Itoa(d.Rule)
			if d.Service != nil {
				got += " " + strings.TrimSuffix(d.Service.FQDN.String(), ".")
				for _, label := range d.Service.Labels {
					got += " " + label.Key
				}
			}
			if got != tt.want[i] {
				t.Errorf("%s is %q for %v, expected %q", tt.fqdn, got, id, tt.want[i])
			}
		}
	}
}
