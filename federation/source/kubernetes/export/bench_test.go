package export

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// BenchmarkTranslate is what a change of one Service costs.
func BenchmarkTranslate(b *testing.B) {
	service := func(spec corev1.ServiceSpec) *world {
		w := newWorld()
		w.rules.RoutablePods = true
		w.service = &corev1.Service{Spec: spec}
		w.service.Namespace, w.service.Name = "shop", "web"
		return w
	}
	balanced := service(corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "https", Port: 443}}})
	balanced.service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}

	nodes := service(corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Name: "http", Port: 80, NodePort: 30080}}})
	for i := range 100 {
		n := &corev1.Node{}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.0.0.%d", i)}}
		nodes.nodes = append(nodes.nodes, n)
	}

	pods := service(corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Name: "mongo", Port: 27017}}})
	slice := &discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{{Name: new("mongo"), Port: new(int32(27017))}}}
	slice.Namespace, slice.Labels = "shop", map[string]string{discoveryv1.LabelServiceName: "web"}
	for i := range 100 {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.0.%d", i)}, Hostname: new(fmt.Sprintf("db-%d", i))})
	}
	pods.slices = []*discoveryv1.EndpointSlice{slice}

	for _, test := range []struct {
		name  string
		world *world
	}{{"load-balancer", balanced}, {"100 nodes", nodes}, {"100 pods", pods}} {
		b.Run(test.name, func(b *testing.B) {
			in := test.world.input()
			b.ReportAllocs()
			for b.Loop() {
				if v := test.world.rules.Translate(in); v.Service == nil {
					b.Fatal(v.Refusal)
				}
			}
		})
	}
}
