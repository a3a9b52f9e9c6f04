package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// withStatus adds the key status to a configuration.
func withStatus(text string) string { return "status: \"127.0.0.1:0\"\n" + text }

// ask reads what the owner says under a path of its status.
func (c *configured) ask(path string, into any) {
	c.t.Helper()
	response := must.Get(http.Get("http://" + c.status + path))(c.t)
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		c.t.Fatalf("%s is %s", path, response.Status)
	}
	must.Do(c.t, json.NewDecoder(response.Body).Decode(into))
}

// why returns the explanation of a name.
func (c *configured) why(name string) string {
	c.t.Helper()
	var why status.NameExplanation
	c.ask("/v1/why?name="+url.QueryEscape(name), &why)
	return strings.Join(why.Lines(), "\n")
}

// explains waits until the explanation of a name has a text.
func (c *configured) explains(name, text string) {
	c.t.Helper()
	eventually(c.t, func() string {
		if got := c.why(name); !strings.Contains(got, text) {
			return fmt.Sprintf("no %q in\n%s", text, got)
		}
		return ""
	})
}

// twoSources has two sources that want one fqdn, and rules for two consumers.
var twoSources = strings.Replace(withStatus(exporting), "  exports:", "  - file: {path: second.yaml}\n  exports:", 1)

// TestWhy asks an owner with exports why names are told, and to whom. Its audit says the same.
func TestWhy(t *testing.T) {
	service := func(name, fqdn string) string { return strings.Replace(oneService(name), name+".fed", fqdn+".fed", 1) }
	c := serveConfig(t, twoSources, map[string]string{"catalog.yaml": exportedText, "second.yaml": service("copy", "shop")})
	consumer, partner := c.watches("consumer"), c.watches("partner")
	consumer.tells("upsert shop shop.fed.example", "end")
	partner.tells("upsert pay pay.partner.example", "end")
	c.explains("shop.fed.example", "class 1 (1 consumer now)")
	c.explains("v1.shop.fed.example", "class 1")
	c.explains("copy", "hidden, so nobody is told")
	c.explains("pay.partner.example", "as pay.partner.example")
	c.explains("secret.other.example", "not told to class")
	c.explains("nobody.fed.example", "not in catalog")
	c.explains("v9.shop.fed.example", "not in catalog")

	// v1alpha1 cannot say a service without a SAN.
	background(t, slices.Concat([]string{"watch", "-o", "json", "--api", "v1alpha1", "--owner-id", pkiOwnerID, c.address}, files(c.dir, "consumer"))...)
	c.explains("shop.fed.example", "withheld: consumers of v1alpha1")
	c.metrics(map[string]float64{`class_consumers{class="1"}`: 2, `class_services{class="1"}`: 1, `class_consumers{class="2"}`: 1})
	const line = `level=INFO msg="service told" catalog="" consumer=` + partnerID + ` service=pay fqdn=pay.partner.example rule=2` + "\n"
	if !strings.Contains(c.errs.String(), line) {
		t.Errorf("the log has no line %q:\n%s", line, c.errs)
	}
}

// TestStatusTurnedAway has consumers that do not get in: one that is not named in allow, and
// one whose certificate is of an authority that the owner does not know. The status of the
// owner says who it was, and why.
func TestStatusTurnedAway(t *testing.T) {
	c := serveConfig(t, withStatus(ownerText), map[string]string{"catalog.yaml": oneService("a")})
	said := func(times, index int, rule, remedy string) {
		t.Helper()
		eventually(t, func() string {
			var s status.Status
			c.ask("/v1/status", &s)
			if len(s.Publisher.TurnedAway) <= index {
				return "nobody was turned away"
			}
			of := s.Publisher.TurnedAway[index]
			if of.Times < times || of.Role != "consumer" || of.Identities != partnerID || !strings.Contains(of.Rule, rule) || !strings.Contains(of.Remedy, remedy) {
				return fmt.Sprintf("turned away: %+v", of)
			}
			return ""
		})
	}
	for range 2 {
		if code := subscribe(t, c.as("partner", "owner.example")).ends(); code != codes.Unauthenticated {
			t.Errorf("a consumer that is not allowed gets %v", code)
		}
	}
	const notAllowed, allow = "its certificate carries no identity that is allowed", "name one of these identities in allow"
	said(2, 0, notAllowed, allow)
	foreign := partiesIn(t)
	background(t, slices.Concat([]string{"watch", "--owner-id", pkiOwnerID, c.address}, files(foreign, "partner")[:4], files(c.dir, "partner")[4:])...)
	said(1, 0, "x509: certificate signed by unknown authority", "/ca.pem")
	said(2, 1, notAllowed, allow)
}

// TestServeStatus asks an owner without a configuration file, which takes loopback
// addresses only.
func TestServeStatus(t *testing.T) {
	dir := pkiIn(t)
	catalog := write(t, filepath.Join(dir, "catalog.yaml"), catalogText)
	owner, _ := runServe(t, dir, catalog, "--status", "127.0.0.1:0")
	c := &configured{running: owner, dir: dir}
	must.Get(fmt.Sscanf(owner.line(), "status on %s", &c.status))(t)
	code, stdout, stderr := ctl(t, "services", "--at", "http://"+c.status, "-o", "json")
	if code != exitDone || strings.Count(stdout, "\n") != 2 || !strings.Contains(stdout, "shop.fed.example") || stderr != "" {
		t.Errorf("services: exit code %d, %q, %q", code, stdout, stderr)
	}
	code, _, stderr = ctl(t, slices.Concat([]string{"serve", "--status", ":9154", "--catalog", catalog, "--allow-any"}, files(dir, "owner"))...)
	if code != exitUsage || !strings.Contains(stderr, "is not a loopback address") {
		t.Errorf("with all addresses serve ends with exit code %d and %q", code, stderr)
	}
}
