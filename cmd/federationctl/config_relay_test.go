package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
)

// watched returns what watch --once prints of the owner's catalog, with the order of its
// services taken out, or why it fails.
func (c *configured) watched(t *testing.T) string {
	t.Helper()
	files := filesOf(c.dir, "consumer")
	code, stdout, stderr := ctl(t, "watch", c.address, "--cert", files.Cert, "--key", files.Key, "--ca", files.CA, "--owner-id", pkiOwnerID, "--once", "-o", "json")
	if code != exitDone {
		return stderr
	}
	return strings.Join(slices.Sorted(strings.Lines(stdout)), "")
}

// TestConfigRelay relays an owner that goes away and comes back, as it is and under other
// names.
func TestConfigRelay(t *testing.T) {
	t.Parallel()
	address, err := loopback.FreeAddress() // which nobody takes while the origin is away
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(ownerText, `ids: ["`, `ids: ["`+pkiOwnerID+`", "`, 1)
	text = strings.Replace(text, `listen: "127.0.0.1:0"`, `listen: "`+address+`"`, 1)
	origin := serveConfig(t, text, map[string]string{"catalog.yaml": oneService("a") + strings.TrimPrefix(oneService("b"), "services:\n")})
	beginning, _, _ := strings.Cut(ownerText, "catalogs:")
	relay := beginning + "catalogs:\n- relay: {addresses: [\"" + origin.address + "\"], owner_ids: [\"" + pkiOwnerID + "\"], persist: kept}\n"
	files := filesOf(origin.dir, "owner") // of one authority
	relay = strings.Replace(relay, "{cert: owner.pem, key: owner-key.pem, ca: ca.pem}", fmt.Sprintf("{cert: %q, key: %q, ca: %q}", files.Cert, files.Key, files.CA), 1)
	relay = withStatus(relay)
	c := serveConfig(t, relay, nil)
	c.dir = origin.dir
	source := "relay:" + pkiOwnerID
	c.metrics(map[string]float64{
		`services`: 2, `catalog_unavailable`: 0, `relay_hops{source="` + source + `"}`: 1, `source_services{source="` + source + `"}`: 2,
	})
	c.shows("", `"relay":{"id":"`+pkiOwnerID+`","state":"synced"`)
	if want, got := origin.watched(t), strings.Replace(c.watched(t), `{"op":"end","hops":2}`, `{"op":"end"}`, 1); got != want || !strings.Contains(got, "b.fed.example") {
		t.Errorf("the relay tells\n%sand the origin\n%s", got, want)
	}
	write(t, c.file, relay+"  exports:\n  - to: [\"*\"]\n    as: {fed.example: relayed.example}\n")
	eventually(t, func() string {
		if got := c.watched(t); !strings.Contains(got, "b.relayed.example") || strings.Contains(got, "fed.example") {
			return got
		}
		return ""
	})
	if code := origin.stop(); code != exitDone {
		t.Errorf("the origin ended with exit code %d", code)
	}
	c.shows("", `"unavailable":"`+source+` is away"`)
	c.explains("a.fed.example", "follows "+pkiOwnerID+": stale")
	code, stdout, stderr := ctl(t, "retry", "--at", "http://"+c.status)
	if want := pkiOwnerID + " was stale and is tried now"; code != exitDone || !strings.HasPrefix(stdout, want) {
		t.Errorf("retry ended with exit code %d: %s%s", code, stdout, stderr)
	}
	if code, _, stderr := ctl(t, "retry", "--of", "east", "--at", "http://"+c.status); code != exitFailed || !strings.Contains(stderr, `no owner or catalog "east"; there are [""]`) {
		t.Errorf("retry of another catalog ended with exit code %d: %s", code, stderr)
	}
	if got := c.watched(t); !strings.Contains(got, "Unavailable") {
		t.Errorf("a consumer gets %q", got)
	}
	if code := c.stop(); code != exitDone {
		t.Errorf("serve ended with exit code %d; standard error:\n%s", code, c.errs)
	}

	c.start(nil) // what it keeps is for nobody
	c.shows("", `"stale":2`)
	c.shows("readyz", "not ready\ncatalog (default): waiting for the first state of "+source)
	if got := c.watched(t); !strings.Contains(got, "the catalog is not available just now") {
		t.Errorf("a consumer gets %q", got)
	}
	origin.start(nil)
	c.metrics(map[string]float64{`services`: 2, `catalog_unavailable`: 0})
	origin.metrics(map[string]float64{`resumed_streams_total`: 1, `resume_spared_services_total`: 2})
	if got := c.watched(t); !strings.Contains(got, "a.relayed.example") {
		t.Errorf("a consumer gets %q", got)
	}
}
