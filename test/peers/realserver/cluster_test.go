package realserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// database is a headless Service with a pod on a node, as a StatefulSet makes it.
const database = `
apiVersion: v1
kind: Node
metadata: {name: node-1}
status:
  conditions: [{type: Ready, status: "True"}]
  addresses: [{type: InternalIP, address: 192.0.2.1}]
---
apiVersion: v1
kind: Namespace
metadata: {name: data}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: data}
spec:
  clusterIP: None
  selector: {app: db}
  ports: [{name: sql, port: 5432}]
---
apiVersion: v1
kind: Pod
metadata: {name: db-0, namespace: data, labels: {app: db}}
spec:
  hostname: db-0
  subdomain: db
  nodeName: node-1
  terminationGracePeriodSeconds: 0
  containers: [{name: db, image: db}]
status:
  phase: Running
  podIP: 10.1.0.1
  podIPs: [{ip: 10.1.0.1}]
  conditions: [{type: Ready, status: "True"}]
---
apiVersion: multicluster.x-k8s.io/v1beta1
kind: ServiceExport
metadata: {name: db, namespace: data}
status:
  conditions: [{type: Valid, status: "True", reason: Valid, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]
`

// endpoints returns the hostname, address and readiness of each endpoint of a Service.
func endpoints(ctx context.Context, client kubernetes.Interface, namespace, service string) ([]string, error) {
	slices, err := client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		return nil, err
	}
	var all []string
	for _, slice := range slices.Items {
		for _, e := range slice.Endpoints {
			hostname := ""
			if e.Hostname != nil {
				hostname = *e.Hostname
			}
			all = append(all, fmt.Sprintf("%s %s %t", hostname, e.Addresses[0], *e.Conditions.Ready))
		}
	}
	return all, nil
}

func awaitEndpoints(t *testing.T, client kubernetes.Interface, want ...string) {
	t.Helper()
	must.Do(t, until(t.Context(), func() error {
		got, err := endpoints(t.Context(), client, "data", "db")
		if err == nil && fmt.Sprint(got) != fmt.Sprint(want) {
			err = fmt.Errorf("endpoints are %q, want %q", got, want)
		}
		return err
	}))
}

