package kubernetes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/source/kubernetes/export"
)

// quiet waits until the sources seem to have nothing more to write. Where a machine is busy
// they may be slow only: what they have to write is to be waited for before.
func quiet(t *testing.T, runners ...*runner) {
	t.Helper()
	before, since := "", time.Now()
	until(t, "silence", func() bool {
		now := ""
		for _, r := range runners {
			now += fmt.Sprint(r.requests.of("PATCH serviceexports/status"), ";")
		}
		if now != before {
			before, since = now, time.Now()
		}
		return time.Since(since) > 500*time.Millisecond
	})
}

// testReplicas has two sources know what has become of the same objects. One of them tells
// these, and when that ends, the other.
func testReplicas(t *testing.T, c *cluster) {
	const n = 20
	c.namespace("replicas")
	for i := range n {
		name := fmt.Sprintf("s%d", i)
		if i%2 == 0 {
			c.create(service("replicas", name, "192.0.2.1"))
		}
		c.export("v1beta1", "replicas", name)
	}
	change := func(config *Config) { config.Namespaces = []string{"replicas"} }
	writes := func(r *runner) int { return r.requests.of("PATCH serviceexports/status") }
	a := c.run(change)
	until(t, "a leader", func() bool { return writes(a) > 0 })
	b := c.run(change)
	for _, r := range []*runner{a, b} {
		until(t, "everything", func() bool { return len(strings.Fields(r.names())) == n/2 && r.back() })
	}
	told := func(name, want string) {
		t.Helper()
		until(t, "the condition of "+name+" is "+want, func() bool {
			status, reason, _ := c.condition("replicas", name, "Ready")
			return status+" "+reason == want
		})
	}
	for i := range n {
		told(fmt.Sprintf("s%d", i), [...]string{"True Exported", "False NoService"}[i%2])
	}
	quiet(t, a, b)
	if writes(a) != n || writes(b) != 0 {
		t.Errorf("%d writes of the leader and %d of the other for %d exports", writes(a), writes(b), n)
	}
	for name, e := range a.services {
		if !e.Equal(b.services[name]) {
			t.Errorf("%s differs between replicas", name)
		}
	}

	// A change costs no request but those of the watches that are open.
	before := c.requestsOf(a)
	c.moveTo("replicas", "s0", "192.0.2.9")
	until(t, "the change", func() bool { return a.has("west/replicas/s0", "192.0.2.9") })
	quiet(t, a, b)
	if after := c.requestsOf(a); after != before {
		t.Errorf("requests of a change: %d", after-before)
	}

	// The leader ends, gives the lease up, and nothing is said again that is said.
	a.stop()
	c.create(service("replicas", "s1", "192.0.2.1"))
	told("s1", "True Exported")
	third := c.run(change)
	until(t, "everything once more", func() bool { return len(strings.Fields(third.names())) == n/2+1 && third.back() })
	quiet(t, b, third)
	if writes(a) != n || writes(b) != 1 || writes(third) != 0 {
		t.Errorf("%d, %d and %d writes, want %d, 1 and none", writes(a), writes(b), writes(third), n)
	}
}

// testZones has two owners publish one cluster in two zones, and one of them refuse what the
// other takes. They share the conditions, and do not take turns in them.
func testZones(t *testing.T, c *cluster) {
	c.namespace("zones")
	for _, name := range []string{"a", "b", "named"} {
		s := service("zones", name, "192.0.2.1")
		if name == "named" {
			s.Annotations = map[string]string{"hamlet-federation.github.io/fqdn": "named.zones.east.fed.example"}
		}
		c.create(s)
		c.export("v1beta1", "zones", name)
	}
	run := func(zone string) *runner {
		t.Helper()
		return c.run(func(config *Config) {
			fqdn, err := federation.ParseFQDN(zone)
			c.must(err)
			config.Namespaces, config.Rules.Zone = []string{"zones"}, fqdn
		})
	}
	west, east := run("west.fed.example"), run("east.fed.example")
	until(t, "everything in the west", func() bool { return west.names() == "west/zones/a west/zones/b" && west.back() })
	until(t, "everything in the east", func() bool { return len(strings.Fields(east.names())) == 3 && east.back() })
	for _, name := range []string{"a", "b", "named"} {
		until(t, "a condition of "+name, func() bool { status, _, _ := c.condition("zones", name, "Ready"); return status != "" })
	}
	quiet(t, west, east)
	if writes := west.requests.of("PATCH serviceexports/status") + east.requests.of("PATCH serviceexports/status"); writes > 2*3 {
		t.Errorf("%d writes of conditions for 3 exports", writes)
	}
	c.moveTo("zones", "a", "192.0.2.2")
	until(t, "a change", func() bool { return west.has("west/zones/a", "192.0.2.2") && east.has("west/zones/a", "192.0.2.2") })
	quiet(t, west, east)
}

