package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/source"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const patience = time.Minute // bounds a wait for what has to happen

// until waits until the condition holds.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	await.Until(t, patience, func() string {
		if holds() {
			return ""
		}
		return "waited in vain for: " + what
	})
}

// cluster is an API server with clients that may do everything.
type cluster struct {
	testing.TB

	*realserver.Cluster
}

func startCluster(tb testing.TB) *cluster {
	tb.Helper()
	return &cluster{tb, realserver.StartCluster(tb)}
}

func (c *cluster) must(err error) {
	c.Helper()
	must.Do(c, err)
}

func (c *cluster) namespace(name string) {
	c.Helper()
	c.must(c.Apply(c.Context(), "{apiVersion: v1, kind: Namespace, metadata: {name: "+name+"}}"))
}

// service returns a Service with an external IP.
func service(namespace, name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}, ExternalIPs: []string{ip}},
	}
}

func labelled(s *corev1.Service) *corev1.Service {
	s.Labels = map[string]string{export.Label: "true"}
	return s
}

func (c *cluster) create(s *corev1.Service) {
	c.Helper()
	_, err := c.Client.CoreV1().Services(s.Namespace).Create(c.Context(), s, metav1.CreateOptions{})
	c.must(err)
}

func (c *cluster) moveTo(namespace, name, ip string) {
	c.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"externalIPs":[%q]}}`, ip)
	_, err := c.Client.CoreV1().Services(namespace).Patch(c.Context(), name, "application/merge-patch+json", patch, metav1.PatchOptions{})
	c.must(err)
}

func (c *cluster) deleteService(namespace, name string) {
	c.Helper()
	c.must(c.Client.CoreV1().Services(namespace).Delete(c.Context(), name, metav1.DeleteOptions{}))
}

// custom returns a definition of a resource of the Gateway API that takes everything.
func custom(kind, plural, version string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{
			"name":        plural + "." + gatewayGroup,
			"annotations": map[string]any{"api-approved.kubernetes.io": "unapproved, experimental-only"},
		},
		"spec": map[string]any{
			"group": gatewayGroup, "scope": "Namespaced",
			"names": map[string]any{"kind": kind, "plural": plural, "singular": strings.ToLower(kind), "listKind": kind + "List"},
			"versions": []any{map[string]any{
				"name": version, "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			}},
		},
	}}
}

// exported is a ServiceExport in YAML.
func exported(version, namespace, name string) string {
	return fmt.Sprintf("{apiVersion: %s/%s, kind: ServiceExport, metadata: {namespace: %s, name: %s}}", mcsGroup, version, namespace, name)
}

func (c *cluster) export(version, namespace, name string) {
	c.Helper()
	c.must(c.Apply(c.Context(), exported(version, namespace, name)))
}

func (c *cluster) unexport(version, namespace, name string) {
	c.Helper()
	c.must(c.Delete(c.Context(), exported(version, namespace, name)))
}

var serviceExports = schema.GroupVersionResource{Group: mcsGroup, Version: "v1beta1", Resource: "serviceexports"}

// condition returns a condition of a ServiceExport of v1beta1: its status, reason and
// message, or "".
func (c *cluster) condition(namespace, name, kind string) (status, reason, message string) {
	c.Helper()
	got, err := c.Dynamic.Resource(serviceExports).Namespace(namespace).Get(c.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", "", ""
	}
	c.must(err)
	var e mcsv1beta1.ServiceExport
	c.must(runtime.DefaultUnstructuredConverter.FromUnstructured(got.Object, &e))
	condition := cmp.Or(meta.FindStatusCondition(e.Status.Conditions, kind), &metav1.Condition{})
	return string(condition.Status), condition.Reason, condition.Message
}

// part is a catalog's part that remembers what it is told.
type part struct {
	mu         sync.Mutex
	services   map[string]*wire.EncodedService
	complete   bool
	replaced   int
	withdrawn  []string // every name that was ever taken away
	away       error
	said       []string // every reason, and "" for back
	refused    map[string]int
	violations []string
}

func (p *part) Replace(services []*wire.EncodedService) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.complete, p.services = true, make(map[string]*wire.EncodedService)
	p.replaced++
	for _, s := range services {
		p.services[s.Name()] = s
	}
}

func (p *part) Update(changed []*wire.EncodedService, gone []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.complete {
		p.violations = append(p.violations, "Update before Replace")
	}
	for _, name := range gone {
		if p.services[name] != nil {
			p.withdrawn = append(p.withdrawn, name)
		}
		delete(p.services, name)
	}
	for _, s := range changed {
		p.services[s.Name()] = s
	}
}

func (p *part) SetAway(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = reason
	text := ""
	if reason != nil {
		text = reason.Error()
	}
	p.said = append(p.said, text)
}

func (*part) SetPath(wire.OwnerPath) error { return nil }

func (p *part) SetRefused(entries map[string]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = entries
}

// view runs f on the part.
func (p *part) view(f func() bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return f()
}

// names returns what is published.
func (p *part) names() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(p.services)), " ")
}

// has reports whether a service is published, with a fragment in its text.
func (p *part) has(name, fragment string) bool {
	return p.view(func() bool { return p.services[name] != nil && strings.Contains(text(p.services[name]), fragment) })
}

func text(e *wire.EncodedService) string { return fmt.Sprintf("%+v", e.Service()) }

func (p *part) awayFor(fragment string) bool {
	return p.view(func() bool { return p.away != nil && strings.Contains(p.away.Error(), fragment) })
}

func (p *part) back() bool { return p.view(func() bool { return p.complete && p.away == nil }) }

// runner is a source that runs.
type runner struct {
	*Source
	*part

	into     source.Part // where it publishes; part, if a test does not change it
	stop     func()      // ends it, and waits until it has
	log      testlog.Buffer
	requests *counter
}

func zone(tb testing.TB) federation.FQDN {
	tb.Helper()
	return must.Get(federation.ParseFQDN("west.fed.example"))(tb)
}

// run starts a source, which ends with the test.
func (c *cluster) run(change func(*Config)) *runner {
	c.Helper()
	r := c.prepare(change)
	c.start(r)
	return r
}

// prepare makes a source that does not run yet.
func (c *cluster) prepare(change func(*Config)) *runner {
	c.Helper()
	config := Config{Rules: export.Rules{Cluster: "west", Zone: zone(c)}, Kubeconfig: c.Kubeconfig}
	if change != nil {
		change(&config)
	}
	r := &runner{part: &part{}, requests: &counter{counts: make(map[string]int)}}
	config.Logger, r.into = r.log.Logger(), r.part
	of, err := New(config)
	c.must(err)
	r.Source, of.pace = of, quick
	of.state.health.grace = quick.grace
	of.wrap = r.requests.around
	return r
}

// start runs a source until the test ends.
func (c *cluster) start(r *runner) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx, r.into)
	}()
	r.stop = func() {
		cancel()
		<-done
	}
	c.Cleanup(func() {
		r.stop()
		if c.Failed() {
			c.Logf("log:\n%s\nsaid: %q\nrequests: %v", &r.log, r.said, r.requests.all())
		}
		if len(r.violations) > 0 {
			c.Error(r.violations)
		}
	})
}

// counter counts requests by verb and resource.
type counter struct {
	mu     sync.Mutex
	counts map[string]int
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (c *counter) around(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		c.count(r)
		return next.RoundTrip(r)
	})
}

func (c *counter) count(r *http.Request) {
	c.mu.Lock()
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	kind := path[len(path)-1]
	if kind == "status" && len(path) > 2 {
		kind = path[len(path)-3] + "/status"
	}
	verb := r.Method
	if r.URL.Query().Get("watch") != "" {
		verb = "WATCH"
	}
	c.counts[verb+" "+kind]++
	c.mu.Unlock()
}

// of returns how many requests were made, by verb and resource.
func (c *counter) of(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[what]
}

func (c *counter) all() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.counts)
}

// refuse says whether a gate refuses connections. It cuts those that are open.
func refuse(g *realserver.Gate, refuses bool) {
	g.Refuse(refuses)
	if refuses {
		g.Cut()
	}
}

// kubeconfig writes a kubeconfig that differs from the cluster's by what change does.
func (c *cluster) kubeconfig(change func(*clientcmdapi.Config)) string {
	c.Helper()
	config, err := clientcmd.LoadFromFile(c.Kubeconfig)
	c.must(err)
	change(config)
	path := filepath.Join(c.TempDir(), "kubeconfig")
	c.must(clientcmd.WriteToFile(*config, path))
	return path
}

// gate starts a gate before the API server, and returns it with the kubeconfig of clients
// that go through it.
func (c *cluster) gate() (g *realserver.Gate, kubeconfig string) {
	c.Helper()
	g, url := c.StartGate(c)
	return g, c.kubeconfig(func(config *clientcmdapi.Config) { config.Clusters["test"].Server = url })
}
