package kubernetes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
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

// testConsumers has a consumer refuse a service, and another source hide it.
func testConsumers(t *testing.T, c *cluster) {
	c.namespace("consumers")
	c.create(service("consumers", "a", "192.0.2.1"))
	c.export("v1beta1", "consumers", "a")
	r := c.run(func(config *Config) { config.Namespaces = []string{"consumers"} })
	says := func(kind, want string) {
		t.Helper()
		until(t, "the condition is "+want, func() bool {
			status, reason, message := c.condition("consumers", "a", kind)
			return strings.HasPrefix(status+" "+reason+" "+message, want)
		})
	}
	says("Ready", "True")
	r.RefusedBy(registry.Refusal{Service: "west/consumers/a", Consumer: "spiffe://x", Rule: "not wanted"})
	says(export.Accepted, "False RefusedByConsumer spiffe://x: not wanted")
	r.HiddenBy("west/consumers/a", "file west/consumers/a")
	says("Ready", "False Hidden")
	r.HiddenBy("west/consumers/a", "")
	says("Ready", "True")
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
