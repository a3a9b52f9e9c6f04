package deploy

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const patience = 2 * time.Minute // bounds each wait for something that must happen

// programs builds the programs of the images, and returns the folder that they are in.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", dir, root+"/cmd/coredns", root+"/cmd/federationctl").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// start runs a program until the end of the test.
func start(t *testing.T, path string, args ...string) {
	t.Helper()
	p := &realserver.Process{Name: filepath.Base(path), Path: path, Dir: t.TempDir(), Args: args}
	p.StartFor(t)
}

// ask asks a server from an address of this machine. An answer that does not come is
// an error.
func ask(from, server, name string, qtype uint16) (*dns.Msg, error) {
	query := new(dns.Msg)
	query.SetQuestion(dns.Fqdn(name), qtype)
	client := dns.Client{Timeout: 10 * time.Second, Dialer: &net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}}
	reply, _, err := client.Exchange(query, server)
	return reply, err
}

// addresses returns the addresses in a reply.
func addresses(reply *dns.Msg) (found []string) {
	for _, rr := range reply.Answer {
		if a, ok := rr.(*dns.A); ok {
			found = append(found, a.A.String())
		}
	}
	return found
}

// want waits until a name has an address.
func want(t *testing.T, from, server, name, address string) {
	t.Helper()
	await.Until(t, patience, func() string {
		reply, err := ask(from, server, name, dns.TypeA)
		if err == nil && fmt.Sprint(addresses(reply)) == fmt.Sprint([]string{address}) {
			return ""
		}
		return fmt.Sprintf("the answer for %s is %v, %v, want %s", name, reply, err, address)
	})
}

const upstreamAnswer = "198.51.100.7"

// startUpstream starts a name server that has one address for every name, and logs what it
// was asked for.
func startUpstream(t *testing.T, bin string) (upstream *realserver.Process, address string) {
	t.Helper()
	address = loopback.Address(t)
	upstream = &realserver.Process{Name: "upstream", Path: filepath.Join(bin, "coredns"), Dir: t.TempDir(), Args: []string{"-conf", "Corefile"}, Ready: place.Dial(address)}
	must.Do(t, os.WriteFile(filepath.Join(upstream.Dir, "Corefile"), []byte(`.:`+strings.TrimPrefix(address, "127.0.0.1:")+` {
    bind 127.0.0.1
    log
    template IN A {
        answer "{{ .Name }} 60 IN A `+upstreamAnswer+`"
    }
    template IN ANY {
        rcode NOERROR
    }
}
`), 0o600))
	upstream.StartFor(t)
	return upstream, address
}

// asked reports whether somebody has asked for a name upstream.
func (w *world) asked(name string) bool { return w.upstream.Logged(" IN "+name+". ") > 0 }