// A cluster goes on after each of its components was killed, and after its state was
// set back.
func TestCluster(t *testing.T) {
	ctx := t.Context()
	c := StartCluster(t, Options{MCS: MCSBoth(), Gateway: "experimental"})
	for _, group := range []string{"multicluster.x-k8s.io/v1beta1", "multicluster.x-k8s.io/v1alpha1", "gateway.networking.k8s.io/v1alpha2"} {
		if _, err := c.Client.Discovery().ServerResourcesForGroupVersion(group); err != nil {
			t.Errorf("%s: %v", group, err)
		}
	}
	must.Do(t, c.Apply(ctx, database))
	awaitEndpoints(t, c.Client, "db-0 10.1.0.1 true")
	exports := c.Dynamic.Resource(schema.GroupVersionResource{Group: "multicluster.x-k8s.io", Version: "v1alpha1", Resource: "serviceexports"})
	export, err := exports.Namespace("data").Get(ctx, "db", metav1.GetOptions{})
	if err != nil || export.Object["status"] == nil {
		t.Errorf("the ServiceExport is %v, %v, and has no status", export, err)
	}
	backup, err := c.Backup(ctx, "backup")
	must.Do(t, err)

	for name, restart := range map[string]func(context.Context) error{
		"etcd": c.Etcd.Restart, "kube-apiserver": c.API.Restart, "kube-controller-manager": c.Controllers.Restart,
	} {
		if err := restart(ctx); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	must.Do(t, c.Etcd.Compact(ctx))
	err = until(ctx, func() error { // a request may meet an etcd that was killed
		return c.Delete(ctx, "{apiVersion: v1, kind: Pod, metadata: {name: db-0, namespace: data}}")
	})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	awaitEndpoints(t, c.Client)
	must.Do(t, c.Restore(ctx, backup))
	awaitEndpoints(t, c.Client, "db-0 10.1.0.1 true")

	must.Do(t, c.Uninstall(ctx, ServiceExports))
	err = until(ctx, func() error { // the API server learns of what has gone by its own watch
		if _, err := exports.List(ctx, metav1.ListOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("ServiceExports without their CRD: %w, want not found", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	must.Do(t, c.InstallMCS(ctx, "v1alpha1"))
	if _, err := c.Client.Discovery().ServerResourcesForGroupVersion("multicluster.x-k8s.io/v1alpha1"); err != nil {
		t.Error(err)
	}
	must.Do(t, c.Delete(ctx, "{apiVersion: v1, kind: Namespace, metadata: {name: data}}"))
	err = until(ctx, func() error {
		_, err := c.Client.CoreV1().Namespaces().Get(ctx, "data", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the namespace is still there, %w", err)
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAccess(t *testing.T) {
	ctx := t.Context()
	c := StartCluster(t, Options{Bare: true})
	gate, url := c.StartGate(t)
	rule := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list"}}
	must.Do(t, c.ServiceAccount(ctx, "default", "owner", rule))
	list := func(a Access) error {
		t.Helper()
		path := must.Get(c.NewKubeconfig("user", url, a))(t)
		config := must.Get(clientcmd.BuildConfigFromFlags("", path))(t)
		config.Timeout = 10 * time.Second
		client, err := kubernetes.NewForConfig(config)
		must.Do(t, err)
		_, err = client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
		return err
	}
	token, err := c.Token(ctx, "default", "owner", 10*time.Minute)
	must.Do(t, err)
	if err := list(Access{Token: token}); err != nil {
		t.Errorf("service account: %v", err)
	}
	must.Do(t, c.ServiceAccount(ctx, "default", "owner"))
	err = until(ctx, func() error { // the API server learns of new rules by its own watch
		if err := list(Access{Token: token}); !apierrors.IsForbidden(err) {
			return fmt.Errorf("service account without rules: %w", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for name, lifetime := range map[string]time.Duration{"valid": time.Hour, "expired": -time.Minute} {
		user := must.Get(c.Certificate("somebody", lifetime))(t)
		if got := list(user); lifetime > 0 && !apierrors.IsForbidden(got) || lifetime < 0 && !apierrors.IsUnauthorized(got) {
			t.Errorf("%s certificate: %v", name, got)
		}
	}
	gate.Refuse(true)
	gate.Cut()
	if err := list(c.Admin()); err == nil {
		t.Error("a list goes through a gate that refuses")
	}
	gate.Refuse(false)
	if err := list(c.Admin()); err != nil {
		t.Error(err)
	}
}

func TestGateStalls(t *testing.T) {
	e := StartEtcd(t)
	gate := StartGate(t, e.URL[len("http://"):])
	client := &http.Client{Timeout: 200 * time.Millisecond, Transport: new(http.Transport)}
	t.Cleanup(client.CloseIdleConnections)
	get := func() error {
		response, err := client.Get("http://" + gate.Address + "/health")
		if err == nil {
			err = response.Body.Close()
		}
		return err
	}
	gate.Stall(true)
	var timeout interface{ Timeout() bool }
	if err := get(); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("request through a stalled gate: %v, want a timeout", err)
	}
	gate.Stall(false)
	client.Timeout = oneCall
	if err := get(); err != nil {
		t.Error(err)
	}
}

func TestEach(t *testing.T) {
	var did [100]int
	must.Do(t, Each(t.Context(), len(did), func(_ context.Context, i int) error { did[i]++; return nil }))
	for i, n := range did {
		if n != 1 {
			t.Errorf("f was called %d times with %d", n, i)
		}
	}
	failed := errors.New("failed")
	err := Each(t.Context(), 1000, func(_ context.Context, i int) error {
		if i == 3 {
			return failed
		}
		return nil
	})
	if !errors.Is(err, failed) {
		t.Errorf("error is %v, want %v", err, failed)
	}
}
