package kubernetes

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/mcs-api/config/crd"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/source/kubernetes/export"
	"github.com/hamlet-federation/coredns-federation/federation/source/kubernetes/internal/feedback"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const patience = time.Minute // bounds a wait for what has to happen

// until waits until the condition holds.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	await.Until(t, 2*time.Second, patience, func() string {
		if holds() {
			return ""
		}
		return "waited in vain for: " + what
	})
}

// cluster is an API server with clients that may do everything.
type cluster struct {
	testing.TB

	*realserver.APIServer

	core    kubernetes.Interface
	dynamic dynamic.Interface
}

func startCluster(tb testing.TB) *cluster {
	tb.Helper()
	c := &cluster{TB: tb, APIServer: realserver.StartAPIServer(tb)}
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	c.must(err)
	config.QPS = -1
	c.core, err = kubernetes.NewForConfig(config)
	c.must(err)
	c.dynamic, err = dynamic.NewForConfig(config)
	c.must(err)
	return c
}

func (c *cluster) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) namespace(name string) {
	c.Helper()
	_, err := c.core.CoreV1().Namespaces().Create(c.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	c.must(err)
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
	_, err := c.core.CoreV1().Services(s.Namespace).Create(c.Context(), s, metav1.CreateOptions{})
	c.must(err)
}

func (c *cluster) moveTo(namespace, name, ip string) {
	c.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"externalIPs":[%q]}}`, ip)
	_, err := c.core.CoreV1().Services(namespace).Patch(c.Context(), name, "application/merge-patch+json", patch, metav1.PatchOptions{})
	c.must(err)
}

func (c *cluster) deleteService(namespace, name string) {
	c.Helper()
	c.must(c.core.CoreV1().Services(namespace).Delete(c.Context(), name, metav1.DeleteOptions{}))
}

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// define creates a CustomResourceDefinition, and waits until it is served.
func (c *cluster) define(definition *unstructured.Unstructured) {
	c.Helper()
	_, err := c.dynamic.Resource(definitions).Create(c.Context(), definition, metav1.CreateOptions{})
	c.must(err)
	name := definition.GetName()
	until(c, name+" is served", func() bool {
		got, err := c.dynamic.Resource(definitions).Get(c.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		conditions, _, _ := unstructured.NestedSlice(got.Object, "status", "conditions")
		established := slices.ContainsFunc(conditions, func(condition any) bool {
			c := condition.(map[string]any)
			return c["type"] == "Established" && c["status"] == "True"
		})
		plural, _, _ := unstructured.NestedString(got.Object, "spec", "names", "plural")
		group, _, _ := unstructured.NestedString(got.Object, "spec", "group")
		versions, _, _ := unstructured.NestedSlice(got.Object, "spec", "versions")
		if !established {
			return false
		}
		for _, version := range versions {
			if v := version.(map[string]any); v["served"] == true {
				gvr := schema.GroupVersionResource{Group: group, Version: v["name"].(string), Resource: plural}
				if _, err := c.dynamic.Resource(gvr).List(c.Context(), metav1.ListOptions{}); err != nil {
					return false
				}
			}
		}
		return true
	})
}

// mcs returns the definition of ServiceExports, with one version served.
func mcs(tb testing.TB, version string) *unstructured.Unstructured {
	tb.Helper()
	definition := &unstructured.Unstructured{}
	must.Do(tb, yaml.Unmarshal(crd.ServiceExportCRD, &definition.Object))
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	for _, v := range versions {
		v := v.(map[string]any)
		v["served"], v["storage"] = v["name"] == version, v["name"] == version
	}
	must.Do(tb, unstructured.SetNestedSlice(definition.Object, versions, "spec", "versions"))
	return definition
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
				"name": version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			}},
		},
	}}
}

func (c *cluster) exports(version, namespace string) dynamic.ResourceInterface {
	return c.dynamic.Resource(schema.GroupVersionResource{Group: mcsGroup, Version: version, Resource: "serviceexports"}).Namespace(namespace)
}

func (c *cluster) export(version, namespace, name string) {
	c.Helper()
	_, err := c.exports(version, namespace).Create(c.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": mcsGroup + "/" + version, "kind": "ServiceExport", "metadata": map[string]any{"name": name},
	}}, metav1.CreateOptions{})
	c.must(err)
}

func (c *cluster) unexport(version, namespace, name string) {
	c.Helper()
	c.must(c.exports(version, namespace).Delete(c.Context(), name, metav1.DeleteOptions{}))
}

// condition returns a condition of a ServiceExport of v1beta1: its status, reason and
// message, or "".
func (c *cluster) condition(namespace, name, kind string) (status, reason, message string) {
	c.Helper()
	got, err := c.exports("v1beta1", namespace).Get(c.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", "", ""
	}
	c.must(err)
	var e mcsv1beta1.ServiceExport
	c.must(runtime.DefaultUnstructuredConverter.FromUnstructured(got.Object, &e))
	for _, condition := range e.Status.Conditions {
		if condition.Type == kind {
			return string(condition.Status), condition.Reason, condition.Message
		}
	}
	return "", "", ""
}

// part is a catalog's part that remembers what it is told.
type part struct {
	mu         sync.Mutex
	services   map[string]*wire.Encoded
	complete   bool
	replaced   int
	withdrawn  []string // every name that was ever taken away
	away       error
	said       []string // every reason, and "" for back
	refused    map[string]int
	violations []string
	wanted     string // the name and a fragment of an update that is waited for
	fragment   string
	arrived    chan time.Time
}

// watchFor returns a channel that has the time of the next update of a service to a
// text with a fragment.
func (p *part) watchFor(name, fragment string) <-chan time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted, p.fragment, p.arrived = name, fragment, make(chan time.Time, 1)
	return p.arrived
}

func (p *part) Replace(services []*wire.Encoded) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.complete, p.services = true, make(map[string]*wire.Encoded)
	p.replaced++
	for _, s := range services {
		p.services[s.Name()] = s
	}
}

func (p *part) Update(changed []*wire.Encoded, gone []string) {
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
		if s.Name() == p.wanted && strings.Contains(text(s), p.fragment) {
			p.arrived <- time.Now()
			p.wanted = ""
		}
	}
}

func (p *part) Away(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = reason
	text := ""
	if reason != nil {
		text = reason.Error()
	}
	p.said = append(p.said, text)
}

func (*part) Through(wire.Path) error { return nil }

func (p *part) Refused(entries map[string]int) {
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

// fqdns returns what is published, by fqdn and by the first address.
func (p *part) has(name, fragment string) bool {
	return p.view(func() bool { return p.services[name] != nil && strings.Contains(text(p.services[name]), fragment) })
}

func text(e *wire.Encoded) string { return fmt.Sprintf("%+v", e.Service()) }

func (p *part) awayFor(fragment string) bool {
	return p.view(func() bool { return p.away != nil && strings.Contains(p.away.Error(), fragment) })
}

func (p *part) back() bool { return p.view(func() bool { return p.complete && p.away == nil }) }

// runner is a source that runs.
type runner struct {
	*Source
	*part

	log      *lockedBuffer
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
	r := &runner{part: &part{}, log: &lockedBuffer{}, requests: &counter{counts: make(map[string]int)}}
	config.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	source, err := New(config)
	c.must(err)
	r.Source, source.pace = source, quick
	source.world.health.grace = quick.grace
	source.wrap = r.requests.around
	return r
}

// start runs a source until the test ends.
func (c *cluster) start(r *runner) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx, r.part)
	}()
	c.Cleanup(func() {
		cancel()
		<-done
		if c.Failed() {
			c.Logf("log:\n%s\nsaid: %q\nrequests: %v", r.log, r.said, r.requests.all())
		}
		if len(r.violations) > 0 {
			c.Error(r.violations)
		}
	})
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
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

// gate stands between a source and its API server, and can be closed.
type gate struct {
	address string // of the gate

	mu       sync.Mutex
	target   string
	mode     int
	listener net.Listener
	open     map[net.Conn]struct{}
}

const (
	passing = iota
	refusing
	stalling // connections stay, and nothing goes through
)

func newGate(tb testing.TB, target string) *gate {
	tb.Helper()
	g := &gate{target: strings.TrimPrefix(target, "https://"), open: make(map[net.Conn]struct{})}
	g.listener = must.Get(net.Listen("tcp", "127.0.0.1:0"))(tb)
	g.address = g.listener.Addr().String()
	go func() {
		for {
			conn, err := g.listener.Accept()
			if err != nil {
				return
			}
			go g.serve(conn)
		}
	}()
	tb.Cleanup(func() {
		g.listener.Close()
		g.set(refusing)
	})
	return g
}

func (g *gate) serve(conn net.Conn) {
	g.mu.Lock()
	if g.mode == refusing {
		g.mu.Unlock()
		conn.Close()
		return
	}
	g.open[conn] = struct{}{}
	target := g.target
	g.mu.Unlock()
	defer g.drop(conn)
	upstream, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer upstream.Close()
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{conn, upstream}, {upstream, conn}} {
		go func() {
			defer func() { done <- struct{}{} }()
			buf := make([]byte, 32<<10)
			for {
				n, err := pair[0].Read(buf)
				g.mu.Lock()
				stalled := g.mode == stalling
				g.mu.Unlock()
				if stalled && err == nil {
					continue
				}
				if stalled { // who has closed it reads no more
					return
				}
				if _, werr := pair[1].Write(buf[:n]); err != nil || werr != nil {
					return
				}
			}
		}()
	}
	<-done
}

func (g *gate) drop(conn net.Conn) {
	g.mu.Lock()
	delete(g.open, conn)
	g.mu.Unlock()
	conn.Close()
}

// set changes the mode. Refusing cuts what is open.
func (g *gate) set(mode int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mode = mode
	if mode == refusing {
		for conn := range g.open {
			conn.Close()
		}
	}
}

// lead has new connections lead to another server.
func (g *gate) lead(target string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.target = strings.TrimPrefix(target, "https://")
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

// through returns the kubeconfig of clients that go through the gate.
func (c *cluster) through(g *gate) string {
	return c.kubeconfig(func(config *clientcmdapi.Config) {
		config.Clusters["test"].Server = "https://" + g.address
	})
}

// events returns the Events of a namespace that the source has created. The API server
// creates some of its own, such as those about the addresses of Services.
func (c *cluster) events(namespace string) (created []eventsv1.Event) {
	c.Helper()
	list, err := c.core.EventsV1().Events(namespace).List(c.Context(), metav1.ListOptions{})
	c.must(err)
	for i := range list.Items {
		if list.Items[i].ReportingController == feedback.Controller {
			created = append(created, list.Items[i])
		}
	}
	return created
}
