package test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const coreDNSBinary = "../bin/coredns"

// Names below kubernetesSuffix have as many labels and octets as those below
// benchOrigin: Kubernetes wants the label svc above the namespace, and so its zone
// is one label shorter.
const (
	kubernetesSuffix = "svc.example."
	kubernetesZone   = "example."
)

// race is the same services in several DNS servers, each a process of its own, and
// the owner that feeds federation.
type race struct {
	owner   *realOwner
	p       *profile
	size    int
	servers []*server // in the order in which they are asked
	missing []string  // why other servers are not here
	updated int       // changes so far

	dir                 string // for their files
	keys                *pki
	zoneFile, hostsFile string // with the records of the services
}

// server is one of them.
type server struct {
	plugin  string // what the server gets its answers from, federation or another
	address string // where it answers
	suffix  string // of all names
	pids    []int  // the processes whose CPU time a query costs
}

// newRace starts servers by name. One that this machine does not have is left out,
// and missing says why.
func newRace(b *testing.B, size int, names ...string) *race {
	b.Helper()
	if _, err := os.Stat(coreDNSBinary); err != nil {
		b.Skipf("%v: run make build", err)
	}
	p := &profiles()[0]
	dir := b.TempDir()
	r := &race{
		p: p, size: size, dir: dir, keys: newPKI(b),
		zoneFile: filepath.Join(dir, "zone"), hostsFile: filepath.Join(dir, "hosts"),
	}
	all := p.catalog(b, size)
	r.owner = serveRegistry(b, r.keys.owner, "", filled(b, all), 256)
	export(b, all, r.zoneFile, r.hostsFile)
	for _, name := range names {
		begin := time.Now()
		s := &server{plugin: name, address: freeAddress(b), suffix: benchOrigin}
		if err := r.start(b, s); err != nil {
			r.missing = append(r.missing, fmt.Sprintf("%s is left out: %v", name, err))
			continue
		}
		r.servers = append(r.servers, s)
		eventually(b, syncPatience, func() string { return r.unready(s) })
		b.Logf("%s answers on %s after %v", name, s.address, time.Since(begin).Round(time.Millisecond))
	}
	return r
}

// server returns the one of that name, or nil.
func (r *race) server(name string) *server {
	if i := slices.IndexFunc(r.servers, func(s *server) bool { return s.plugin == name }); i >= 0 {
		return r.servers[i]
	}
	return nil
}

// query returns a query of the profile.
func (r *race) query(b *testing.B, name string) *benchQuery {
	b.Helper()
	i := slices.IndexFunc(r.p.queries, func(q benchQuery) bool { return q.name == name })
	if i < 0 {
		b.Fatalf("the profile has no query %s", name)
	}
	return &r.p.queries[i]
}

// fqdn returns the name of the i-th service on the server.
func (s *server) fqdn(i int) string { return strings.TrimSuffix(benchFQDN(i), benchOrigin) + s.suffix }

// start starts a server. The error says why this machine cannot run it.
func (r *race) start(b *testing.B, s *server) error {
	b.Helper()
	switch s.plugin {
	case "federation":
		r.startPlugin(b, s, benchOrigin, fmt.Sprintf("federation {\nowner %s\n%s\n}", r.owner.address, r.keys.tls()))
	case "hosts":
		r.startPlugin(b, s, benchOrigin, "hosts "+r.hostsFile+" {\nreload 0\nttl 30\n}")
	case "file":
		r.startPlugin(b, s, benchOrigin, "file "+r.zoneFile+" {\nreload 0\n}")
	case "knot":
		return r.startKnot(b, s)
	case "etcd":
		return r.startEtcd(b, s)
	case "kubernetes":
		return r.startKubernetes(b, s)
	default:
		b.Fatalf("there is no server %s", s.plugin)
	}
	return nil
}

// startPlugin starts a CoreDNS with one server block. All have the same plugins
// beside the one that answers.
func (r *race) startPlugin(b *testing.B, s *server, zone, block string) {
	b.Helper()
	_, port, _ := net.SplitHostPort(s.address)
	corefile := filepath.Join(r.dir, s.plugin+".corefile")
	writeFile(b, corefile, fmt.Sprintf("%s:%s {\nbind 127.0.0.1\nerrors\n%s\n}\n", zone, port, block))
	p := startProcess(b, exec.Command(coreDNSBinary, "-conf", corefile))
	s.pids = append(s.pids, p.cmd.Process.Pid)
}

