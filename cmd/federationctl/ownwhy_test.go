package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

var updateWhy = flag.Bool("update-why", false, "write the explanations of owners to testdata")

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

// why returns the explanation of a name, without what differs from run to run.
func (c *configured) why(name string) string {
	c.t.Helper()
	var why status.Why
	c.ask("/v1/why?name="+url.QueryEscape(name), &why)
	text := strings.Join(why.Lines(), "\n") + "\n"
	for _, r := range [][2]string{
		{`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC`, "TIME"},
		{`\(\d+ (s|min|h|days)( \d+ min)?\)`, "(AGE)"},
		{`\d+ (s|min|h|days)( \d+ min)? ago`, "AGE ago"},
		{`in \d[0-9.a-z ]* \(TIME`, "in AGE (TIME"},
		{`127\.0\.0\.1:\d+`, "ADDRESS"},
		{`(?m) \([A-Z0-9]{20,}\)`, ""},
		{regexp.QuoteMeta(c.dir), "DIR"},
		{`nonce \d+`, "nonce N"},
	} {
		text = regexp.MustCompile(r[0]).ReplaceAllString(text, r[1])
	}
	return text
}

// explains waits until the explanation of a name has a text, and is the one in testdata:
// what its lines say comes one after the other.
func (c *configured) explains(golden, name, text string) {
	c.t.Helper()
	var got string
	has := func() string {
		if got = c.why(name); !strings.Contains(got, text) {
			return fmt.Sprintf("no %q in\n%s", text, got)
		}
		return ""
	}
	path := filepath.Join("testdata", "why", golden+".txt")
	if *updateWhy {
		eventually(c.t, has)
		must.Do(c.t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.Do(c.t, os.WriteFile(path, []byte(got), 0o644))
	}
	want := must.Get(os.ReadFile(path))(c.t)
	eventually(c.t, func() string {
		if why := has(); why != "" {
			return why
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			return fmt.Sprintf("%s (-want +got):\n%s", path, diff)
		}
		return ""
	})
}

// twoSources has two sources that want one fqdn, and rules for two consumers.
var twoSources = strings.Replace(withStatus(exporting), "  exports:", "  - file: {path: second.yaml}\n  exports:", 1)

// TestWhy asks an owner with exports why names are told, and to whom.
func TestWhy(t *testing.T) {
	service := func(name, fqdn string) string { return strings.Replace(oneService(name), name+".fed", fqdn+".fed", 1) }
	c := serveConfig(t, twoSources, map[string]string{"catalog.yaml": exportedText, "second.yaml": service("copy", "shop")})
	consumer, partner := c.watches("consumer"), c.watches("partner")
	consumer.tells("upsert shop shop.fed.example", "end")
	partner.tells("upsert pay pay.partner.example", "end")
	c.explains("told-to-one-class", "shop.fed.example", "class 1 (1 consumer now)")
	c.explains("instance", "v1.shop.fed.example", "class 1")
	c.explains("hidden", "copy", "hidden, so nobody is told")
	c.explains("renamed", "pay.partner.example", "as pay.partner.example")
	c.explains("told-to-nobody", "secret.other.example", "not told to class")
	c.explains("unknown", "nobody.fed.example", "not in catalog")
	if got := c.why("v9.shop.fed.example"); !strings.Contains(got, "not in catalog") {
		t.Errorf("an instance that there is not:\n%s", got)
	}

	// v1alpha1 cannot say a service without a SAN.
	background(t, slices.Concat([]string{"watch", "-o", "json", "--api", "v1alpha1", "--owner-id", pkiOwnerID, c.address}, files(c.dir, "consumer"))...)
	c.explains("withheld", "shop.fed.example", "withheld: consumers of v1alpha1")
}

// TestWhyEverybody asks an owner without exports.
func TestWhyEverybody(t *testing.T) {
	c := serveConfig(t, withStatus(ownerText), map[string]string{"catalog.yaml": oneService("a")})
	c.watches("consumer").tells("upsert a a.fed.example", "end")
	if got := c.why("a.fed.example"); !strings.Contains(got, "told to everybody (1 consumer now)") {
		t.Error(got)
	}
}

// TestWhyAway loses the origin of a source for longer than its lifetime.
func TestWhyAway(t *testing.T) {
	text := strings.Replace(withStatus(ownerText), "path: catalog.yaml", "path: catalog.yaml, lifetime: 1s", 1)
	c := serveConfig(t, text, map[string]string{"catalog.yaml": oneService("a")})
	c.metrics(map[string]float64{`services`: 1, `catalog_unavailable`: 0})
	must.Do(t, os.Remove(filepath.Join(c.dir, "catalog.yaml")))
	c.explains("away", "a.fed.example", "for more than 1s")
}

// TestWhyRelay loses the owner that a relay follows.
func TestWhyRelay(t *testing.T) {
	origin := serveConfig(t, strings.Replace(ownerText, `ids: ["`, `ids: ["`+pkiOwnerID+`", "`, 1), map[string]string{"catalog.yaml": oneService("a")})
	beginning, _, _ := strings.Cut(withStatus(ownerText), "catalogs:")
	relay := beginning + "catalogs:\n- relay: {addresses: [\"" + origin.address + "\"], owner_ids: [\"" + pkiOwnerID + "\"]}\n"
	files := filesOf(origin.dir, "owner") // of one authority
	relay = strings.Replace(relay, "{cert: owner.pem, key: owner-key.pem, ca: ca.pem}", fmt.Sprintf("{cert: %q, key: %q, ca: %q}", files.Cert, files.Key, files.CA), 1)
	c := serveConfig(t, relay, nil)
	c.metrics(map[string]float64{`services`: 1, `catalog_unavailable`: 0})
	if got := c.why("a.fed.example"); !strings.Contains(got, "published in catalog") {
		t.Errorf("while the origin is there:\n%s", got)
	}
	if code := origin.stop(); code != exitDone {
		t.Errorf("the origin ended with exit code %d", code)
	}
	eventually(t, func() string {
		if got := c.why("a.fed.example"); !strings.Contains(got, "follows spiffe://federation.example/owner: stale") || !strings.Contains(got, "is away") {
			return got
		}
		return ""
	})
	var why status.Why
	c.ask("/v1/why?name=a.fed.example", &why)
	if of := why.Catalogs[0]; len(of.Services) != 1 || of.Unavailable == "" || of.Sources[0].Relay == nil || of.Sources[0].Relay.Stale != 1 {
		t.Errorf("the relay explains %+v", of)
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
