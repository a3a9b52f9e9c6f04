package export

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// BenchmarkTranslate is what a change of one Service costs.
func BenchmarkTranslate(b *testing.B) {
	balanced := newTestCase()
	balanced.service = &corev1.Service{Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "https", Port: 443}},
	}}
	balanced.service.Namespace, balanced.service.Name = "shop", "web"
	balanced.service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	for _, test := range []struct {
		name string
		of   *testCase
	}{{"load-balancer", balanced}, {"100 nodes", withNodes(100, "http")}, {"100 pods", withPods(100)}} {
		b.Run(test.name, func(b *testing.B) {
			in := test.of.input()
			b.ReportAllocs()
			for b.Loop() {
				if v := test.of.rules.Translate(in); v.Service == nil {
					b.Fatal(v.Refusal)
				}
			}
		})
	}
}
