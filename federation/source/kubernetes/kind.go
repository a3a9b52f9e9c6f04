package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// kind is a kind of objects that a source reads.
type kind int

const (
	kindService kind = iota
	kindSlice
	kindNode
	kindExport
	kindGateway
	kindHTTPRoute
	kindGRPCRoute
	kindTLSRoute
	kindTCPRoute
	kinds // how many there are
)

const (
	mcsGroup     = mcsv1beta1.GroupName
	gatewayGroup = gatewayv1.GroupName
)

// resource is what the API server knows of a kind. The versions of a kind differ in
// nothing that is read, so that one Go type stands for all.
type resource struct {
	group, name, kind string
	versions          []string // the best first
	custom            bool     // it is defined by a CustomResourceDefinition, or not at all
	everywhere        bool     // it is read in all namespaces even where only some are exported
	object, list      runtime.Object
}

var resources = [kinds]resource{
	kindService: {"", "services", "Service", []string{"v1"}, false, false, &corev1.Service{}, &corev1.ServiceList{}},
	kindSlice: {
		discoveryv1.GroupName, "endpointslices", "EndpointSlice",
		[]string{"v1"},
		false, false,
		&discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{},
	},
	kindNode: {"", "nodes", "Node", []string{"v1"}, false, true, &corev1.Node{}, &corev1.NodeList{}},
	kindExport: {
		mcsGroup, "serviceexports", "ServiceExport",
		[]string{"v1beta1", "v1alpha1"},
		true, false,
		&mcsv1beta1.ServiceExport{}, &mcsv1beta1.ServiceExportList{},
	},
	// A route and its Gateway may be in other namespaces than the Service.
	kindGateway: {
		gatewayGroup, "gateways", "Gateway",
		[]string{"v1", "v1beta1"},
		true, true,
		&gatewayv1.Gateway{}, &gatewayv1.GatewayList{},
	},
	kindHTTPRoute: {
		gatewayGroup, "httproutes", "HTTPRoute",
		[]string{"v1", "v1beta1"},
		true, true,
		&gatewayv1.HTTPRoute{}, &gatewayv1.HTTPRouteList{},
	},
	kindGRPCRoute: {
		gatewayGroup, "grpcroutes", "GRPCRoute",
		[]string{"v1"},
		true, true,
		&gatewayv1.GRPCRoute{}, &gatewayv1.GRPCRouteList{},
	},
	kindTLSRoute: {
		gatewayGroup, "tlsroutes", "TLSRoute",
		[]string{"v1", "v1alpha3", "v1alpha2"},
		true, true,
		&gatewayv1.TLSRoute{}, &gatewayv1.TLSRouteList{},
	},
	kindTCPRoute: {
		gatewayGroup, "tcproutes", "TCPRoute",
		[]string{"v1", "v1alpha2"},
		true, true,
		&gatewayv1.TCPRoute{}, &gatewayv1.TCPRouteList{},
	},
}

// String returns the resource with its group, as kubectl names it.
func (k kind) String() string {
	return schema.GroupResource{Group: resources[k].group, Resource: resources[k].name}.String()
}

// newScheme returns the types that are read and written. There is no clientset: it
// would bring every type of Kubernetes into the program.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, r := range resources {
		for _, version := range r.versions {
			gv := schema.GroupVersion{Group: r.group, Version: version}
			scheme.AddKnownTypeWithName(gv.WithKind(r.kind), r.object)
			scheme.AddKnownTypeWithName(gv.WithKind(r.kind+"List"), r.list)
			metav1.AddToGroupVersion(scheme, gv)
		}
	}
	gv := eventsv1.SchemeGroupVersion
	scheme.AddKnownTypes(gv, &eventsv1.Event{})
	metav1.AddToGroupVersion(scheme, gv)
	return scheme
}

// discover returns in which version the API server has each of the wanted kinds, or
// "" where it has not. An error means that this is not known.
func (c *client) discover(ctx context.Context, wanted []kind) (map[kind]string, error) {
	found := make(map[kind]string, len(wanted))
	served := make(map[schema.GroupVersion][]string) // the resources of what was asked for
	groups := make(map[string][]string)              // the versions of what was asked for
	for _, k := range wanted {
		r := resources[k]
		if !r.custom {
			found[k] = r.versions[0]
			continue
		}
		versions, ok := groups[r.group]
		if !ok {
			var err error
			if versions, err = c.versions(ctx, r.group); err != nil {
				return nil, err
			}
			groups[r.group] = versions
		}
		found[k] = ""
		for _, version := range r.versions {
			if !slices.Contains(versions, version) {
				continue
			}
			gv := schema.GroupVersion{Group: r.group, Version: version}
			names, ok := served[gv]
			if !ok {
				var err error
				if names, err = c.resources(ctx, gv); err != nil {
					return nil, err
				}
				served[gv] = names
			}
			if slices.Contains(names, r.name) {
				found[k] = version
				break
			}
		}
	}
	return found, nil
}

// versions returns the versions of a group that are served, or none.
func (c *client) versions(ctx context.Context, group string) ([]string, error) {
	var answer metav1.APIGroup
	if err := c.getJSON(ctx, "/apis/"+group, &answer); err != nil {
		return nil, err
	}
	versions := make([]string, 0, len(answer.Versions))
	for _, v := range answer.Versions {
		versions = append(versions, v.Version)
	}
	return versions, nil
}

// resources returns the names of the resources of a version of a group, or none.
func (c *client) resources(ctx context.Context, gv schema.GroupVersion) ([]string, error) {
	var answer metav1.APIResourceList
	if err := c.getJSON(ctx, "/apis/"+gv.String(), &answer); err != nil {
		return nil, err
	}
	names := make([]string, 0, len(answer.APIResources))
	for _, r := range answer.APIResources {
		names = append(names, r.Name)
	}
	return names, nil
}

// getJSON reads what is at a path into v, which stays as it is where nothing is there.
func (c *client) getJSON(ctx context.Context, path string, v any) error {
	body, err := c.get(ctx, path, "application/json")
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// metadataOnly asks for the metadata of an object: the schema in a definition of the
// Gateway API has hundreds of kilobytes.
const metadataOnly = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"

// defined reports whether the definition of a kind is there to stay. Before a
// definition goes, its objects are deleted one by one, as if their authors did that;
// and its deletion is marked before the first of them goes.
func (c *client) defined(ctx context.Context, k kind) (bool, error) {
	var definition metav1.PartialObjectMetadata
	path := "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + k.String()
	body, err := c.get(ctx, path, metadataOnly)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	}
	if err := json.Unmarshal(body, &definition); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return definition.DeletionTimestamp == nil, nil
}
