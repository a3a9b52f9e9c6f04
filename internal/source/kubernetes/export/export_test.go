package export

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

func TestRouteNames(t *testing.T) {
	w := read(t, `kind: HTTPRoute
spec:
  parentRefs: [{name: b}, {name: b, sectionName: x}, {name: a, namespace: edge}, {name: web, kind: Service, group: ""}]
  rules:
  - backendRefs: [{name: web, port: 80}, {name: web, port: 81}, {name: pay, namespace: pay, port: 80}]
  - backendRefs: [{name: none, port: 80, weight: 0}, {name: import, kind: ServiceImport, group: multicluster.x-k8s.io, port: 80}]
`)
	route := routeOf(w.routes[0])
	if diff := cmp.Diff([]types.NamespacedName{{Namespace: "pay", Name: "pay"}, {Namespace: "shop", Name: "web"}}, route.Services()); diff != "" {
		t.Errorf("Services (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]types.NamespacedName{{Namespace: "edge", Name: "a"}, {Namespace: "shop", Name: "b"}}, route.Gateways()); diff != "" {
		t.Errorf("Gateways (-want +got):\n%s", diff)
	}
	for _, object := range []any{&gatewayv1.UDPRoute{}, nil} {
		if trimmed, err := (Rules{}).Trim(object); err == nil {
			t.Errorf("of %T, which is not read, %v is kept", object, trimmed)
		}
	}
}

// TestTrimNodes has a slice of a Service that is not headless, and then of one that is.
func TestTrimNodes(t *testing.T) {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s-1", Generation: 2, Labels: map[string]string{discoveryv1.LabelServiceName: "s", "other": "x"}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.0.0.1"}, NodeName: new("b")},
			{Addresses: []string{"10.0.0.2"}, NodeName: new("a"), Conditions: discoveryv1.EndpointConditions{Ready: new(true)}},
			{Addresses: []string{"10.0.0.3"}, NodeName: new("a")},
			{Addresses: []string{"10.0.0.4"}, NodeName: new("a"), Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
			{Addresses: []string{"10.0.0.5"}},
			{Addresses: []string{"10.0.0.6"}, NodeName: new("c"), Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
		},
	}
	want := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s-1", Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
		Endpoints: []discoveryv1.Endpoint{
			{NodeName: new("a"), Conditions: discoveryv1.EndpointConditions{Ready: new(true)}},
			{NodeName: new("b"), Conditions: discoveryv1.EndpointConditions{Ready: new(true)}},
			{NodeName: new("c"), Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
		},
	}
	if diff := cmp.Diff(want, trimSlice(slice)); diff != "" {
		t.Errorf("trimmed (-want +got):\n%s", diff)
	}
	slice.Labels[corev1.IsHeadlessService] = ""
	if got := trimSlice(slice); len(got.Endpoints) != len(slice.Endpoints) || len(got.Endpoints[0].Addresses) != 1 {
		t.Errorf("trimmed slice of a headless Service: %v", got)
	}
}
