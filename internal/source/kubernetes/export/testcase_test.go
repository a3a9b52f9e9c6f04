package export

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// testCase is what a cluster and its configuration hold for one Service.
type testCase struct {
	rules   Rules
	export  *mcsv1beta1.ServiceExport // nil: the Service has the label
	service *corev1.Service
	slices  []*discoveryv1.EndpointSlice
	nodes   []*corev1.Node
	routes  []any
	gates   []*gatewayv1.Gateway
}

func newTestCase() *testCase {
	return &testCase{rules: Rules{Cluster: "west", Zone: services.FQDN("west.fed.example")}}
}

// withNodes returns a case with n nodes, and a Service with a node port for each name.
func withNodes(n int, ports ...string) *testCase {
	w := newTestCase()
	w.service = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort}}
	for i, name := range ports {
		w.service.Spec.Ports = append(w.service.Spec.Ports, corev1.ServicePort{Name: name, Port: 80 + int32(i), NodePort: 30000 + int32(i)})
	}
	for i := range n {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i)}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.0.%d.%d", i/250, i%250)}}
		w.nodes = append(w.nodes, node)
	}
	return w
}

// withPods returns a case with n pods of a headless Service.
func withPods(n int) *testCase {
	w := newTestCase()
	w.rules.RoutablePods = true
	w.service = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	w.service.Spec = corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Name: "db", Port: 5432}}}
	slice := &discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{{Name: new("db"), Port: new(int32(5432))}}}
	slice.Namespace, slice.Labels = "shop", map[string]string{discoveryv1.LabelServiceName: "web"}
	for i := range n {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.%d.%d", i/250, i%250)}, Hostname: new(fmt.Sprintf("db-%d", i))})
	}
	w.slices = append(w.slices, slice)
	return w
}

func grant(namespaces []string, names ...string) Grant {
	g := Grant{Namespaces: namespaces}
	for _, name := range names {
		p, err := pattern.ParseName(name)
		if err != nil {
			panic(err)
		}
		g.Names = append(g.Names, p)
	}
	return g
}

// read returns the case of YAML documents. An object without a name is web, one without a namespace
// is in shop, and a ServiceExport without a time of creation is of the first day of 2026. A document of the kind Rules is the configuration.
func read(t *testing.T, text string) *testCase {
	t.Helper()
	w := newTestCase()
	for document := range strings.SplitSeq(text, "---\n") {
		var kind struct {
			Kind         string   `json:"kind"`
			Order        []string `json:"order"`
			RoutablePods bool     `json:"routablePods"`
			Labels       []string `json:"labels"`
			Annotations  []string `json:"annotations"`
			Grants       []struct {
				Namespaces, Names []string
			} `json:"grants"`
		}
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		var object metav1.Object
		switch kind.Kind {
		case "Rules":
			w.rules.RoutablePods, w.rules.Publish.Labels, w.rules.Publish.Annotations = kind.RoutablePods, kind.Labels, kind.Annotations
			for _, g := range kind.Grants {
				w.rules.Grants = append(w.rules.Grants, grant(g.Namespaces, g.Names...))
			}
			for _, name := range kind.Order {
				if !slices.Contains(EndpointKinds(), EndpointKind(name)) {
					t.Fatalf("there is no kind %s", name)
				}
				w.rules.Order = append(w.rules.Order, EndpointKind(name))
			}
			continue
		case "ServiceExport":
			w.export = &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}}
			object = w.export
		case "Service":
			w.service = &corev1.Service{}
			object = w.service
		case "EndpointSlice":
			w.slices = append(w.slices, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}})
			object = w.slices[len(w.slices)-1]
		case "Node":
			w.nodes = append(w.nodes, &corev1.Node{})
			object = w.nodes[len(w.nodes)-1]
		case "Gateway":
			w.gates = append(w.gates, &gatewayv1.Gateway{})
			object = w.gates[len(w.gates)-1]
		case "HTTPRoute":
			object = &gatewayv1.HTTPRoute{}
		case "GRPCRoute":
			object = &gatewayv1.GRPCRoute{}
		case "TLSRoute":
			object = &gatewayv1.TLSRoute{}
		case "TCPRoute":
			object = &gatewayv1.TCPRoute{}
		default:
			t.Fatalf("unknown kind %q in\n%s", kind.Kind, document)
		}
		if strings.HasSuffix(kind.Kind, "Route") {
			w.routes = append(w.routes, object)
		}
		if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if object.GetNamespace() == "" && kind.Kind != "Node" {
			object.SetNamespace("shop")
		}
		if object.GetName() == "" {
			object.SetName("web")
		}
	}
	return w.withLabels()
}

