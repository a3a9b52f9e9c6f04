package realserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// Options are those of a cluster. The zero value has controllers, and no CRDs.
type Options struct {
	MCS      []string // versions of the MCS API that are served: v1alpha1, v1beta1 (MCSBoth); none: it is not installed
	Gateway  string   // channel of the Gateway API: standard or experimental; empty: it is not installed
	Services string   // CIDR of the addresses of Services; default 10.96.0.0/12

	Deployments bool // Deployments have pods, which a test makes ready

	Bare bool // no controller-manager: namespaces do not end, and EndpointSlices are the test's
}

// MCSBoth are the versions of the MCS API.
func MCSBoth() []string { return []string{"v1alpha1", "v1beta1"} }

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
	Controllers *Process // nil with Options.Bare

	Kubeconfig string // path of that of the user who may do everything
	Config     *rest.Config
	Client     kubernetes.Interface
	Dynamic    dynamic.Interface

	dir       string
	authority *mtls.Authority // of client certificates
	mapper    *restmapper.DeferredDiscoveryRESTMapper
}

// StartCluster starts a cluster for a test, waits until it is ready, and ends it with
// the test.
func StartCluster(tb testing.TB, options Options) *Cluster {
	tb.Helper()
	find := FindCluster
	if options.Bare {
		find = FindAPIServer
	}
	need(tb, find())
	c := must.Get(NewCluster(tb.TempDir(), options))(tb)
	endWith(tb, func(p *Process) error { p.Kill(); return nil }, c.processes()...)
	must.Do(tb, c.Start(tb.Context(), options))
	return c
}

// NewCluster returns a cluster that has not been started, with its files in dir, which
// must exist.
func NewCluster(dir string, options Options) (*Cluster, error) {
	authority, err := mtls.NewAuthority("clients", 24*time.Hour)
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, authority: authority}
	if c.Etcd, err = newEtcd(dir); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "clients.pem"), authority.PEM(), 0o600); err != nil {
		return nil, err
	}
	if c.API, err = newAPIServer(dir, c.Etcd, cmp.Or(options.Services, serviceRange), "--client-ca-file=clients.pem"); err != nil {
		return nil, err
	}
	c.Kubeconfig = c.API.Kubeconfig
	if !options.Bare {
		running := controllersRunning
		if options.Deployments {
			running += ",deployment-controller,replicaset-controller"
		}
		err = c.addControllers(running)
	}
	return c, err
}

// addControllers adds a kube-controller-manager that has not been started.
func (c *Cluster) addControllers(running string) error {
	path, err := controllers.findHere()
	if err != nil {
		return err
	}
	addresses, err := freeAddresses(1)
	if err != nil {
		return err
	}
	host, port, _ := strings.Cut(addresses[0], ":")
	client := &http.Client{Transport: insecure()}
	c.Controllers = &Process{
		Name: "kube-controller-manager", Path: path, Dir: c.dir,
		Args: []string{
			"--kubeconfig=" + c.Kubeconfig, "--controllers=" + running, "--leader-elect=false",
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

// processes returns all of the cluster, in the order in which they start.
func (c *Cluster) processes() []*Process {
	all := []*Process{c.Etcd.Process, c.API.Process}
	if c.Controllers != nil {
		all = append(all, c.Controllers)
	}
	return all
}

// Start starts all of it, and installs what the options say.
func (c *Cluster) Start(ctx context.Context, options Options) error {
	for _, p := range c.processes() {
		if err := p.Start(ctx); err != nil {
			return err
		}
	}
	if err := c.connect(); err != nil {
		return err
	}
	if err := c.InstallMCS(ctx, options.MCS...); err != nil {
		return err
	}
	return c.InstallGateway(ctx, options.Gateway)
}

// connect makes the clients.
func (c *Cluster) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1                           // no limit
	config.WarningHandler = rest.NoWarnings{} // of what is deprecated
	c.Config = config
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
	all := c.processes()
	for i := range all {
		all[len(all)-1-i].Kill()
	}
}

// Backup copies the state of the cluster to a folder, and returns its path. The API
// server goes on running, and waits for etcd meanwhile.
func (c *Cluster) Backup(ctx context.Context, name string) (string, error) {
	to := filepath.Join(c.dir, name)
	return to, c.Etcd.Backup(ctx, to)
}

// Restore sets the cluster back to what a Backup has: the API server and the
// controllers are ended before, as its documentation asks for, and started after.
func (c *Cluster) Restore(ctx context.Context, from string) error {
	if c.Controllers != nil {
		c.Controllers.Kill()
	}
	c.API.Kill()
	if err := c.Etcd.Restore(ctx, from); err != nil {
		return err
	}
	err := c.API.Start(ctx)
	if c.Controllers != nil {
		err = errors.Join(err, c.Controllers.Start(ctx))
	}
	return err
}

// insecure returns a transport for a server that signs its own certificate.
func insecure() *http.Transport {
	return &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
}
