package export

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/internal/limits"
)

// TestTranslateRandom checks what holds for every verdict over many cases, and that
// they are of all sorts.
func TestTranslateRandom(t *testing.T) {
	seen := make(map[string]int)
	for seed := range uint64(3000) {
		v := translateRandom(t, seed)
		if v.Refusal != nil {
			seen[string(v.Refusal.Rule)]++
		}
		seen[string(v.Kind)]++
		for _, w := range v.Warnings {
			seen[string(w.Rule)]++
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	for _, rule := range []Rule{
		NoService, InvalidServiceType, BeingDeleted, NameOutsideZone, NameNotAllowed, InvalidName, BadAnnotation, NoPort, UDPOnly, NoAddress, TooLarge,
		UnsupportedPort, UnreachablePort, DuplicateID, InvalidID, InvalidAddress, MixedListeners, AmbiguousListener, UnknownAnnotation, TooManyEndpoints, NoExportLabel,
	} {
		if seen[string(rule)] == 0 {
			t.Errorf("no case breaks the rule %s: %v", rule, seen)
		}
	}
	for _, kind := range EndpointKinds() {
		if seen[string(kind)] == 0 {
			t.Errorf("no case has endpoints of the kind %s: %v", kind, seen)
		}
	}
}

func FuzzTranslate(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { translateRandom(t, seed) })
}

func translateRandom(t *testing.T, seed uint64) Verdict {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 0))
	w := dice{random}.testCase()
	v := w.rules.Translate(w.input())
	checkVerdict(t, w, v, random)
	return v
}

// dice makes objects of a few values that often meet, and of some that no API server
// would accept.
type dice struct{ *rand.Rand }

func (d dice) one(of int) bool { return d.IntN(of) == 0 }

func pick[T any](d dice, values ...T) T { return values[d.IntN(len(values))] }

// maybe returns a pointer to one of the values, or nil.
func maybe[T any](d dice, values ...T) *T {
	i := d.IntN(len(values) + 1)
	if i == len(values) {
		return nil
	}
	return &values[i]
}

func several[T any](d dice, most int, one func() T) (list []T) {
	for range d.IntN(most + 1) {
		list = append(list, one())
	}
	return list
}

func (d dice) testCase() *testCase {
	w := newTestCase()
	w.rules.RoutablePods = !d.one(3)
	if d.one(3) {
		w.rules.Order = several(d, 6, func() EndpointKind { return append(EndpointKinds(), "", "other")[d.IntN(7)] })
	}
	w.rules.Grants = several(d, 2, func() Grant {
		return grant(pick(d, []string{"shop"}, []string{AnyNamespace}, []string{"pay", "edge"}),
			pick(d, "*", "*.west.fed.example", "pay.west.fed.example", "*.pay.west.fed.example", "api.pay.west.fed.example", "west.fed.example"))
	})
	w.rules.Publish.Labels, w.rules.Publish.Annotations = several(d, 1, func() string { return "tier" }), several(d, 1, func() string { return "example.com/fqdn" })
	if d.one(2) {
		w.export = &mcsv1beta1.ServiceExport{ObjectMeta: d.meta("shop", "web")}
		w.export.Spec.ExportedLabels = []map[string]string{nil, {"tier": "public"}, {"": ""}}[w.export.CreationTimestamp.Unix()%3]
	}
	if w.export != nil && d.one(15) {
		return w
	}
	w.service = d.service()
	w.slices = several(d, 4, d.slice)
	w.nodes = several(d, 4, d.node)
	w.routes = several(d, 5, d.route)
	w.gates = []*gatewayv1.Gateway{d.gate("a"), d.gate("b")}
	if d.one(100) {
		var ids []string
		for i := range limits.SANs + 1 {
			ids = append(ids, fmt.Sprintf("spiffe://west.example/%d", i))
		}
		w.service.Annotations = map[string]string{prefix + "sans": strings.Join(ids, ",")}
	}
	if d.one(100) {
		for i := range 1001 {
			w.service.Status.LoadBalancer.Ingress = append(w.service.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: fmt.Sprintf("198.51.%d.%d", i/250, i%250)})
		}
		w.service.Spec.Type = corev1.ServiceTypeLoadBalancer
	}
	return w.withLabels()
}

