package kubernetes

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/internal/kube"
)

// objectKind is a kind of objects that a source reads.
type objectKind int

const (
	kindService objectKind = iota
	kindSlice
	kindNode
	kindExport
	kindGateway
	kindHTTPRoute
	kindGRPCRoute
	kindTLSRoute
	kindTCPRoute
	kinds // the number of kinds
)

const (
	mcsGroup     = mcsv1beta1.GroupName
	gatewayGroup = gatewayv1.GroupName
)

// apiResource is a kind as the API server knows it. The versions of a kind do not differ in the
// fields that are read, so that one Go type stands for all.
type apiResource struct {
	group, name  string
	versions     []string // the best first
	custom       bool     // a CustomResourceDefinition defines the kind, if the server has it
	everywhere   bool     // the kind is read in all namespaces even where only some are exported
	object, list runtime.Object
}

var resources = [kinds]apiResource{
	kindService: {"", "services", []string{"v1"}, false, false, &corev1.Service{}, &corev1.ServiceList{}},
	kindSlice:   {discoveryv1.GroupName, "endpointslices", []string{"v1"}, false, false, &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{}},
	kindNode:    {"", "nodes", []string{"v1"}, false, true, &corev1.Node{}, &corev1.NodeList{}},
	kindExport:  {mcsGroup, "serviceexports", []string{"v1beta1", "v1alpha1"}, true, false, &mcsv1beta1.ServiceExport{}, &mcsv1beta1.ServiceExportList{}},
	// A route and its Gateway may be in other namespaces than the Service.
	kindGateway:   {gatewayGroup, "gateways", []string{"v1", "v1beta1"}, true, true, &gatewayv1.Gateway{}, &gatewayv1.GatewayList{}},
	kindHTTPRoute: {gatewayGroup, "httproutes", []string{"v1", "v1beta1"}, true, true, &gatewayv1.HTTPRoute{}, &gatewayv1.HTTPRouteList{}},
	kindGRPCRoute: {gatewayGroup, "grpcroutes", []string{"v1"}, true, true, &gatewayv1.GRPCRoute{}, &gatewayv1.GRPCRouteList{}},
	kindTLSRoute:  {gatewayGroup, "tlsroutes", []string{"v1", "v1alpha3", "v1alpha2"}, true, true, &gatewayv1.TLSRoute{}, &gatewayv1.TLSRouteList{}},
	kindTCPRoute:  {gatewayGroup, "tcproutes", []string{"v1", "v1alpha2"}, true, true, &gatewayv1.TCPRoute{}, &gatewayv1.TCPRouteList{}},
}

// String returns the resource with its group, as kubectl names it.
func (k objectKind) String() string {
	return schema.GroupResource{Group: resources[k].group, Resource: resources[k].name}.String()
}

// newScheme returns a scheme with the types that are read and written.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, r := range resources {
		for _, version := range r.versions {
			gv := schema.GroupVersion{Group: r.group, Version: version}
			scheme.AddKnownTypes(gv, r.object, r.list)
			metav1.AddToGroupVersion(scheme, gv)
		}
	}
	return scheme
}

// discoverKinds returns the version in which the API server has each of the wanted kinds, or ""
// where it does not have the kind. An error means that this is not known.
func discoverKinds(ctx context.Context, c *kube.Client, wanted []objectKind) (map[objectKind]string, error) {
	found := make(map[objectKind]string, len(wanted))
	served := make(map[schema.GroupVersion]metav1.APIResourceList) // what was asked for
	for _, k := range wanted {
		r := resources[k]
		if !r.custom {
			found[k] = r.versions[0]
			continue
		}
		for _, version := range r.versions {
			gv := schema.GroupVersion{Group: r.group, Version: version}
			list, ok := served[gv]
			if !ok {
				api, err := c.Group(gv)
				if err == nil {
					err = api.Get().MaxRetries(0).Timeout(oneRequest).Do(ctx).Into(&list)
				}
				if err != nil && !apierrors.IsNotFound(err) {
					return nil, err
				}
				served[gv] = list
			}
			if slices.ContainsFunc(list.APIResources, func(a metav1.APIResource) bool { return a.Name == r.name }) {
				found[k] = version
				break
			}
		}
	}
	return found, nil
}
