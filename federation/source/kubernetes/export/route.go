package export

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayv1alpha2 "sigs.k8s.io/gateway-api/apis/v1alpha2"
	gatewayv1alpha3 "sigs.k8s.io/gateway-api/apis/v1alpha3"
	mcsv1alpha1 "sigs.k8s.io/mcs-api/pkg/apis/v1alpha1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
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

// RouteOf returns the route that object is, and whether it is one: an HTTPRoute or a
// GRPCRoute of v1, a TLSRoute of v1, v1alpha3 or v1alpha2, or a TCPRoute of v1 or
// v1alpha2. A route that is being deleted has no parents.
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
	case *gatewayv1alpha3.TLSRoute:
		return RouteOf((*gatewayv1.TLSRoute)(&gatewayv1.TLSRoute{ObjectMeta: o.ObjectMeta, Spec: gatewayv1.TLSRouteSpec(o.Spec), Status: o.Status}))
	case *gatewayv1alpha2.TLSRoute:
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
	case *gatewayv1alpha2.TCPRoute:
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

// ExportOf returns the export that object is, and whether it is one: a ServiceExport
// of v1beta1 or v1alpha1.
func ExportOf(object any) (Export, bool) {
	switch o := object.(type) {
	case *mcsv1beta1.ServiceExport:
		return newExport(&o.ObjectMeta), true
	case *mcsv1alpha1.ServiceExport:
		return newExport(&o.ObjectMeta), true
	}
	return Export{}, false
}

func newExport(meta *metav1.ObjectMeta) Export {
	return Export{
		Namespace: meta.Namespace, Name: meta.Name, Generation: meta.Generation, Annotations: meta.Annotations,
		Created: meta.CreationTimestamp.Time, Deleted: meta.DeletionTimestamp != nil,
	}
}

// Services returns the Services that the route leads to, each once and in order.
func (r Route) Services() []types.NamespacedName { return nil }

// Gateways returns the Gateways that the route names as its parents, each once and in
// order.
func (r Route) Gateways() []types.NamespacedName { return nil }
