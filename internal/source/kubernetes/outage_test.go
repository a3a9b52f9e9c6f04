package kubernetes

import (
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// quick is a pace at which tests need not wait.
var quick = pollPace{check: 100 * time.Millisecond, retry: 50 * time.Millisecond, grace: time.Second}

// withdrew fails the test where anything but names was ever taken away.
func (r *runner) withdrew(t *testing.T, names ...string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if got, want := strings.Join(r.withdrawn, " "), strings.Join(names, " "); got != want {
		t.Errorf("withdrawn: %q, want %q", got, want)
	}
	if r.replaced > 1 {
		t.Errorf("the part was replaced %d times", r.replaced)
	}
}

// testOutage has the server out of reach.
func testOutage(t *testing.T, c *cluster, ns string, breaks func(*realserver.Gate, bool), reason string) {
	c.namespace(ns)
	for _, name := range []string{"a", "b", "c"} {
		c.create(labelled(service(ns, name, "192.0.2.1")))
	}
	g, through := c.gate()
	r := c.run(func(config *Config) { config.Kubeconfig, config.Namespaces = through, []string{ns} })
	full := "west/" + ns + "/"
	until(t, "everything", func() bool { return r.names() == full+"a "+full+"b "+full+"c" && r.back() })

	begun := 0 // what was said until now: on a machine that is busy there may have been an outage already
	r.view(func() bool { begun = len(r.said); return true })
	breaks(g, true)
	c.deleteService(ns, "a")
	c.moveTo(ns, "b", "192.0.2.7")
	c.create(labelled(service(ns, "d", "192.0.2.4")))
	until(t, "the server is away", func() bool { return r.awayFor(reason) })
	if got, want := r.names(), full+"a "+full+"b "+full+"c"; got != want {
		t.Errorf("published while the server is away: %s, want %s", got, want)
	}
	breaks(g, false)
	var said []string
	until(t, "the server is back", func() bool {
		return r.view(func() bool { said = slices.Clone(r.said[begun:]); return r.complete && r.away == nil })
	})
	if got, want := r.names(), full+"b "+full+"c "+full+"d"; got != want || !r.has(full+"b", "192.0.2.7") {
		t.Errorf("published when the server is said to be back: %s, want %s", got, want)
	}
	r.withdrew(t, full+"a")
	if len(said) < 2 || slices.Index(said, "") != len(said)-1 {
		t.Errorf("said: %q, want a reason, and once that it is over", said)
	}
}

// expiring answers watches that go on from where they were with 410 Gone.
type expiring struct {
	http.RoundTripper

	on    atomic.Bool
	times atomic.Int64
}

func (e *expiring) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	if e.on.Load() && query.Get("watch") != "" && query.Get("resourceVersion") != "" {
		e.times.Add(1)
		return &http.Response{
			StatusCode: http.StatusGone, Status: "410 Gone", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
			Header: http.Header{"Content-Type": {"application/json"}},
			Body:   io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`)),
		}, nil
	}
	return e.RoundTripper.RoundTrip(r)
}

// testExpired has the history forgotten that a watch would go on from.
func testExpired(t *testing.T, c *cluster) {
	c.namespace("expired")
	for _, name := range []string{"a", "b"} {
		c.create(labelled(service("expired", name, "192.0.2.1")))
	}
	g, through := c.gate()
	e := &expiring{}
	r := c.prepare(func(config *Config) { config.Kubeconfig, config.Namespaces = through, []string{"expired"} })
	count := r.wrap
	r.wrap = func(next http.RoundTripper) http.RoundTripper { e.RoundTripper = next; return count(e) }
	c.start(r)
	until(t, "everything", func() bool { return r.names() == "west/expired/a west/expired/b" && r.back() })
	e.on.Store(true)
	refuse(g, true)
	c.deleteService("expired", "b")
	refuse(g, false)
	cut := time.Now()
	until(t, "the deletion after history is gone", func() bool {
		// A reader that looks for versions when it is cut begins its watches anew, and needs no history.
		if e.times.Load() == 0 && time.Since(cut) > 2*time.Second {
			cut = time.Now()
			g.Cut()
		}
		return r.names() == "west/expired/a" && e.times.Load() > 0
	})
	r.withdrew(t, "west/expired/b")
}

// testCredentials has the credentials expire, and replaced in the kubeconfig.
func testCredentials(t *testing.T, c *cluster) {
	c.namespace("credentials")
	c.create(labelled(service("credentials", "a", "192.0.2.1")))
	good, err := os.ReadFile(c.Kubeconfig)
	c.must(err)
	expired := c.kubeconfig(func(config *clientcmdapi.Config) { config.AuthInfos["test"].Token = "expired" })
	bad, err := os.ReadFile(expired)
	c.must(err)
	r := c.run(func(config *Config) { config.Kubeconfig, config.Namespaces = expired, []string{"credentials"} })
	until(t, "the reason", func() bool { return r.awayFor("does not accept the credentials") })
	if r.view(func() bool { return r.complete }) {
		t.Error("the part is complete")
	}
	write := func(text []byte) {
		t.Helper()
		c.must(os.WriteFile(expired+".new", text, 0o600))
		c.must(os.Rename(expired+".new", expired))
	}
	write(good)
	until(t, "everything", func() bool { return r.names() == "west/credentials/a" && r.back() })
	write([]byte("{"))
	until(t, "a line about a kubeconfig that is broken", func() bool { return strings.Contains(r.log.String(), "is unusable") })
	write(bad)
	until(t, "the reason", func() bool { return r.awayFor("does not accept the credentials") })
	write(good)
	until(t, "the end of it", r.back)
	r.withdrew(t)
	if n := strings.Count(r.log.String(), "is unusable"); n != 1 {
		t.Errorf("the broken kubeconfig was logged %d times", n)
	}
}
