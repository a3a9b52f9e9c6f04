package importing

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/provider"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

var update = flag.Bool("update", false, "write the objects in testdata")

// East imports what west exports, what is in a file, and what a program has registered. The
// objects are those of testdata, CoreDNS answers for them with its plugin for the cluster,
// and a connection to the virtual address of a Service reaches what west exports.
func TestImport(t *testing.T) {
	west, east := two(t)
	must.Do(t, west.Cluster.Apply(t.Context(), read(t, "testdata/exported.yaml")))
	file := catalog{"orders": {"192.0.2.1:8443", "192.0.2.2:8443", "192.0.2.3:9443"}}
	s := newSite(t, east.Cluster, "import", file, options{
		sources: fmt.Sprintf("  - registration: {rules: %q, linger: 0s, convergence: 1s}\n", must.Get(filepath.Abs("testdata/rules.yaml"))(t)),
		owners:  fmt.Sprintf("- {name: west, addresses: [%q], owner_ids: [%s], zones: [%s]}\n", west.Owners[0].Address, west.OwnerID(), west.Zone),
	})
	all := file.with(catalog{
		"web-shop": {endpointAddress + ":8080", "[" + endpointAddress6 + "]:8080"}, "hello": {"10.7.0.1:8443", "10.7.0.2:8443"},
	})
	s.watch.allow(all)
	leave := s.register(t, "hello.import.example", "https://10.7.0.1:8443", "https://10.7.0.2:8443")
	i := s.start(t, "importer")
	eventually(t, func() string { return s.watch.differs(all) })

	var text strings.Builder
	for _, key := range []string{record, "services/web-shop", "endpointslices/web-shop-v6-http-8080"} {
		text.WriteString("---\n" + documented(t, s.watch.object(key)))
	}
	golden := "testdata/objects.yaml"
	if *update {
		must.Do(t, os.WriteFile(golden, []byte(text.String()), 0o600))
	}
	if diff := cmp.Diff(read(t, golden), text.String()); diff != "" {
		t.Errorf("the objects are not those of %s (-want +got):\n%s", golden, diff)
	}

	web := must.Get(east.Cluster.Client.CoreV1().Services("import").Get(t.Context(), "web-shop", metav1.GetOptions{}))(t)
	const name = "web-shop.import.svc." + domain.ClusterZone
	answers(t, east, name, dns.TypeA, "NOERROR "+web.Spec.ClusterIPs[0])
	answers(t, east, name, dns.TypeAAAA, "NOERROR "+web.Spec.ClusterIPs[1])
	answers(t, east, "_http._tcp."+name, dns.TypeSRV, "NOERROR 0 50 8080 "+name+".")
	answers(t, east, "_https._tcp.hello.import.svc."+domain.ClusterZone, dns.TypeSRV, "NOERROR 0 50 8443 hello.import.svc."+domain.ClusterZone+".")
	t.Run("connection", func(t *testing.T) { connects(t, east, web) })

	s.watch.release("hello")
	leave()
	answers(t, east, "hello.import.svc."+domain.ClusterZone, dns.TypeA, "NXDOMAIN")
	all = all.without("hello")
	eventually(t, func() string { return s.watch.differs(all) })

	// Without a virtual address CoreDNS answers with the endpoints.
	headless := newSite(t, east.Cluster, "headless", file, options{more: "  headless: true\n  name: \"{service}-fed\"\n"})
	headless.watch.allow(catalog{"orders-fed": file["orders"]})
	headless.start(t, "importer")
	answers(t, east, "orders-fed.headless.svc."+domain.ClusterZone, dns.TypeA, "NOERROR 192.0.2.1 192.0.2.2 192.0.2.3")

	// Everything goes with the ConfigMap, once the importer has ended.
	must.Do(t, i.Stop())
	s.watch.release(all.names()...)
	s.remove(t, recordText)
	eventually(t, func() string { return s.watch.differs(nil) })
}

// register registers nodes of a service, until leave is called.
func (s *site) register(t *testing.T, service string, uris ...string) (leave func()) {
	t.Helper()
	source := must.Get(mtls.Load(s.Files("program"), nil))(t)
	program := must.Get(provider.New(provider.Config{
		Addresses: []string{s.address}, Identity: mtls.Consumer{Source: source, IDs: []federation.ID{must.Get(federation.ParseID(ownerID))(t)}},
	}))(t)
	for _, uri := range uris {
		must.Do(t, program.Set(provider.Node{Service: service, URI: uri}))
	}
	must.Run(t, program.Run)
	return func() { must.Do(t, program.Drain(t.Context(), 0)) }
}

// documented returns an object in YAML, without what the API server has chosen.
func documented(t *testing.T, object *unstructured.Unstructured) string {
	t.Helper()
	object = object.DeepCopy()
	for _, field := range []string{
		"metadata.creationTimestamp", "metadata.generation", "metadata.managedFields", "metadata.resourceVersion", "metadata.uid", "spec.clusterIP", "spec.clusterIPs",
	} {
		unstructured.RemoveNestedField(object.Object, strings.Split(field, ".")...)
	}
	references := object.GetOwnerReferences()
	for i := range references {
		references[i].UID = "UID"
	}
	object.SetOwnerReferences(references)
	return string(must.Get(yaml.Marshal(object.Object))(t))
}

// connects runs kube-proxy, and has a client connect to the virtual addresses of a Service.
func connects(t *testing.T, d *domain.Domain, service *corev1.Service) {
	t.Helper()
	if os.Getenv(sandboxVariable) == "" {
		t.Skip("no connection is made: kube-proxy needs root, and a network namespace")
	}
	proxy := realserver.KubeProxy(t)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Context().Value(http.LocalAddrContextKey))
	})}
	t.Cleanup(func() { _ = server.Close() })
	for _, address := range []string{endpointAddress, endpointAddress6} {
		listener := must.Get(net.Listen("tcp", net.JoinHostPort(address, "8080")))(t)
		go func() { _ = server.Serve(listener) }() // until it is closed
	}
	must.Do(t, d.Cluster.Apply(t.Context(), `{apiVersion: v1, kind: Node, metadata: {name: proxied}, status: {addresses: [{type: InternalIP, address: `+nodeAddress+`}]}}`))
	health := loopback.Address(t)
	(&realserver.Process{
		Name: "kube-proxy", Path: proxy, Dir: t.TempDir(), Ready: func(ctx context.Context) error {
			_, err := fetch(ctx, "http://"+health+"/healthz")
			return err
		},
		Args: []string{
			"--kubeconfig=" + d.Cluster.Kubeconfig, "--hostname-override=proxied", "--proxy-mode=iptables", "--iptables-localhost-nodeports=false",
			"--conntrack-max-per-core=0", "--healthz-bind-address=" + health, "--metrics-bind-address=" + loopback.Address(t),
		},
	}).StartFor(t)
	for i, want := range []string{endpointAddress, endpointAddress6} {
		url := "http://" + net.JoinHostPort(service.Spec.ClusterIPs[i], "8080")
		eventually(t, func() string {
			if got, err := fetch(t.Context(), url); err != nil || got != net.JoinHostPort(want, "8080") {
				return fmt.Sprintf("%s is answered by %q, %v, want %s", url, got, err, want)
			}
			return ""
		})
	}
}
