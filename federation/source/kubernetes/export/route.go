package export

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Route is what HTTPRoute, GRPCRoute, TLSRoute and TCPRoute have in common.
type Route struct {
	Kind            gatewayv1.Kind
	Namespace, Name string
	Parents         []gatewayv1.ParentReference
	Hostnames       []gatewayv1.Hostname
	Backends        []gatewayv1.BackendRef
	Statuses        []gatewayv1.RouteParentStatus
}

// The kinds of routes.
const (
	httpRoute gatewayv1.Kind = "HTTPRoute"
	grpcRoute gatewayv1.Kind = "GRPCRoute"
	tlsRoute  gatewayv1.Kind = "TLSRoute"
	tcpRoute  gatewayv1.Kind = "TCPRoute"
)

// RouteOf returns the route that object is, and whether it is one: an HTTPRoute,
// GRPCRoute, TLSRoute or TCPRoute of v1. The older versions have the same fields, so
// their objects can be read as those of v1. A route that is being deleted has no
// parents.
func RouteOf(object any) (Route, bool) {
	switch o := object.(type) {
	case *gatewayv1.HTTPRoute:
		r := newRoute(httpRoute, &o.ObjectMeta, &o.Spec.CommonRouteSpec, &o.Status.RouteStatus, o.Spec.Hostnames)
		for i := range o.Spec.Rules {
			for j := range o.Spec.Rules[i].BackendRefs {
				r.Backends = append(r.Backends, o.Spec.Rules[i].BackendRefs[j].BackendRef)
			}
		}
		return r, true
	case *gatewayv1.GRPCRoute:
		r := newRoute(grpcRoute, &o.ObjectMeta, &o.Spec.CommonRouteSpec, &o.Status.RouteStatus, o.Spec.Hostnames)
		for i := range o.Spec.Rules {
			for j := range o.Spec.Rules[i].BackendRefs {
				r.Backends = append(r.Backends, o.Spec.Rules[i].BackendRefs[j].BackendRef)
			}
		}
		return r, true
	case *gatewayv1.TLSRoute:
		r := newRoute(tlsRoute, &o.ObjectMeta, &o.Spec.CommonRouteSpec, &o.Status.RouteStatus, o.Spec.Hostnames)
		for i := range o.Spec.Rules {
			r.Backends = append(r.Backends, o.Spec.Rules[i].BackendRefs...)
		}
		return r, true
	case *gatewayv1.TCPRoute:
		r := newRoute(tcpRoute, &o.ObjectMeta, &o.Spec.CommonRouteSpec, &o.Status.RouteStatus, nil)
		for i := range o.Spec.Rules {
			r.Backends = append(r.Backends, o.Spec.Rules[i].BackendRefs...)
		}
		return r, true
	}
	return Route{}, false
}

func newRoute(kind gatewayv1.Kind, meta *metav1.ObjectMeta, spec *gatewayv1.CommonRouteSpec, status *gatewayv1.RouteStatus, hostnames []gatewayv1.Hostname) Route {
	r := Route{Kind: kind, Namespace: meta.Namespace, Name: meta.Name, Hostnames: hostnames, Statuses: status.Parents}
	if meta.DeletionTimestamp == nil {
		r.Parents = spec.ParentRefs
	}
	return r
}

// Services returns the Services that the route leads to, each once and in order.
func (r Route) Services() []types.NamespacedName {
	return names(r.Backends, func(b gatewayv1.BackendRef) (types.NamespacedName, bool) { return serviceOf(b, r.Namespace) })
}

// Gateways returns the Gateways that the route names as its parents, each once and in
// order.
func (r Route) Gateways() []types.NamespacedName {
	return names(r.Parents, func(p gatewayv1.ParentReference) (types.NamespacedName, bool) { return gatewayOf(p, r.Namespace) })
}

func names[T any](list []T, nameOf func(T) (types.NamespacedName, bool)) (found []types.NamespacedName) {
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

// serviceOf returns the Service that a reference of a route names, and whether it
// names one and sends traffic there. A backend with the weight 0 gets none.
func serviceOf(b gatewayv1.BackendRef, namespace string) (types.NamespacedName, bool) {
	return types.NamespacedName{Namespace: string(value(b.Namespace, gatewayv1.Namespace(namespace))), Name: string(b.Name)},
		value(b.Group, "") == "" && value(b.Kind, "Service") == "Service" && value(b.Weight, 1) > 0
}

// gatewayOf returns the Gateway that a reference of a route names, and whether it
// names one.
func gatewayOf(p gatewayv1.ParentReference, namespace string) (types.NamespacedName, bool) {
	return types.NamespacedName{Namespace: string(value(p.Namespace, gatewayv1.Namespace(namespace))), Name: string(p.Name)},
		value(p.Group, gatewayv1.GroupName) == gatewayv1.GroupName && value(p.Kind, "Gateway") == "Gateway"
}

// value returns what p points to, or the value that stands for nil.
func value[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// accepted reports whether a controller says that the route is attached to the
// parent and that its references hold. Of a reference to another namespace it must
// say so, as that takes a ReferenceGrant; else it must not say the opposite.
func (r Route) accepted(parent gatewayv1.ParentReference, foreign bool) bool {
	name, _ := gatewayOf(parent, r.Namespace)
	return slices.ContainsFunc(r.Statuses, func(s gatewayv1.RouteParentStatus) bool {
		of, ok := gatewayOf(s.ParentRef, r.Namespace)
		if !ok || of != name || value(s.ParentRef.SectionName, "") != value(parent.SectionName, "") || value(s.ParentRef.Port, 0) != value(parent.Port, 0) {
			return false
		}
		resolved := statusOf(s.Conditions, string(gatewayv1.RouteConditionResolvedRefs))
		return statusOf(s.Conditions, string(gatewayv1.RouteConditionAccepted)) == metav1.ConditionTrue &&
			(resolved == metav1.ConditionTrue || resolved != metav1.ConditionFalse && !foreign)
	})
}

// statusOf returns the status of the condition, Unknown where there is none.
func statusOf(conditions []metav1.Condition, kind string) metav1.ConditionStatus {
	for i := range conditions {
		if conditions[i].Type == kind {
			return conditions[i].Status
		}
	}
	return metav1.ConditionUnknown
}