// startKnot starts Knot DNS as a primary with the zone file.
func (r *race) startKnot(b *testing.B, s *server) error {
	b.Helper()
	path, err := exec.LookPath("knotd")
	if err != nil {
		path = "/usr/sbin/knotd" // may not be in PATH
	}
	if _, err := os.Stat(path); err != nil {
		return errors.New("knotd is not installed; it is in the package knot")
	}
	config := filepath.Join(r.dir, "knot.conf")
	writeFile(b, config, fmt.Sprintf(`server:
  rundir: "%[2]s"
  listen: %[1]s
log:
  - target: stderr
    any: warning
database:
  storage: "%[2]s"
zone:
  - domain: "%[3]s"
    storage: "%[2]s"
    file: "%[4]s"
`, strings.Replace(s.address, ":", "@", 1), r.dir, benchOrigin, r.zoneFile))
	p := startProcess(b, exec.Command(path, "-c", config))
	s.pids = append(s.pids, p.cmd.Process.Pid)
	return nil
}

// startEtcd starts an etcd with a key for each service, and a CoreDNS that asks it.
// The key is so deep that an answer takes one range in etcd. There is no TXT record:
// one beside an address would be a second key, which A queries would read as well.
func (r *race) startEtcd(b *testing.B, s *server) error {
	b.Helper()
	if err := realserver.FindEtcd(); err != nil {
		return err
	}
	e := realserver.StartEtcd(b)
	values := make(map[string]string, r.size)
	for i := range r.size {
		labels := dns.SplitDomainName("v1._http._tcp." + benchFQDN(i))
		slices.Reverse(labels)
		value := must.Get(json.Marshal(map[string]any{
			"host": r.p.addresses(i)[0].String(), "port": 8080, "ttl": 30,
		}))(b)
		values["/skydns/"+strings.Join(labels, "/")] = string(value)
	}
	must.Do(b, e.Put(b.Context(), values))
	s.pids = append(s.pids, e.PID())
	r.startPlugin(b, s, benchOrigin, "etcd {\nendpoint "+e.URL+"\n}")
	return nil
}

// serviceIP returns the address of a service in Kubernetes, from the range that the
// API server has.
func serviceIP(i int) netip.Addr {
	const first = 10<<24 | 96<<16 | 1<<8 // 10.96.1.0
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(first+i))
	return netip.AddrFrom4(b)
}

// startKubernetes starts an API server with a Service with a cluster IP for each
// service, and a CoreDNS that watches it.
func (r *race) startKubernetes(b *testing.B, s *server) error {
	b.Helper()
	if err := realserver.FindAPIServer(); err != nil {
		return err
	}
	api := realserver.StartAPIServer(b)
	must.Do(b, r.createServices(b.Context(), api))
	s.suffix = kubernetesSuffix
	r.startPlugin(b, s, kubernetesZone, "kubernetes {\nkubeconfig "+api.Kubeconfig+"\npods disabled\nttl 30\n}")
	return nil
}

// createServices creates the namespaces, and then the services, some at a time.
func (r *race) createServices(ctx context.Context, api *realserver.APIServer) error {
	const atOnce = 8
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	namespaces := make(map[string]bool)
	for i := range r.size {
		namespaces[strings.Split(benchFQDN(i), ".")[1]] = true
	}
	for namespace := range namespaces {
		if err := api.Create(ctx, "/api/v1/namespaces", map[string]any{"metadata": map[string]any{"name": namespace}}); err != nil {
			return err
		}
	}
	var wg sync.WaitGroup
	for worker := range atOnce {
		wg.Go(func() {
			for i := worker; i < r.size && ctx.Err() == nil; i += atOnce {
				labels := strings.Split(benchFQDN(i), ".")
				err := api.Create(ctx, "/api/v1/namespaces/"+labels[1]+"/services", map[string]any{
					"metadata": map[string]any{"name": labels[0]},
					"spec": map[string]any{
						"clusterIP": serviceIP(i).String(),
						"ports":     []any{map[string]any{"name": "http", "protocol": "TCP", "port": 8080}},
					},
				})
				if err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// unready returns "" once a server answers as it should for the first and the last
// service, and says what is missing until then. The owner sends the services in
// order.
func (r *race) unready(s *server) string {
	for _, i := range []int{0, r.size - 1} {
		want := r.p.addresses(i)[0]
		if s.plugin == "kubernetes" {
			want = serviceIP(i)
		}
		reply, err := query(s.address, s.fqdn(i), dns.TypeA)
		if err != nil {
			return err.Error()
		}
		if got := summary(reply); got != "NOERROR "+want.String() {
			return fmt.Sprintf("%s answers %s, expected %v", s.plugin, got, want)
		}
	}
	return ""
}

// check fails the benchmark unless a server answers a query as the profile has it.
func (r *race) check(b *testing.B, s *server, q *benchQuery) {
	b.Helper()
	want := [3]int{q.rcode, q.answers, q.extra}
	for _, i := range []int{0, r.size - 1} {
		reply := must.Get(query(s.address, q.labels+s.fqdn(i), q.qtype))(b)
		if got := [3]int{reply.Rcode, len(reply.Answer), len(reply.Extra)}; got != want {
			b.Fatalf("%s: rcode, answers and additional records are %v, want %v, in\n%v", s.plugin, got, want, reply)
		}
	}
}
