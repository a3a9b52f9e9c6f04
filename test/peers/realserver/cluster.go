package realserver

import (
	"context"
	"crypto/tls"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// controllersRunning are those that a cluster of tests needs: EndpointSlices follow
// Services and pods, a namespace and what depends on an object go when they are
// deleted, and a namespace has a service account.
const controllersRunning = "endpointslice-controller,namespace-controller,garbage-collector-controller,serviceaccount-controller"

// Cluster is a control plane of Kubernetes without nodes: etcd, kube-apiserver and
// kube-controller-manager, each of which can be killed and started again with the
// same data on the same port. Nodes and pods are objects that a test writes, with
// their status (Apply).
type Cluster struct {
	Etcd        *Etcd
	API         *APIServer
	Controllers *Process // nil of StartCluster

	Kubeconfig string // path of that of the user who may do everything
	Client     kubernetes.Interface
	Dynamic    dynamic.Interface

	dir    string
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

// StartCluster starts a cluster without controllers for a test, waits until it is ready,
// and ends it with the test: namespaces do not end, and EndpointSlices are the test's.
func StartCluster(tb testing.TB) *Cluster {
	tb.Helper()
	api := StartAPIServer(tb)
	c := &Cluster{Etcd: api.Etcd, API: api, Kubeconfig: api.Kubeconfig, dir: api.Dir}
	must.Do(tb, c.connect())
	return c
}

// NewCluster returns a cluster that has not been started, with its files in dir, which
// must exist.
func NewCluster(dir string) (*Cluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir}
	if c.Etcd, err = newEtcd(dir); err != nil {
		return nil, err
	}
	if c.API, err = newAPIServer(dir, c.Etcd); err != nil {
		return nil, err
	}
	c.Kubeconfig = c.API.Kubeconfig
	return c, c.addControllers()
}

// addControllers adds a kube-controller-manager that has not been started.
func (c *Cluster) addControllers() error {
	path, err := controllers.findHere()
	if err != nil {
		return err
	}
	addresses, err := freeAddresses(1)
	if err != nil {
		return err
	}
	host, port, _ := strings.Cut(addresses[0], ":")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // it signs its own certificate
	c.Controllers = &Process{
		Name: "kube-controller-manager", Path: path, Dir: c.dir,
		Args: []string{
			"--kubeconfig=" + c.Kubeconfig, "--controllers=" + controllersRunning, "--leader-elect=false",
			"--bind-address=" + host, "--secure-port=" + port, "--cert-dir=controllers",
			"--kube-api-qps=1000", "--kube-api-burst=2000", "--concurrent-endpoint-syncs=10", "--concurrent-service-endpoint-syncs=10",
			"--endpointslice-updates-batch-period=0", "--profiling=false",
		},
		Ready: func(ctx context.Context) error {
			_, err := call(ctx, client, http.MethodGet, "https://"+addresses[0]+"/healthz", "", nil)
			client.CloseIdleConnections()
			return err
		},
	}
	return nil
}

// Processes returns all of a NewCluster, in the order in which they start.
func (c *Cluster) Processes() []*Process {
	return []*Process{c.Etcd.Process, c.API.Process, c.Controllers}
}

// Start starts all of it.
func (c *Cluster) Start(ctx context.Context) error {
	for _, p := range c.Processes() {
		if err := p.Start(ctx); err != nil {
			return err
		}
	}
	return c.connect()
}

// connect makes the clients.
func (c *Cluster) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1                           // no limit
	config.WarningHandler = rest.NoWarnings{} // of what is deprecated
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	c.Client = client
	if c.Dynamic, err = dynamic.NewForConfig(config); err != nil {
		return err
	}
	c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	return nil
}

// Kill ends all of it, the last one first.
func (c *Cluster) Kill() {
	for _, p := range slices.Backward(c.Processes()) {
		p.Kill()
	}
}