func (d dice) meta(namespace, name string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Namespace: namespace, Name: name, Generation: d.Int64N(3), CreationTimestamp: metav1.Unix(d.Int64N(5), 0), ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "x"}}}
	if d.one(40) {
		m.DeletionTimestamp = &metav1.Time{}
	}
	set := func(value string, keys ...string) {
		if d.one(25) {
			if m.Annotations == nil {
				m.Annotations = make(map[string]string)
			}
			m.Annotations[pick(d, keys...)] = value
		}
	}
	set(pick(d, "pay.west.fed.example", "api.pay.west.fed.example", "v1.web.shop.west.fed.example", "shop.west.fed.example", "west.fed.example.", "pay.east.fed.example", "..", "", "\xff", "é.west.fed.example"), prefix+"fqdn")
	set(pick(d, "spiffe://west.example/a", "spiffe://west.example/b,spiffe://west.example/a", "nobody", ""), prefix+"sans")
	set(pick(d, "SNI=a.example", "HOSTNAME=a.example SNI=b.example", "SNI=a SNI=b", "PORT=1", ""), prefix+"metadata.http", prefix+"metadata.80", prefix+"metadata.port-80", prefix+"metadata.none")
	set("x", prefix+"fqnd", "example.com/fqdn", prefix+"export")
	if d.one(2) {
		m.Labels = map[string]string{"tier": "public", prefix + "export": "true"}
	}
	return m
}

func (d dice) portName() string {
	return pick(d, "", "http", "http", "http-web", "grpc", "db-0", "Web", "a.b", "\xff")
}

func (d dice) number() int32 { return pick[int32](d, 80, 80, 80, 80, 443, 443, 53, 0, -1, 70000) }

func (d dice) protocol() corev1.Protocol {
	return pick(d, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolTCP, "", corev1.ProtocolUDP, corev1.ProtocolSCTP, "ICMP")
}

func (d dice) address() string {
	return pick(d, "192.0.2.1", "192.0.2.2", "192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1", "LB.cloud.example", "lb.cloud.example.", "fe80::1%eth0", "", "..", "\xff")
}

func (d dice) service() *corev1.Service {
	s := &corev1.Service{ObjectMeta: d.meta("shop", "web")}
	s.Spec = corev1.ServiceSpec{
		Type:                     pick(d, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer),
		ClusterIP:                pick(d, corev1.ClusterIPNone, corev1.ClusterIPNone, "10.0.0.1"),
		ExternalTrafficPolicy:    pick(d, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal),
		PublishNotReadyAddresses: d.one(4),
		ExternalIPs:              several(d, 1, d.address),
		IPFamilies:               several(d, 2, func() corev1.IPFamily { return pick(d, corev1.IPv4Protocol, corev1.IPv6Protocol) }),
		Ports: several(d, 5, func() corev1.ServicePort {
			return corev1.ServicePort{
				Name: d.portName(), Protocol: d.protocol(), Port: d.number(), NodePort: pick[int32](d, 0, 30080, 30081),
				AppProtocol: maybe(d, "http", "grpc", "kubernetes.io/h2c", "redis", "TLS"),
			}
		}),
		Selector: map[string]string{"app": "web"},
	}
	if d.one(30) {
		s.Spec.Type = corev1.ServiceTypeExternalName
	}
	s.Status.LoadBalancer.Ingress = several(d, 2, func() corev1.LoadBalancerIngress {
		return corev1.LoadBalancerIngress{
			IP: pick(d, "", d.address()), Hostname: pick(d, "", d.address()), IPMode: maybe(d, corev1.LoadBalancerIPModeProxy),
			Ports: several(d, 2, func() corev1.PortStatus {
				return corev1.PortStatus{Port: d.number(), Protocol: d.protocol(), Error: maybe(d, "example.com/Error")}
			}),
		}
	})
	return s
}

