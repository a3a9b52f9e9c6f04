package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
)

// Short names: see there.
var (
	eventually = await.Eventually
	answers    = domain.AwaitAnswer
)

// shared is what the tests share.
var shared domain.Shared

func TestMain(m *testing.M) { shared.Main(m) }

// two returns the shared domains: west with two owners, and east with one.
func two(t testing.TB) (west, east *domain.Domain) {
	t.Helper()
	domains := shared.Get(t, "e2e", domain.Options{Name: "west", Owners: 2}, domain.Options{Name: "east"})
	showLogs(t, &shared.Federation)
	return domains[0], domains[1]
}

// showLogs shows the ends of the logs of all owners and CoreDNS when a test has
// failed, or when one of these has had a panic.
func showLogs(t testing.TB, w *domain.Federation) {
	t.Helper()
	t.Cleanup(func() {
		for _, p := range w.Processes() {
			if n := p.Logged("panic"); n > 0 && !strings.HasPrefix(p.Name, "kube") {
				t.Errorf("%s has %d lines about a panic", p.Log(), n)
			}
			if t.Failed() && !strings.HasPrefix(p.Name, "kube") && p.Name != "etcd" {
				t.Logf("the end of %s:\n%s", p.Log(), p.Tail())
			}
		}
	})
}

// apply applies objects in YAML, with their status, in the cluster of a domain.
func apply(t testing.TB, d *domain.Domain, objects ...string) {
	t.Helper()
	must.Do(t, d.Cluster.Apply(t.Context(), strings.Join(objects, "\n---\n")))
}

// remove deletes objects in YAML.
func remove(t testing.TB, d *domain.Domain, objects ...string) {
	t.Helper()
	must.Do(t, d.Cluster.Delete(t.Context(), strings.Join(objects, "\n---\n")))
}

// namespace creates a namespace, and deletes it with what is in it when the test
// ends.
func namespace(t testing.TB, d *domain.Domain, name string) {
	t.Helper()
	text := fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", name)
	apply(t, d, text)
	t.Cleanup(func() {
		if err := d.Cluster.Delete(context.Background(), text); err != nil { // the test's context is over
			t.Logf("deleting the namespace %s: %v", name, err)
		}
	})
}

// export is the manifest of a ServiceExport.
func export(namespace, name string) string {
	return fmt.Sprintf("{apiVersion: multicluster.x-k8s.io/v1beta1, kind: ServiceExport, metadata: {name: %s, namespace: %s}}", name, namespace)
}

// balanced is the manifest of a Service with one port, https, at an address of a
// load balancer.
func balanced(namespace, name, address string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: %s}
spec:
  type: LoadBalancer
  allocateLoadBalancerNodePorts: false
  ports: [{name: https, port: 443, appProtocol: https}]
status:
  loadBalancer: {ingress: [{ip: %s}]}
`, name, namespace, address)
}

// stateful is the manifest of a headless Service with one port, 5432, and of its
// pods, as a StatefulSet makes them: NAME-0 with the first address, and so on.
func stateful(namespace, name string, addresses ...string) string {
	var text strings.Builder
	fmt.Fprintf(&text, `apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  clusterIP: None
  selector: {app: %[1]s}
  ports: [{name: tcp-sql, port: 5432}]
`, name, namespace)
	for i, address := range addresses {
		text.WriteString("---\n" + pod(namespace, name, i, address, true))
	}
	return text.String()
}

// pod is the manifest of the i-th pod of a StatefulSet.
func pod(namespace, name string, i int, address string, ready bool) string {
	status := "False"
	if ready {
		status = "True"
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %[1]s-%[3]d, namespace: %[2]s, labels: {app: %[1]s}}
spec:
  hostname: %[1]s-%[3]d
  subdomain: %[1]s
  nodeName: %[6]s
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: none}]
status:
  phase: Running
  podIP: %[4]s
  podIPs: [{ip: %[4]s}]
  conditions: [{type: Ready, status: %[5]q}]
`, name, namespace, i, address, status, domain.Node)
}

var serviceExports = schema.GroupVersionResource{Group: "multicluster.x-k8s.io", Version: "v1beta1", Resource: "serviceexports"}

// says waits until a ServiceExport has a condition with a status and a reason, such
// as "Ready", "True" and "Exported".
func says(t testing.TB, d *domain.Domain, namespace, name, kind, status, reason string) {
	t.Helper()
	eventually(t, func() string {
		object, err := d.Cluster.Dynamic.Resource(serviceExports).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		conditions, err := conditionsOf(object)
		must.Do(t, err)
		if c := conditions[kind]; string(c.Status) != status || c.Reason != reason {
			return fmt.Sprintf("the condition %s of %s/%s is %v, want %s, %s", kind, namespace, name, conditions[kind], status, reason)
		}
		return ""
	})
}

// conditionsOf returns the conditions of a ServiceExport by their types.
func conditionsOf(object *unstructured.Unstructured) (map[string]metav1.Condition, error) {
	var e mcsv1beta1.ServiceExport
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &e); err != nil {
		return nil, err
	}
	conditions := make(map[string]metav1.Condition)
	for _, c := range e.Status.Conditions {
		conditions[c.Type] = c
	}
	return conditions, nil
}
