package export

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

func TestParseKind(t *testing.T) {
	for kind := Gateway; kind <= Pods; kind++ {
		if got, ok := ParseKind(kind.String()); got != kind || !ok {
			t.Errorf("ParseKind(%q) = %v, %v", kind.String(), got, ok)
		}
	}
	for _, s := range []string{"", "Gateway", "pod"} {
		if got, ok := ParseKind(s); got != 0 || ok {
			t.Errorf("ParseKind(%q) = %v, %v", s, got, ok)
		}
	}
	if got := (Pods + 1).String(); got != "" {
		t.Errorf("what is no kind is called %q", got)
	}
}

func TestRouteNames(t *testing.T) {
	w := read(t, `kind: HTTPRoute
spec:
  parentRefs: [{name: b}, {name: b, sectionName: x}, {name: a, namespace: edge}, {name: web, kind: Service, group: ""}]
  rules:
  - backendRefs: [{name: web, port: 80}, {name: web, port: 81}, {name: pay, namespace: pay, port: 80}]
  - backendRefs: [{name: none, port: 80, weight: 0}, {name: import, kind: ServiceImport, group: multicluster.x-k8s.io, port: 80}]
`)
	route, ok := RouteOf(w.routes[0])
	if !ok {
		t.Fatal("it is no route")
	}
	if diff := cmp.Diff([]types.NamespacedName{{Namespace: "pay", Name: "pay"}, {Namespace: "shop", Name: "web"}}, route.Services()); diff != "" {
		t.Errorf("Services (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]types.NamespacedName{{Namespace: "edge", Name: "a"}, {Namespace: "shop", Name: "b"}}, route.Gateways()); diff != "" {
		t.Errorf("Gateways (-want +got):\n%s", diff)
	}
	if _, ok := RouteOf(&gatewayv1.Gateway{}); ok {
		t.Error("a Gateway is a route")
	}
	if _, ok := ExportOf(&gatewayv1.Gateway{}); ok {
		t.Error("a Gateway is an export")
	}
}