func (d dice) slice() *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: d.meta("shop", "web-x"), AddressType: discoveryv1.AddressTypeIPv4}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: pick(d, "web", "web", "web", "other"), "x": "y"}
	s.Endpoints = several(d, 4, func() discoveryv1.Endpoint {
		return discoveryv1.Endpoint{
			Addresses: several(d, 2, d.address), Hostname: maybe(d, "db-0", "db-1", "http", "Web", "", "\xff"), NodeName: maybe(d, "n1", "n2"),
			Conditions: discoveryv1.EndpointConditions{Ready: maybe(d, true, false), Serving: maybe(d, true, false), Terminating: maybe(d, true, false)},
			Zone:       maybe(d, "z"), TargetRef: &corev1.ObjectReference{Name: "x"},
		}
	})
	s.Ports = several(d, 3, func() discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: maybe(d, d.portName()), Protocol: maybe(d, d.protocol()), Port: maybe(d, d.number()), AppProtocol: maybe(d, "x")}
	})
	return s
}

func (d dice) node() *corev1.Node {
	n := &corev1.Node{ObjectMeta: d.meta("", pick(d, "n1", "n2", "n3"))}
	if d.one(6) {
		n.Labels = map[string]string{exclude: "", "x": "y"}
	}
	for _, kind := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeReady} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: kind, Status: pick(d, corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionFalse), Message: "x", LastHeartbeatTime: metav1.Unix(d.Int64N(9), 0),
		})
	}
	n.Status.Addresses = several(d, 3, func() corev1.NodeAddress {
		return corev1.NodeAddress{Type: pick(d, corev1.NodeExternalIP, corev1.NodeInternalIP, corev1.NodeHostName), Address: d.address()}
	})
	return n
}

func (d dice) conditions(kinds ...string) (list []metav1.Condition) {
	for _, kind := range kinds {
		if !d.one(10) {
			list = append(list, metav1.Condition{Type: kind, Status: pick(d, metav1.ConditionTrue, metav1.ConditionTrue, metav1.ConditionTrue, metav1.ConditionTrue, metav1.ConditionTrue, metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown), Message: "x"})
		}
	}
	return list
}

func (d dice) parent() gatewayv1.ParentReference {
	return gatewayv1.ParentReference{
		Name: pick[gatewayv1.ObjectName](d, "a", "b"), Namespace: maybe[gatewayv1.Namespace](d, "shop"),
		SectionName: pick(d, nil, nil, maybe[gatewayv1.SectionName](d, "l1", "l2")), Port: pick(d, nil, nil, maybe[gatewayv1.PortNumber](d, 80, 443)),
		Kind: maybe[gatewayv1.Kind](d, "Gateway", "Gateway", "Gateway", "ListenerSet"),
	}
}

func (d dice) hostname() gatewayv1.Hostname {
	return pick[gatewayv1.Hostname](d, "a.example", "*.example", "b.a.example", "*", "")
}