// requestsOf returns how many requests a source has made that are not about whether the
// server is there, what it serves, and who leads.
func (c *cluster) requestsOf(r *runner) (n int) {
	for what, times := range r.requests.all() {
		if !strings.HasPrefix(what, "GET ") && !strings.Contains(what, "hamlet-federation-") {
			n += times
		}
	}
	return n
}

// testConsumers has consumers refuse a service, and another source hide it.
func testConsumers(t *testing.T, c *cluster) {
	c.namespace("consumers")
	c.create(service("consumers", "a", "192.0.2.1"))
	c.export("v1beta1", "consumers", "a")
	r := c.run(func(config *Config) { config.Namespaces = []string{"consumers"} })
	until(t, "everything", func() bool { return r.names() == "west/consumers/a" && r.back() })
	until(t, "the condition", func() bool { status, _, _ := c.condition("consumers", "a", "Ready"); return status == "True" })
	accepted := func() string {
		status, reason, message := c.condition("consumers", "a", export.Accepted)
		return strings.TrimSpace(status + " " + reason + " " + message)
	}
	if got := accepted(); got != "" {
		t.Errorf("the condition of consumers is %s before there are any", got)
	}
	refuse := func(consumer, rule string) {
		r.RefusedBy(registry.Refusal{Service: "west/consumers/a", Consumer: consumer, Rule: rule})
	}
	refuse("spiffe://x", "not wanted")
	until(t, "the refusal", func() bool { return accepted() == "False RefusedByConsumer spiffe://x: not wanted" })
	refuse("spiffe://y", "too long")
	until(t, "both", func() bool { return strings.HasSuffix(accepted(), "spiffe://x: not wanted; spiffe://y: too long") })
	refuse("spiffe://x", "")
	until(t, "the other", func() bool { return accepted() == "False RefusedByConsumer spiffe://y: too long" })
	c.moveTo("consumers", "a", "192.0.2.2")
	until(t, "the change ends it", func() bool { return accepted() == "" })

	r.Hidden("west/consumers/a", "file west/consumers/a")
	until(t, "the other source", func() bool { _, reason, _ := c.condition("consumers", "a", "Ready"); return reason == "Hidden" })
	r.Hidden("west/consumers/a", "")
	until(t, "the end of it", func() bool { status, _, _ := c.condition("consumers", "a", "Ready"); return status == "True" })
	quiet(t, r)
	if n := c.requestsOf(r); n > 30 {
		t.Errorf("%d requests", n)
	}
}

// testOtherController has another controller keep a condition of the same type.
func testOtherController(t *testing.T, c *cluster) {
	c.namespace("others")
	c.create(service("others", "a", "192.0.2.1"))
	c.export("v1beta1", "others", "a")
	patch := `{"apiVersion":"multicluster.x-k8s.io/v1beta1","kind":"ServiceExport","metadata":{"name":"a"},"status":{"conditions":[` +
		`{"type":"Ready","status":"False","reason":"Other","message":"theirs","lastTransitionTime":"2020-01-01T00:00:00Z"}]}}`
	_, err := c.Dynamic.Resource(serviceExports).Namespace("others").Patch(t.Context(), "a", types.ApplyYAMLPatchType, []byte(patch), metav1.PatchOptions{FieldManager: "other"}, "status")
	c.must(err)
	r := c.run(func(config *Config) { config.Namespaces = []string{"others"} })
	until(t, "the line in the log", func() bool { return strings.Contains(r.log.String(), "another controller writes") })
	c.moveTo("others", "a", "192.0.2.2")
	until(t, "the change", func() bool { return r.has("west/others/a", "192.0.2.2") })
	quiet(t, r)
	if _, reason, _ := c.condition("others", "a", "Ready"); reason != "Other" {
		t.Errorf("the reason is %s", reason)
	}
	if writes := r.requests.of("PATCH serviceexports/status"); writes != 1 {
		t.Errorf("%d attempts to write the condition", writes)
	}

	// The author deletes the export and creates it again: nobody keeps the new one.
	c.unexport("v1beta1", "others", "a")
	c.export("v1beta1", "others", "a")
	until(t, "the condition of the new one", func() bool { status, _, _ := c.condition("others", "a", "Ready"); return status == "True" })
}
