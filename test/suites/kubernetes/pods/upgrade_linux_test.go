package pods

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	releaseNamespace = "federation"
	ownerService     = "federation-owner"
	dnsService       = "federation-dns"
	askedName        = "shop.fed.example."
	askedAddress     = "192.0.2.10"

	askEvery    = 5 * time.Millisecond // over each of UDP and TCP
	askPatience = 5 * time.Second      // as in the resolv.conf of the C library
)

// releaseValues are those of an owner of a file, and of CoreDNS beside the cluster's DNS.
var releaseValues = `owner:
  enabled: true
  image: {repository: localhost/federationctl}
  config: |
    listen: ":8008"
    metrics: ":9155"
    identity:
      files: {cert: /etc/federation/tls/tls.crt, key: /etc/federation/tls/tls.key, ca: /etc/federation/tls/ca.crt}
    allow: {ids: [consumer.example]}
    catalogs:
    - sources:
      - file: {path: /etc/federation/catalog/catalog.yaml}
  extraVolumes: [{name: catalog, configMap: {name: catalog}}]
  extraVolumeMounts: [{name: catalog, mountPath: /etc/federation/catalog, readOnly: true}]
dns:
  enabled: true
  image: {repository: localhost/coredns}
  owners:
  - zones: [` + federationZone + `]
    addresses: ["` + nodeAddress.String() + `:8008"]
`

// A release of the former chart, with the former images, is upgraded to what is built now and
// rolled back, while a client asks over UDP and TCP. It asks once and no second server, and no
// query is lost: not by pods that start, and not by those that end while nodes still send them
// queries. Pods of both versions serve beside each other, owners and CoreDNS at the same time.
func TestUpgrade(t *testing.T) {
	need(t, "runc", "umoci")
	newBridge(t)
	cluster := realserver.StartCluster(t, realserver.Options{Deployments: true})
	former := os.Getenv(formerVariable)
	a := newAgent(t, cluster, map[string]string{"former": filepath.Join(former, "bin/image"), "new": images})
	createInputs(t, cluster)
	values := filepath.Join(t.TempDir(), "values.yaml")
	must.Do(t, os.WriteFile(values, []byte(releaseValues), 0o600))
	t.Setenv("HOME", t.TempDir())
	helm := func(verb string, args ...string) {
		t.Helper()
		mustRun(t, realserver.Helm(t), append([]string{verb, "federation", "--kubeconfig=" + cluster.Kubeconfig, "--namespace=" + releaseNamespace}, args...)...)
	}
	tag := func(version string) string {
		return fmt.Sprintf("--set=owner.image.tag=%[1]s,dns.image.tag=%[1]s", version)
	}

	helm("install", filepath.Join(former, "deploy/chart"), "--values="+values, tag("former"))
	a.await(t, "former")
	l := startLoad(t, a)
	helm("upgrade", root+"/deploy/chart", "--reset-then-reuse-values", tag("new"))
	a.awaitBoth(t, "new")
	helm("rollback")
	a.awaitBoth(t, "former")
	l.end(t)
}

// createInputs creates what the release needs: its namespace, certificates and a catalog.
func createInputs(t *testing.T, cluster *realserver.Cluster) {
	t.Helper()
	core, files := cluster.Client.CoreV1(), certificates(t, nodeAddress.String())
	must.Get(core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: releaseNamespace}}, metav1.CreateOptions{}))(t)
	for name, f := range map[string]struct{ cert, key, ca string }{
		"federation-owner-tls": {files.owner.Cert, files.owner.Key, files.owner.CA},
		"federation-dns-tls":   {files.consumer.Cert, files.consumer.Key, files.consumer.CA},
	} {
		data := map[string]string{"tls.crt": readAll(t, f.cert), "tls.key": readAll(t, f.key), "ca.crt": readAll(t, f.ca)}
		must.Get(core.Secrets(releaseNamespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: data}, metav1.CreateOptions{}))(t)
	}
	text := fmt.Sprintf("services:\n- {name: shop, fqdn: %s, endpoints: [{address: %s, port: 443}], instances: [{id: v1, protocol: HTTPS}]}\n",
		strings.TrimSuffix(askedName, "."), askedAddress)
	must.Get(core.ConfigMaps(releaseNamespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "catalog"}, Data: map[string]string{"catalog.yaml": text},
	}, metav1.CreateOptions{}))(t)
}

// load asks the Service of CoreDNS, each query from a port of its own and once.
type load struct {
	stop func() // and awaits the goroutines

	mu       sync.Mutex
	answered map[string]int // by network and version
	lost     []string
}

// startLoad asks over UDP and TCP until end is called.
func startLoad(t *testing.T, a *agent) *load {
	t.Helper()
	var wg sync.WaitGroup
	stopped := make(chan struct{})
	l := &load{answered: make(map[string]int), stop: sync.OnceFunc(func() {
		close(stopped)
		wg.Wait()
	})}
	t.Cleanup(l.stop)
	for _, network := range []string{"udp", "tcp"} {
		wg.Go(func() {
			ticker := time.NewTicker(askEvery)
			defer ticker.Stop()
			for {
				select {
				case <-stopped:
					return
				case <-ticker.C:
					l.ask(a, network)
				}
			}
		})
	}
	return l
}

// ask asks once. A query without the right answer is lost.
func (l *load) ask(a *agent, network string) {
	e, ok := a.pick(dnsService)
	var failure string
	if !ok {
		failure = "there is no endpoint"
	} else {
		client := dns.Client{Net: network, Timeout: askPatience}
		answer, _, err := client.Exchange(new(dns.Msg).SetQuestion(askedName, dns.TypeA), net.JoinHostPort(e.address, "53"))
		if err != nil {
			failure = err.Error()
		} else if len(answer.Answer) != 1 || answer.Answer[0].(*dns.A).A.String() != askedAddress {
			failure = "wrong answer " + answer.String()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if failure != "" {
		l.lost = append(l.lost, fmt.Sprintf("%v %s %v: %s", time.Now(), network, e, failure))
		return
	}
	l.answered[network+" "+e.version]++
}

// end ends it. Nothing must have been lost, and pods of both versions must have answered.
func (l *load) end(t *testing.T) {
	t.Helper()
	l.stop()
	t.Logf("answered: %v, lost: %d", l.answered, len(l.lost))
	if len(l.lost) > 0 {
		t.Errorf("%d queries are lost: %q", len(l.lost), l.lost[:min(3, len(l.lost))])
	}
	for _, by := range []string{"udp former", "udp new", "tcp former", "tcp new"} {
		if l.answered[by] == 0 {
			t.Errorf("%s has answered nothing", by)
		}
	}
}