// world is what a Corefile of a recipe meets in a cluster: certificates, an owner with
// two services, other name servers, and for one recipe an API server.
type world struct {
	bin, certificates, owner, kubeconfig string
	upstream                             *realserver.Process
	upstreamAddress                      string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{bin: programs(t), certificates: t.TempDir(), owner: loopback.Address(t)}
	w.upstream, w.upstreamAddress = startUpstream(t, w.bin)
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(filepath.Join(w.bin, "federationctl"), args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	run("pki", w.certificates)
	file := func(name string) string { return filepath.Join(w.certificates, name) }
	for name, of := range map[string]string{"tls.crt": "consumer.pem", "tls.key": "consumer-key.pem", "ca.crt": "ca.pem"} {
		must.Do(t, os.Symlink(of, file(name)))
	}
	catalog := file("catalog.yaml")
	must.Do(t, os.WriteFile(catalog, []byte(`services:
- {name: web, fqdn: web.west.fed.example, endpoints: [{address: 192.0.2.1, port: 80}], instances: [{id: v1, protocol: HTTP}]}
- {name: lb, fqdn: lb.west.fed.example, endpoints: [{address: lb-1.cloud.example, port: 80}], instances: [{id: v1, protocol: HTTP}]}
`), 0o600))
	start(t, filepath.Join(w.bin, "federationctl"), "serve", "--listen", w.owner, "--catalog", catalog,
		"--cert", file("owner.pem"), "--key", file("owner-key.pem"), "--ca", file("ca.pem"), "--allow-any")
	return w
}

// serve starts CoreDNS with a Corefile in which everything outside of it is what there
// is here, and returns its address. What else the Corefile says stays.
func (w *world) serve(t *testing.T, corefile string) (address string) {
	t.Helper()
	address = loopback.Address(t)
	_, port, err := net.SplitHostPort(address)
	must.Do(t, err)
	dir := t.TempDir()
	for _, change := range []struct{ what, by string }{
		{`:(53|1053|1054)\b`, ":" + port},
		{`(owner) \S+:8008\b`, "$1 " + w.owner},
		{`owner_id \S+`, "owner_id spiffe://federation.example/owner"},
		{`/etc/federation/tls(-\d+)?/`, w.certificates + "/"},
		{` certs/`, " " + w.certificates + "/"},
		{`/var/lib/federation/`, dir + "/"},
		{`/etc/resolv.conf`, w.upstreamAddress},
		{` health \{`, " health " + loopback.Address(t) + " {"},
		{`(?m)^( *)ready$`, "${1}ready " + loopback.Address(t)},
		{`prometheus :9153`, "prometheus " + loopback.Address(t)},
		{`run/kubeconfig`, w.kubeconfig},
	} {
		corefile = regexp.MustCompile(change.what).ReplaceAllString(corefile, change.by)
	}
	if w.kubeconfig != "" && !strings.Contains(corefile, "kubeconfig") {
		corefile = regexp.MustCompile(`(?m)^( *kubernetes .*\{)$`).ReplaceAllString(corefile, "$1\nkubeconfig "+w.kubeconfig)
	}
	path := filepath.Join(dir, "Corefile")
	must.Do(t, os.WriteFile(path, []byte(corefile), 0o600))
	start(t, filepath.Join(w.bin, "coredns"), "-conf", path)
	return address
}

// CoreDNS beside the cluster's DNS answers for the zones, looks up endpoints that are
// host names, and is no resolver for others.
func TestBeside(t *testing.T) {
	helm, w := helm(t, ""), newWorld(t)
	example := must.Get(os.ReadFile(root + "/corefile-examples/kubernetes-beside/Corefile"))(t)
	_, example, ok := bytes.Cut(example, []byte("\nfed.example:1054")) // without the block for the cluster's DNS
	if !ok {
		t.Fatal("the example has no block for fed.example:1054")
	}
	for name, corefile := range map[string]string{
		"chart":   fileOf(t, helm.template(t, "beside"), "Corefile"),
		"example": "fed.example:1054" + string(example),
	} {
		t.Run(name, func(t *testing.T) {
			server := w.serve(t, corefile)
			want(t, "127.0.0.2", server, "web.west.fed.example", "192.0.2.1")
			want(t, "127.0.0.2", server, "lb.west.fed.example", upstreamAnswer)
			await.Until(t, patience, func() string {
				if !w.asked("lb-1.cloud.example") {
					return "the host of an endpoint was not looked up upstream"
				}
				return ""
			})
			reply, err := ask("127.0.0.2", server, "other.example", dns.TypeA)
			if err != nil || reply.Rcode != dns.RcodeRefused || w.asked("other.example") {
				t.Errorf("the answer for a name of others is %v, %v, want REFUSED, and nobody asked", reply, err)
			}
		})
	}
}

// CoreDNS as the cluster's DNS answers for the cluster with the rights that the chart
// gives it, for the zones of owners, and forwards the rest.
func TestClusterDNS(t *testing.T) {
	helm, server := helm(t, ""), realserver.StartAPIServer(t)
	kubectl := kubectl(t, server.Kubeconfig)
	w := newWorld(t)
	rendered := helm.template(t, "cluster-dns")
	kubectl.must(t, rendered, "apply", "-f", "-")
	kubectl.must(t, "", "create", "service", "clusterip", "db", "--namespace=default", "--tcp=5432", "--clusterip=10.96.7.7")
	// A kubeconfig of the account that the pods have.
	token := strings.TrimSpace(kubectl.must(t, "", "create", "token", "federation-dns", "--namespace=kube-system"))
	text := must.Get(os.ReadFile(server.Kubeconfig))(t)
	w.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text = regexp.MustCompile(`token: "[^"]*"`).ReplaceAll(text, []byte(`token: "`+token+`"`))
	must.Do(t, os.WriteFile(w.kubeconfig, text, 0o600))
	example := must.Get(os.ReadFile(root + "/corefile-examples/kubernetes-cluster-dns/Corefile"))(t)
	for name, corefile := range map[string]string{"chart": fileOf(t, rendered, "Corefile"), "example": string(example)} {
		t.Run(name, func(t *testing.T) {
			server := w.serve(t, corefile)
			want(t, "127.0.0.2", server, "db.default.svc.cluster.local", "10.96.7.7")
			want(t, "127.0.0.2", server, "web.west.fed.example", "192.0.2.1")
			want(t, "127.0.0.2", server, "lb.west.fed.example", upstreamAnswer)
			want(t, "127.0.0.2", server, "other.example", upstreamAnswer)
			reply, err := ask("127.0.0.2", server, "no.default.svc.cluster.local", dns.TypeA)
			if err != nil || reply.Rcode != dns.RcodeNameError || w.asked("no.default.svc.cluster.local") {
				t.Errorf("the answer for a name of the cluster is %v, %v, want NXDOMAIN, and nobody asked", reply, err)
			}
		})
	}
}
