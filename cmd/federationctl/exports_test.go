package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
