package kubernetes

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/hamlet-federation/coredns-federation/internal/kube"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// A server lets objects be listed and not watched: the lists that go well in between do
// not end the problem, or it would never last.
func TestListDoesNotEndProblemOfWatch(t *testing.T) {
	var watches atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") != "" {
			watches.Add(1)
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403,
				"message": "services is forbidden: User \"a\" cannot watch resource \"services\""}`)
			return
		}
		fmt.Fprint(w, `{"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}`)
	}))
	defer server.Close()
	c := must.Get(kube.NewClient(kube.Access{Config: &rest.Config{Host: server.URL}}, newScheme(), userAgent, nil))(t)
	defer c.Close()
	s := &Source{state: newClusterState(time.Hour), selector: labels.Everything()}
	r, id := newClusterReader(s), watchID{kind: kindService}
	r.client = c
	r.startWatch(t.Context(), id, "v1")
	defer r.stopAll()
	current := func() lastingProblem {
		s.state.mu.Lock()
		defer s.state.mu.Unlock()
		return s.state.health.watches[id].problem
	}
	until(t, "the problem", func() bool { return current().reason != nil })
	first := current()
	seen := watches.Load()
	until(t, "more attempts", func() bool {
		if now := current(); now.since != first.since {
			t.Fatalf("the problem is %+v, and was %+v", now, first)
		}
		return watches.Load() >= seen+6
	})
}

// The authority of an API server is replaced, and with it the CA file beside the
// kubeconfig, which stays as it is: the next check reaches the server. A CA file that
// is not usable changes nothing.
func TestAuthorityFileIsFollowed(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	defer server.Close()
	dir := t.TempDir()
	write := func(name string, text []byte) {
		t.Helper()
		must.Do(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	authority := func(der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}) }
	right := authority(server.Certificate().Raw)
	write("ca.crt", authority(der))
	write("kubeconfig", fmt.Appendf(nil, `{"current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "a"}}],
		"clusters": [{"name": "a", "cluster": {"server": %q, "certificate-authority": "ca.crt"}}]}`, server.URL))
	s := must.Get(New(Config{Rules: export.Rules{Cluster: "west", Zone: zone(t)}, Kubeconfig: filepath.Join(dir, "kubeconfig")}))(t)
	r := newClusterReader(s)
	defer func() { r.client.Close() }()
	reach := func() error {
		if !r.reloadClient() {
			t.Fatal("there is no client")
		}
		return checkReady(t.Context(), r.client)
	}
	if err := reach(); err == nil || !strings.Contains(err.Error(), "x509") {
		t.Errorf("with the authority of another server the error is %v", err)
	}
	for _, text := range [][]byte{right, nil, []byte("-----BEGIN"), right} {
		write("ca.crt", text)
		if err := reach(); err != nil {
			t.Errorf("with the CA file %.20q: %v", text, err)
		}
	}
}

// The server that is back may be another, with an older past: no watch goes on from where it was.
func TestWatchesBeginAnewAfterOutage(t *testing.T) {
	var away atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, os.WriteFile(path, []byte(strings.Replace(goodConfig, "https://127.0.0.1:1", server.URL, 1)), 0o600))
	s := must.Get(New(Config{Rules: export.Rules{Cluster: "west", Zone: zone(t)}, Kubeconfig: path}))(t)
	s.wanted = []objectKind{kindService}
	r, id, stopped := newClusterReader(s), watchID{kind: kindService}, 0
	defer r.stopAll()
	for i, step := range []struct {
		away    bool
		stopped int // watches so far
	}{{false, 0}, {false, 0}, {true, 0}, {false, 1}} {
		away.Store(step.away)
		if alive := r.checkServer(t.Context()); alive == step.away || stopped != step.stopped {
			t.Errorf("step %d: the server is there: %t, and %d watches were stopped, want %d", i, alive, stopped, step.stopped)
		}
		if i == 0 {
			first := r.running[id]
			r.running[id] = runningWatch{first.version, func() { stopped++; first.stop() }}
		}
	}
}