func (d dice) route() any {
	meta := d.meta(pick(d, "shop", "shop", "shop", "edge"), pick(d, "r1", "r2"))
	spec := gatewayv1.CommonRouteSpec{ParentRefs: several(d, 2, d.parent)}
	var status gatewayv1.RouteStatus
	for _, parent := range spec.ParentRefs {
		if !d.one(5) {
			status.Parents = append(status.Parents, gatewayv1.RouteParentStatus{
				ParentRef: parent, ControllerName: "x", Conditions: d.conditions("Accepted", "ResolvedRefs", "Other"),
			})
		}
	}
	hostnames := several(d, 2*d.IntN(2), d.hostname)
	backends := several(d, 3, func() gatewayv1.BackendRef {
		b := gatewayv1.BackendRef{Weight: maybe[int32](d, 1, 1, 0)}
		b.Name, b.Port = pick[gatewayv1.ObjectName](d, "web", "web", "other"), maybe[gatewayv1.PortNumber](d, 80, 80, 80, 443)
		b.Namespace, b.Kind = maybe[gatewayv1.Namespace](d, "shop", "shop", "edge"), maybe[gatewayv1.Kind](d, "Service", "ServiceImport")
		return b
	})
	switch d.IntN(4) {
	case 0:
		r := &gatewayv1.GRPCRoute{ObjectMeta: meta, Spec: gatewayv1.GRPCRouteSpec{CommonRouteSpec: spec, Hostnames: hostnames}}
		for _, b := range backends {
			r.Spec.Rules = append(r.Spec.Rules, gatewayv1.GRPCRouteRule{BackendRefs: []gatewayv1.GRPCBackendRef{{BackendRef: b}}})
		}
		r.Status.RouteStatus = status
		return r
	case 1:
		r := &gatewayv1.TLSRoute{ObjectMeta: meta, Spec: gatewayv1.TLSRouteSpec{CommonRouteSpec: spec, Hostnames: hostnames, Rules: []gatewayv1.TLSRouteRule{{BackendRefs: backends}}}}
		r.Status.RouteStatus = status
		return r
	case 2:
		r := &gatewayv1.TCPRoute{ObjectMeta: meta, Spec: gatewayv1.TCPRouteSpec{CommonRouteSpec: spec, Rules: []gatewayv1.TCPRouteRule{{BackendRefs: backends}}}}
		r.Status.RouteStatus = status
		return r
	}
	r := &gatewayv1.HTTPRoute{ObjectMeta: meta, Spec: gatewayv1.HTTPRouteSpec{CommonRouteSpec: spec, Hostnames: hostnames}}
	for _, b := range backends {
		r.Spec.Rules = append(r.Spec.Rules, gatewayv1.HTTPRouteRule{BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: b, Filters: []gatewayv1.HTTPRouteFilter{{}}}}})
	}
	r.Status.RouteStatus = status
	return r
}

func (d dice) gate(name string) *gatewayv1.Gateway {
	g := &gatewayv1.Gateway{ObjectMeta: d.meta("shop", name)}
	for _, listener := range []gatewayv1.SectionName{"l1", "l2", "l3"} {
		l := gatewayv1.Listener{
			Name: listener, Hostname: pick(d, nil, nil, maybe(d, d.hostname())), Port: pick[gatewayv1.PortNumber](d, 80, 443),
			Protocol: pick(d, gatewayv1.HTTPProtocolType, gatewayv1.HTTPSProtocolType, gatewayv1.TLSProtocolType, gatewayv1.TCPProtocolType, gatewayv1.UDPProtocolType),
		}
		if d.one(2) {
			l.TLS = &gatewayv1.ListenerTLSConfig{Mode: maybe(d, gatewayv1.TLSModeTerminate, gatewayv1.TLSModePassthrough), CertificateRefs: []gatewayv1.SecretObjectReference{{Name: "x"}}}
		}
		if d.one(2) {
			l.AllowedRoutes = &gatewayv1.AllowedRoutes{
				Namespaces: maybe(d, gatewayv1.RouteNamespaces{From: maybe(d, gatewayv1.NamespacesFromAll, gatewayv1.NamespacesFromSelector, gatewayv1.NamespacesFromNone)}),
				Kinds:      several(d, 1, func() gatewayv1.RouteGroupKind { return gatewayv1.RouteGroupKind{Kind: pick(d, httpRoute, grpcRoute)} }),
			}
		}
		g.Spec.Listeners = append(g.Spec.Listeners, l)
		g.Status.Listeners = append(g.Status.Listeners, gatewayv1.ListenerStatus{Name: listener, AttachedRoutes: 1, Conditions: d.conditions("Accepted", "Programmed", "Other")})
	}
	g.Status.Addresses = several(d, 2, func() gatewayv1.GatewayStatusAddress {
		return gatewayv1.GatewayStatusAddress{Type: maybe(d, gatewayv1.IPAddressType, gatewayv1.HostnameAddressType, gatewayv1.NamedAddressType), Value: d.address()}
	})
	return g
}