// withLabels gives the EndpointSlices of a headless Service the label that says so, as the
// controller of EndpointSlices does.
func (w *testCase) withLabels() *testCase {
	for _, slice := range w.slices {
		if w.service != nil && w.service.Spec.ClusterIP == corev1.ClusterIPNone {
			slice.Labels[corev1.IsHeadlessService] = ""
		}
	}
	return w
}

func (w *testCase) input() Input {
	in := Input{Export: w.export, Service: w.service, Slices: w.slices, Nodes: w.nodes, Gateways: w.gates}
	for _, route := range trimAll(w.rules, w.routes) {
		in.Routes = append(in.Routes, route.(*Route))
	}
	return in
}

// shuffled returns a copy of the case, with every list in another order whose order
// says nothing. Without random it is a copy only.
func (w *testCase) shuffled(random *rand.Rand) *testCase {
	s := *w
	if w.service != nil {
		s.service = w.service.DeepCopy()
		shuffle(random, s.service.Spec.ExternalIPs)
		shuffle(random, s.service.Status.LoadBalancer.Ingress)
	}
	s.slices, s.nodes, s.routes, s.gates = nil, nil, append([]any(nil), w.routes...), nil
	for _, slice := range w.slices {
		slice = slice.DeepCopy()
		shuffle(random, slice.Endpoints)
		s.slices = append(s.slices, slice)
	}
	for _, node := range w.nodes {
		node = node.DeepCopy()
		shuffle(random, node.Status.Addresses)
		shuffle(random, node.Status.Conditions)
		s.nodes = append(s.nodes, node)
	}
	for _, gate := range w.gates {
		gate = gate.DeepCopy()
		shuffle(random, gate.Status.Addresses)
		shuffle(random, gate.Spec.Listeners)
		s.gates = append(s.gates, gate)
	}
	for i, route := range s.routes {
		if http, ok := route.(*gatewayv1.HTTPRoute); ok {
			http = http.DeepCopy()
			shuffle(random, http.Spec.ParentRefs)
			shuffle(random, http.Status.Parents)
			s.routes[i] = http
		}
	}
	shuffle(random, s.slices)
	shuffle(random, s.nodes)
	shuffle(random, s.gates)
	shuffle(random, s.routes)
	return &s
}

func shuffle[T any](random *rand.Rand, list []T) {
	if random == nil {
		return
	}
	random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
}

// trimmed returns the case as the caches of informers hold it.
func (w *testCase) trimmed() *testCase {
	s := &testCase{
		rules: w.rules, routes: trimAll(w.rules, w.routes), slices: trimAll(w.rules, w.slices), nodes: trimAll(w.rules, w.nodes),
		gates: trimAll(w.rules, w.gates),
	}
	if w.service != nil {
		s.service = trimAll(w.rules, []*corev1.Service{w.service})[0]
	}
	if w.export != nil {
		s.export = trimAll(w.rules, []*mcsv1beta1.ServiceExport{w.export})[0]
	}
	return s
}

func trimAll[T any](rules Rules, list []T) []T {
	var trimmed []T
	for _, object := range list {
		t, err := rules.Trim(object)
		if err != nil {
			panic(err)
		}
		trimmed = append(trimmed, t.(T))
	}
	return trimmed
}

// show returns the verdict as testdata has it.
func show(v Verdict) string {
	var b strings.Builder
	if v.Refusal != nil {
		fmt.Fprintf(&b, "refused %s: %s\n", v.Refusal.Rule, v.Refusal.Message)
	}
	if s := v.Service; s != nil {
		fmt.Fprintf(&b, "%s %s by %s\n", s.Name, s.FQDN, v.Kind)
		for _, label := range s.Labels {
			fmt.Fprintf(&b, "label %s=%q\n", label.Key, label.Value)
		}
		for _, san := range s.SANs {
			fmt.Fprintf(&b, "san %s\n", san)
		}
		for _, e := range s.Endpoints {
			fmt.Fprintf(&b, "endpoint %s %d %v\n", e.Address, e.Port, e.Labels)
		}
		for _, i := range s.Instances {
			fmt.Fprintf(&b, "instance %s %s %v", i.ID, i.Protocol, i.EndpointSelector)
			for _, m := range i.Metadata {
				fmt.Fprintf(&b, " %s=%s", m.Key, m.Value)
			}
			b.WriteString("\n")
		}
	}
	for _, w := range v.Warnings {
		fmt.Fprintf(&b, "warning %s: %s\n", w.Rule, w.Message)
	}
	return b.String()
}
