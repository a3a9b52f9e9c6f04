package export

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Route is what is kept of an HTTPRoute, GRPCRoute, TLSRoute or TCPRoute: the fields that these
// have in common. A route that is being deleted has no parents here.
type Route struct {
	metav1.ObjectMeta

	Kind      gatewayv1.Kind
	Parents   []gatewayv1.ParentReference
	Hostnames []gatewayv1.Hostname
	Backends  []gatewayv1.BackendRef
	Statuses  []gatewayv1.RouteParentStatus
}

// The kinds of routes.
const (
	httpRoute gatewayv1.Kind = "HTTPRoute"
	grpcRoute gatewayv1.Kind = "GRPCRoute"
	tlsRoute  gatewayv1.Kind = "TLSRoute"
	tcpRoute  gatewayv1.Kind = "TCPRoute"
)

// routeOf returns the route of an object, which is an HTTPRoute, GRPCRoute, TLSRoute or TCPRoute of
// v1, or nil. Older versions have the same fields, so their objects can be read as objects of v1.
func routeOf(object any) *Route {
	switch o := object.(type) {
	case *gatewayv1.HTTPRoute:
		r := newRoute(httpRoute, &o.ObjectMeta, &o.Spec.CommonRouteSpec, &o.Status.RouteStatus, o.Spec.Hostnames)
		for i := range o.Spec.Rules {
			for j := range o.Spec.Rules[i].BackendRefs {
				r.Backends = append(r.Backends, o.Spec.Rules[i].BackendRefs[j].BackendRef)
			}
		}
		return r
	case *gatewayv1.GRPCRoute:
		r := newRoute(grpcRoute, &o.ObjectMeta, &o.Spec.CommonRouteSpec, &o.Status.RouteStatus, o.Spec.Hostnames)
		for i := range o.Spec.Rules {
			for j := range o.Spec.Rules[i].BackendRefs {
				r.Backends = append(r.Backends, o.Spec.Rules[i].BackendRefs[j].BackendRef)
			}
		}
		return r
	case *gatewayv1.TLSRoute:
		r := newRoute(tlsRoute, &o.ObjectMeta, &o.Spec.CommonRouteSpec, &o.Status.RouteStatus, o.Spec.Hostnames)
		for i := range o.Spec.Rules {
			r.Backends = append(r.Backends, o.Spec.Rules[i].BackendRefs...)
		}
		return r
	case *gatewayv1.TCPRoute:
		r := newRoute(tcpRoute, &o.ObjectMeta, &o.Spec.CommonRouteSpec, &o.Status.RouteStatus, nil)
		for i := range o.Spec.Rules {
			r.Backends = append(r.Backends, o.Spec.Rules[i].BackendRefs...)
		}
		return r
	}
	return nil
}

func newRoute(kind gatewayv1.Kind, m *metav1.ObjectMeta, spec *gatewayv1.CommonRouteSpec, status *gatewayv1.RouteStatus, hostnames []gatewayv1.Hostname) *Route {
	r := &Route{ObjectMeta: trimMeta(m), Kind: kind, Hostnames: hostnames}
	if m.DeletionTimestamp == nil {
		r.Parents = spec.ParentRefs
	}
	for i := range status.Parents {
		s := &status.Parents[i]
		r.Statuses = append(r.Statuses, gatewayv1.RouteParentStatus{ParentRef: s.ParentRef, Conditions: trimConditions(s.Conditions)})
	}
	return r
}

// Services returns the Services that the route leads to, each once and in order.
func (r *Route) Services() []types.NamespacedName {
	return distinctNames(r.Backends, func(b gatewayv1.BackendRef) (types.NamespacedName, bool) { return serviceOf(b, r.Namespace) })
}

// Gateways returns the Gateways that the route names as its parents, each once and in
// order.
func (r *Route) Gateways() []types.NamespacedName {
	return distinctNames(r.Parents, func(p gatewayv1.ParentReference) (types.NamespacedName, bool) { return gatewayOf(p, r.Namespace) })
}

func distinctNames[T any](list []T, nameOf func(T) (types.NamespacedName, bool)) (found []types.NamespacedName) {
	for _, entry := range list {
		if name, ok := nameOf(entry); ok {
			found = append(found, name)
		}
	}
	slices.SortFunc(found, func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return slices.Compact(found)
}

// serviceOf returns the Service that a reference of a route names, and whether the reference names
// one and sends traffic there. A backend with the weight 0 gets no traffic.
func serviceOf(b gatewayv1.BackendRef, namespace string) (types.NamespacedName, bool) {
	return types.NamespacedName{Namespace: string(ptr.Deref(b.Namespace, gatewayv1.Namespace(namespace))), Name: string(b.Name)},
		ptr.Deref(b.Group, "") == "" && ptr.Deref(b.Kind, "Service") == "Service" && ptr.Deref(b.Weight, 1) > 0
}

// gatewayOf returns the Gateway that a reference of a route names, and whether the reference names
// one.
func gatewayOf(p gatewayv1.ParentReference, namespace string) (types.NamespacedName, bool) {
	return types.NamespacedName{Namespace: string(ptr.Deref(p.Namespace, gatewayv1.Namespace(namespace))), Name: string(p.Name)},
		ptr.Deref(p.Group, gatewayv1.GroupName) == gatewayv1.GroupName && ptr.Deref(p.Kind, "Gateway") == "Gateway"
}

// isAccepted reports whether a controller says that the route is attached to the parent and that
// its references are resolved. For a reference to another namespace the controller must say so,
// because that needs a ReferenceGrant. Otherwise it must not say the opposite.
func (r *Route) isAccepted(parent gatewayv1.ParentReference, foreign bool) bool {
	name, _ := gatewayOf(parent, r.Namespace)
	return slices.ContainsFunc(r.Statuses, func(s gatewayv1.RouteParentStatus) bool {
		of, ok := gatewayOf(s.ParentRef, r.Namespace)
		if !ok || of != name || ptr.Deref(s.ParentRef.SectionName, "") != ptr.Deref(parent.SectionName, "") || ptr.Deref(s.ParentRef.Port, 0) != ptr.Deref(parent.Port, 0) {
			return false
		}
		const resolved = string(gatewayv1.RouteConditionResolvedRefs)
		return meta.IsStatusConditionTrue(s.Conditions, string(gatewayv1.RouteConditionAccepted)) &&
			(meta.IsStatusConditionTrue(s.Conditions, resolved) || !foreign && !meta.IsStatusConditionFalse(s.Conditions, resolved))
	})
}
