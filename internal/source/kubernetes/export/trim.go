package export

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Trim returns a copy of object without the fields that neither this package nor its caller reads,
// or the [Route] of the object. The copy has what identifies an object and its version, the labels
// of Services, the generation and the conditions of ServiceExports, and everything that
// [Rules.Translate] reads. Trimming twice changes nothing. An object of another kind is an error.
func (r Rules) Trim(object any) (metav1.Object, error) {
	switch o := object.(type) {
	case *corev1.Service:
		return r.trimService(o), nil
	case *discoveryv1.EndpointSlice:
		return trimSlice(o), nil
	case *corev1.Node:
		return trimNode(o), nil
	case *gatewayv1.Gateway:
		return trimGateway(o), nil
	case *mcsv1beta1.ServiceExport:
		trimmed := &mcsv1beta1.ServiceExport{ObjectMeta: trimMeta(&o.ObjectMeta), Spec: o.Spec, Status: mcsv1beta1.ServiceExportStatus{Conditions: o.Status.Conditions}}
		trimmed.Generation = o.Generation
		return trimmed, nil
	case *Route:
		return o, nil
	}
	if route := routeOf(object); route != nil {
		return route, nil
	}
	return nil, fmt.Errorf("an object is a %T", object)
}

// trimMeta returns the metadata with only those labels that are named.
func trimMeta(m *metav1.ObjectMeta, labels ...string) metav1.ObjectMeta {
	trimmed := metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
	}
	for key, value := range m.Annotations {
		if strings.HasPrefix(key, prefix) {
			setEntry(&trimmed.Annotations, key, value)
		}
	}
	for _, key := range labels {
		if value, ok := m.Labels[key]; ok {
			setEntry(&trimmed.Labels, key, value)
		}
	}
	return trimmed
}

func setEntry(m *map[string]string, key, value string) {
	if *m == nil {
		*m = make(map[string]string)
	}
	(*m)[key] = value
}

func (r Rules) trimService(s *corev1.Service) *corev1.Service {
	trimmed := &corev1.Service{
		ObjectMeta: trimMeta(&s.ObjectMeta),
		Spec: corev1.ServiceSpec{
			Type: s.Spec.Type, ExternalIPs: s.Spec.ExternalIPs, ExternalTrafficPolicy: s.Spec.ExternalTrafficPolicy,
			IPFamilies: s.Spec.IPFamilies, PublishNotReadyAddresses: s.Spec.PublishNotReadyAddresses, Ports: s.Spec.Ports,
			SessionAffinity: s.Spec.SessionAffinity, SessionAffinityConfig: s.Spec.SessionAffinityConfig,
			InternalTrafficPolicy: s.Spec.InternalTrafficPolicy, TrafficDistribution: s.Spec.TrafficDistribution,
		},
		Status: corev1.ServiceStatus{LoadBalancer: s.Status.LoadBalancer},
	}
	trimmed.Labels = s.Labels // a selector of the configuration may ask for any
	for _, key := range r.Publish.Annotations {
		if value, ok := s.Annotations[key]; ok {
			setEntry(&trimmed.Annotations, key, value)
		}
	}
	if s.Spec.ClusterIP == corev1.ClusterIPNone {
		trimmed.Spec.ClusterIP = corev1.ClusterIPNone
	}
	return trimmed
}

// trimSlice returns an EndpointSlice with the endpoints of a headless Service. For another Service
// it only keeps on which nodes there are endpoints, because node ports need that and nothing needs
// the pods. So a pod that comes or goes changes little, and there is little to keep. Whoever writes
// a slice of a headless Service by hand has to set the label.
func trimSlice(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	trimmed := &discoveryv1.EndpointSlice{ObjectMeta: trimMeta(&s.ObjectMeta, discoveryv1.LabelServiceName, corev1.IsHeadlessService)}
	if _, headless := s.Labels[corev1.IsHeadlessService]; !headless {
		ready := make(map[string]bool) // by node: whether any endpoint there is
		for i := range s.Endpoints {
			if e := &s.Endpoints[i]; e.NodeName != nil {
				ready[*e.NodeName] = ready[*e.NodeName] || ptr.Deref(e.Conditions.Ready, true)
			}
		}
		for _, node := range slices.Sorted(maps.Keys(ready)) {
			trimmed.Endpoints = append(trimmed.Endpoints, discoveryv1.Endpoint{NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: new(ready[node])}})
		}
		return trimmed
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		trimmed.Endpoints = append(trimmed.Endpoints, discoveryv1.Endpoint{
			Addresses: e.Addresses[:min(len(e.Addresses), 1):min(len(e.Addresses), 1)], Conditions: discoveryv1.EndpointConditions{Ready: e.Conditions.Ready},
			Hostname: e.Hostname, NodeName: e.NodeName,
		})
	}
	trimmed.Ports = s.Ports
	return trimmed
}

func trimNode(n *corev1.Node) *corev1.Node {
	trimmed := &corev1.Node{ObjectMeta: trimMeta(&n.ObjectMeta, exclude)}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeExternalIP || a.Type == corev1.NodeInternalIP {
			trimmed.Status.Addresses = append(trimmed.Status.Addresses, a)
		}
	}
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			trimmed.Status.Conditions = append(trimmed.Status.Conditions, corev1.NodeCondition{Type: c.Type, Status: c.Status})
		}
	}
	return trimmed
}

func trimGateway(g *gatewayv1.Gateway) *gatewayv1.Gateway {
	trimmed := &gatewayv1.Gateway{ObjectMeta: trimMeta(&g.ObjectMeta)}
	trimmed.Status.Addresses = g.Status.Addresses
	for i := range g.Spec.Listeners {
		l := g.Spec.Listeners[i]
		if l.TLS != nil {
			l.TLS = &gatewayv1.ListenerTLSConfig{Mode: l.TLS.Mode}
		}
		trimmed.Spec.Listeners = append(trimmed.Spec.Listeners, l)
	}
	for i := range g.Status.Listeners {
		s := &g.Status.Listeners[i]
		trimmed.Status.Listeners = append(trimmed.Status.Listeners, gatewayv1.ListenerStatus{Name: s.Name, Conditions: trimConditions(s.Conditions)})
	}
	return trimmed
}

// trimConditions returns the status of those conditions of routes and listeners that are read.
func trimConditions(conditions []metav1.Condition) (trimmed []metav1.Condition) {
	for i := range conditions {
		switch c := &conditions[i]; c.Type {
		case string(gatewayv1.RouteConditionAccepted), string(gatewayv1.RouteConditionResolvedRefs), string(gatewayv1.ListenerConditionProgrammed):
			trimmed = append(trimmed, metav1.Condition{Type: c.Type, Status: c.Status})
		}
	}
	return trimmed
}
