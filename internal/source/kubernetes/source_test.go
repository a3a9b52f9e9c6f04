package kubernetes

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/hamlet-federation/coredns-federation/internal/kube"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const goodConfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

func TestNewErrors(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	dir := t.TempDir()
	file := func(text string) string {
		t.Helper()
		path := filepath.Join(dir, "kubeconfig")
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for _, test := range []struct{ name, text, context, namespace, selector, want string }{
		{name: "in no cluster", want: "no kubeconfig is named, and this is not a pod with a service account"},
		{name: "context without kubeconfig", context: "x", want: "a context is named, but no kubeconfig"},
		{name: "unknown context", text: goodConfig, context: "w", want: `there is no context "w"`},
		{name: "bad CA", text: strings.Replace(goodConfig, "1:1\"", "1:1\", certificate-authority-data: AAAA", 1), want: "unable to load root certificates"},
		{name: "namespace", text: goodConfig, namespace: "A", want: `namespace "A": a lowercase RFC 1123 label`},
		{name: "selector", text: goodConfig, selector: "a in", want: "selector: "},
		{name: "good", text: goodConfig},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := Config{Rules: export.Rules{Cluster: "west", Zone: zone(t)}, Context: test.context, Selector: test.selector}
			if test.text != "" {
				config.Kubeconfig = file(test.text)
			}
			if test.namespace != "" {
				config.Namespaces = []string{test.namespace}
			}
			_, err := New(config)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n")):
				t.Errorf("error is %v, want one line with %q", err, test.want)
			}
		})
	}
}

func TestWantedKinds(t *testing.T) {
	for _, test := range []struct {
		rules export.Rules
		want  string
	}{
		{export.Rules{}, `[services serviceexports.multicluster.x-k8s.io nodes endpointslices.discovery.k8s.io gateways.gateway.networking.k8s.io ` +
			`httproutes.gateway.networking.k8s.io grpcroutes.gateway.networking.k8s.io tlsroutes.gateway.networking.k8s.io tcproutes.gateway.networking.k8s.io] ""`},
		{export.Rules{Order: []export.EndpointKind{export.LoadBalancer, export.Pods}}, `[services serviceexports.multicluster.x-k8s.io] "service.kubernetes.io/headless"`},
		{
			export.Rules{Order: []export.EndpointKind{export.Pods}, RoutablePods: true},
			`[services serviceexports.multicluster.x-k8s.io endpointslices.discovery.k8s.io] "service.kubernetes.io/headless"`,
		},
	} {
		wanted, selector := wantedKinds(test.rules)
		if got := fmt.Sprintf("%v %q", wanted, selector); got != test.want {
			t.Errorf("kinds of %v: %s, want %s", test.rules, got, test.want)
		}
	}
}

func TestStanding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, away := &newClusterState(3*time.Second).health, error(nil)
		services, nodes := watchID{kindService, ""}, watchID{kindNode, ""}
		check := func(what, want string) {
			t.Helper()
			s := h.summaryAt(time.Now())
			away = s.awayReason(away)
			if got := fmt.Sprintf("current=%t partial=%t away=%v", s.current, s.partial, away); got != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		check("at the start", "current=false partial=false away=<nil>")
		h.discovered = true
		h.watches[services], h.watches[nodes] = watchProgress{begun: true}, watchProgress{begun: true}
		check("with watches that have not read", "current=false partial=false away=<nil>")
		h.watches[services], h.watches[nodes] = watchProgress{begun: true, synced: true}, watchProgress{begun: true, synced: true}
		check("with watches that have", "current=true partial=false away=<nil>")
		h.server.noteOutcome(kube.ClassErrorf("connection", "one"), time.Now())
		check("with a problem", "current=false partial=false away=<nil>")
		time.Sleep(3 * time.Second)
		check("with a problem that lasts", "current=false partial=false away=one")
		h.server.noteOutcome(kube.ClassErrorf("connection", "two"), time.Now())
		check("with the problem in other words", "current=false partial=false away=one")
		h.server.noteOutcome(kube.ClassErrorf("credentials", "three"), time.Now())
		check("with another problem", "current=false partial=false away=three")
		h.server.noteOutcome(nil, time.Now())
		h.watches[services] = watchProgress{begun: true, once: true}
		check("while a watch reads anew", "current=false partial=true away=three")
		h.watches[services] = watchProgress{begun: true, synced: true}
		check("when it has", "current=true partial=false away=<nil>")
		h.watches[nodes] = watchProgress{begun: true, synced: true, problem: lastingProblem{kube.ClassErrorf("nodes", "four"), time.Now()}}
		time.Sleep(3 * time.Second)
		check("with a problem of one watch", "current=false partial=false away=four")
	})
}

// An API server that is not ready is not asked for anything else.
func TestNotReady(t *testing.T) {
	for _, code := range []int{http.StatusInternalServerError, http.StatusServiceUnavailable} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }))
		c := must.Get(kube.NewClient(kube.Access{Config: &rest.Config{Host: server.URL}}, newScheme(), userAgent, nil))(t)
		if err := checkReady(t.Context(), c); err == nil || !strings.Contains(err.Error(), "it is not ready") {
			t.Errorf("with %d: %v", code, err)
		}
		c.Close()
		server.Close()
	}
}

// An object is looked at again when its content has changed, also in the same version
// where a watch begins: a cluster that was set back to a backup gives out versions
// for the second time.
func TestVersions(t *testing.T) {
	w, id := newClusterState(time.Second), watchID{kindService, ""}
	list := func(version, ip string, want bool) {
		t.Helper()
		object := service("n", "s", ip)
		object.UID, object.ResourceVersion = "u", version
		clear(w.dirty)
		must.Do(t, (watchStore{state: w, id: id}).Replace([]any{object}, ""))
		if got := len(w.dirty) > 0; got != want {
			t.Errorf("version %s with %s is looked at: %t, want %t", version, ip, got, want)
		}
	}
	w.noteWatchBegun(id)
	list("5", "192.0.2.1", true)
	list("5", "192.0.2.1", false)
	list("6", "192.0.2.1", false)
	list("7", "192.0.2.2", true)
	w.noteNotServed(id, time.Now())
	w.noteWatchBegun(id)
	list("7", "192.0.2.2", false)
	w.noteNotServed(id, time.Now())
	w.noteWatchBegun(id)
	list("7", "192.0.2.3", true)
}
