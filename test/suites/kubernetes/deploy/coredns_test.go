package deploy

import (
	"fmt"
	"net"
	"os"
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

func TestMain(m *testing.M) { place.Main(m) }

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

// surroundings are what a Corefile of a recipe meets in a cluster: certificates, an owner with
// two services, an API server, and a name server that has one address for every name, and logs
// what it was asked for.
type surroundings struct {
	certificates, owner, kubeconfig string
	upstream                        *realserver.Process
	upstreamAddress                 string
}

func startSurroundings(t *testing.T) *surroundings {
	t.Helper()
	s := &surroundings{certificates: t.TempDir(), owner: loopback.Address(t), upstreamAddress: loopback.Address(t)}
	s.upstream = &realserver.Process{
		Name: "upstream", Path: place.Built(t, "coredns"), Dir: t.TempDir(), Args: []string{"-conf", "Corefile"}, Ready: place.Dial(s.upstreamAddress),
	}
	must.Do(t, os.WriteFile(filepath.Join(s.upstream.Dir, "Corefile"), []byte(`.:`+strings.TrimPrefix(s.upstreamAddress, "127.0.0.1:")+` {
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
	s.upstream.StartFor(t)
	newCommand(t, place.Built(t, "federationctl"), "").must(t, "", "pki", s.certificates)
	file := func(name string) string { return filepath.Join(s.certificates, name) }
	for name, of := range map[string]string{"tls.crt": "consumer.pem", "tls.key": "consumer-key.pem", "ca.crt": "ca.pem"} {
		must.Do(t, os.Symlink(of, file(name)))
	}
	catalog := file("catalog.yaml")
	must.Do(t, os.WriteFile(catalog, []byte(`services:
- {name: web, fqdn: web.west.fed.example, endpoints: [{address: 192.0.2.1, port: 80}], instances: [{id: v1, protocol: HTTP}]}
- {name: lb, fqdn: lb.west.fed.example, endpoints: [{address: lb-1.cloud.example, port: 80}], instances: [{id: v1, protocol: HTTP}]}
`), 0o600))
	start(t, place.Built(t, "federationctl"), "serve", "--listen", s.owner, "--catalog", catalog,
		"--cert", file("owner.pem"), "--key", file("owner-key.pem"), "--ca", file("ca.pem"), "--allow-any")
	return s
}

// asked reports whether somebody has asked for a name upstream.
func (s *surroundings) asked(name string) bool { return s.upstream.Logged(" IN "+name+". ") > 0 }

// serve starts CoreDNS with a Corefile in which everything outside of it is what there
// is here, and returns its address. What else the Corefile says stays.
func (s *surroundings) serve(t *testing.T, corefile string) (address string) {
	t.Helper()
	address = loopback.Address(t)
	_, port, err := net.SplitHostPort(address)
	must.Do(t, err)
	dir := t.TempDir()
	for _, change := range []struct{ what, by string }{
		{`:(53|1053|1054)\b`, ":" + port},
		{`(owner) \S+:8008\b`, "$1 " + s.owner},
		{`owner_id \S+`, "owner_id spiffe://federation.example/owner"},
		{`/etc/federation/tls(-\d+)?/`, s.certificates + "/"},
		{` certs/`, " " + s.certificates + "/"},
		{`/var/lib/federation/`, dir + "/"},
		{`/etc/resolv.conf`, s.upstreamAddress},
		{` health \{`, " health " + loopback.Address(t) + " {"},
		{`(?m)^( *)ready$`, "${1}ready " + loopback.Address(t)},
		{`prometheus :9153`, "prometheus " + loopback.Address(t)},
		{`run/kubeconfig`, s.kubeconfig},
	} {
		corefile = regexp.MustCompile(change.what).ReplaceAllString(corefile, change.by)
	}
	if s.kubeconfig != "" && !strings.Contains(corefile, "kubeconfig") {
		corefile = regexp.MustCompile(`(?m)^( *kubernetes .*\{)$`).ReplaceAllString(corefile, "$1\nkubeconfig "+s.kubeconfig)
	}
	path := filepath.Join(dir, "Corefile")
	must.Do(t, os.WriteFile(path, []byte(corefile), 0o600))
	start(t, place.Built(t, "coredns"), "-conf", path)
	return address
}

// testCorefiles has CoreDNS answer for the zones of owners, and look up endpoints that are host
// names. Beside the cluster's DNS it is no resolver for others. As the cluster's DNS it answers for
// the cluster, with the rights that the chart gives it, and forwards the rest.
func testCorefiles(t *testing.T, helm, kubectl command, server *realserver.APIServer) {
	s, rendered := startSurroundings(t), helm.template(t, "cluster-dns")
	kubectl.must(t, rendered, "apply", "-f", "-")
	kubectl.must(t, "", "create", "service", "clusterip", "db", "--namespace=default", "--tcp=5432", "--clusterip=10.96.7.7")
	// A kubeconfig of the account that the pods have.
	token := strings.TrimSpace(kubectl.must(t, "", "create", "token", "federation-dns", "--namespace=kube-system"))
	text := must.Get(os.ReadFile(server.Kubeconfig))(t)
	s.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text = regexp.MustCompile(`token: "[^"]*"`).ReplaceAll(text, []byte(`token: "`+token+`"`))
	must.Do(t, os.WriteFile(s.kubeconfig, text, 0o600))
	example := must.Get(os.ReadFile(root + "/corefile-examples/kubernetes-cluster-dns/Corefile"))(t)
	for _, tt := range []struct {
		name, corefile string
		cluster        bool // whether it is the cluster's DNS
	}{
		{"beside", fileOf(t, helm.template(t, "beside"), "Corefile"), false}, // first: nobody has asked upstream for others yet
		{"cluster-dns", fileOf(t, rendered, "Corefile"), true},
		{"the example of cluster-dns", string(example), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := s.serve(t, tt.corefile)
			want(t, "127.0.0.2", server, "web.west.fed.example", "192.0.2.1")
			want(t, "127.0.0.2", server, "lb.west.fed.example", upstreamAnswer)
			foreign, rcode := "other.example", dns.RcodeRefused
			if tt.cluster {
				want(t, "127.0.0.2", server, "db.default.svc.cluster.local", "10.96.7.7")
				want(t, "127.0.0.2", server, foreign, upstreamAnswer)
				foreign, rcode = "no.default.svc.cluster.local", dns.RcodeNameError
			}
			reply, err := ask("127.0.0.2", server, foreign, dns.TypeA)
			if err != nil || reply.Rcode != rcode || s.asked(foreign) {
				t.Errorf("the answer for %s is %v, %v, want %s, and nobody asked upstream", foreign, reply, err, dns.RcodeToString[rcode])
			}
		})
	}
}
