package export

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// TestGrowthIsNoOutage has more endpoints than a service may have: 334 nodes with three
// ports, and more pods with names of their own than there may be instances.
func TestGrowthIsNoOutage(t *testing.T) {
	nodes := func(n int) *world {
		w := newWorld()
		w.service = &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort}}
		w.service.Namespace, w.service.Name = "shop", "web"
		for i := range int32(3) {
			w.service.Spec.Ports = append(w.service.Spec.Ports, corev1.ServicePort{Name: fmt.Sprintf("p%d", i), Port: 80 + i, NodePort: 30000 + i})
		}
		for i := range n {
			node := &corev1.Node{}
			node.Name = fmt.Sprintf("n%d", i)
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.0.%d.%d", i/250, i%250)}}
			w.nodes = append(w.nodes, node)
		}
		return w
	}
	pods := func(n int) *world {
		w := newWorld()
		w.rules.RoutablePods = true
		w.service = &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Name: "db", Port: 5432}}}}
		w.service.Namespace, w.service.Name = "shop", "web"
		slice := &discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{{Name: new("db"), Port: new(int32(5432))}}}
		slice.Namespace, slice.Labels = "shop", map[string]string{discoveryv1.LabelServiceName: "web"}
		for i := range n {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.%d.%d", i/250, i%250)}, Hostname: new(fmt.Sprintf("db-%d", i))})
		}
		w.slices = append(w.slices, slice)
		return w
	}
	for _, test := range []struct {
		name            string
		world           *world
		endpoints, warn int
		last            string
	}{
		{"333 nodes", nodes(333), 999, 0, "10.0.1.82"},
		{"334 nodes", nodes(334), 999, 1, "10.0.1.82"},
		{"2000 nodes", nodes(2000), 999, 1, "10.0.1.82"},
		{"999 pods", pods(999), 999, 0, "10.0.3.248"},
		{"1000 pods", pods(1000), 999, 1, "10.0.3.248"},
	} {
		v := test.world.rules.Translate(test.world.input())
		if v.Refusal != nil {
			t.Errorf("%s: %s", test.name, v.Refusal.Message)
			continue
		}
		s := v.Service
		if last := s.Endpoints[len(s.Endpoints)-1].Address.String(); len(s.Endpoints) != test.endpoints || last != test.last || len(v.Warnings) != test.warn {
			t.Errorf("%s: %d endpoints to %s, warnings %v", test.name, len(s.Endpoints), last, v.Warnings)
		}
		if len(s.Endpoints) > federation.MaxEndpoints {
			t.Errorf("%s: %d endpoints", test.name, len(s.Endpoints))
		}
	}
}
