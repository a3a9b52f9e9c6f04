package clients

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	ownerAddress   = "127.0.0.1:8008"
	coreDNSAddress = "198.18.255.53" // RFC 2544 keeps 198.18.0.0/15 for tests
	httpPort       = "8080"
	grpcPort       = "8081"
	retention      = 5 * time.Second
)

// endpoint returns the address of the nth endpoint, from 1 on. glibc sorts addresses that are
// close to its own (RFC 6724 rule 9), and these are not.
func endpoint(n int) string { return netip.AddrFrom4([4]byte{203, 0, 113, byte(n)}).String() }

// run runs a command of the sandbox.
func run(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
}

// servers are the owner, CoreDNS, and the backends that the services have.
type servers struct {
	*place.Place

	owner, coreDNS *realserver.Process
	backends       map[string]*backend // by address
}

func newServers(t testing.TB) *servers {
	t.Helper()
	for _, address := range []string{coreDNSAddress + "/32", endpoint(0) + "/24"} { // all of that network is local
		run(t, "ip", "address", "add", address, "dev", "lo")
		t.Cleanup(func() { run(t, "ip", "address", "del", address, "dev", "lo") })
	}
	const ownerID, coreDNSID = "spiffe://fed.example/owner", "spiffe://fed.example/coredns"
	s := &servers{Place: place.For(t, map[string]string{"owner": ownerID, "coredns": coreDNSID}), backends: make(map[string]*backend)}
	for n := 1; n <= many; n++ {
		s.backends[endpoint(n)] = newBackend(t, endpoint(n))
	}
	s.publish(t, nil)
	owner := place.Owner{
		Address: ownerAddress, TLS: s.Files("owner"), Allow: []string{coreDNSID},
		More: "catalogs: [{sources: [{file: {path: catalog.yaml}}]}]\n",
	}
	s.owner = s.Run(t, "owner", must.Get(place.Program("federationctl"))(t), ownerAddress, "serve", "--config", s.Put(t, "owner.yaml", owner.Config()))
	tls := s.Files("coredns")
	s.coreDNS = s.Run(t, "coredns", must.Get(place.Program("coredns"))(t), net.JoinHostPort(coreDNSAddress, "53"), "-conf", s.Put(t, "Corefile", fmt.Sprintf(`(server) {
    bind %s
    errors
    log . "query {remote} {name} {type} {>rflags}"
}
fed.example {
    import server
    federation {
        owner %s
        tls %s %s %s
        owner_id %s
        ttl 2
        negative_ttl 1
        retention %v
    }
}
. {
    import server
    template ANY ANY . {
        rcode NXDOMAIN
        authority ". 60 IN SOA ns.example. hostmaster.example. 1 60 60 60 60"
    }
}
`, coreDNSAddress, ownerAddress, tls.Cert, tls.Key, tls.CA, ownerID, retention)))
	return s
}

// publish has the owner publish services: their endpoints by the first label of their names.
func (s *servers) publish(t testing.TB, services map[string][]string) {
	t.Helper()
	var b strings.Builder
	b.WriteString("services:\n")
	for name, addresses := range services {
		fmt.Fprintf(&b, "- name: %s\n  fqdn: %s\n  instances: [{id: v1, protocol: HTTP}]\n  endpoints:\n", name, fqdn(name))
		for _, address := range addresses {
			fmt.Fprintf(&b, "  - {address: %s, port: %s}\n", address, httpPort)
		}
	}
	if len(services) == 0 {
		b.Reset()
		b.WriteString("services: []\n")
	}
	s.Put(t, "catalog.yaml", b.String())
}

func fqdn(name string) string { return name + ".fed.example" }

// answers waits until CoreDNS answers the addresses, or none, for a service.
func (s *servers) answers(t testing.TB, name string, addresses ...string) {
	t.Helper()
	client := &dns.Client{Net: "tcp", Timeout: oneAttempt}
	eventually(t, func() string {
		reply, _, err := client.ExchangeContext(t.Context(), new(dns.Msg).SetQuestion(fqdn(name)+".", dns.TypeA), net.JoinHostPort(coreDNSAddress, "53"))
		if err != nil {
			return err.Error()
		}
		got := []string{}
		for _, rr := range reply.Answer {
			got = append(got, rr.(*dns.A).A.String())
		}
		if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(addresses))) {
			return fmt.Sprintf("%s has %v", name, got)
		}
		return ""
	})
}

// queries returns the queries of a host about a service, a line of the log each.
func (s *servers) queries(t testing.TB, h *host, name string) (lines []string) {
	t.Helper()
	text := must.Get(os.ReadFile(s.coreDNS.Log()))(t)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "query "+h.address+" ") && strings.Contains(strings.ToLower(line), fqdn(name)) {
			lines = append(lines, line)
		}
	}
	return lines
}

// backend is what listens at the address of an endpoint. It says that address to whoever
// connects.
type backend struct {
	address  string
	draining atomic.Bool
	http     *http.Server
	grpc     *grpc.Server
}

func newBackend(t testing.TB, address string) *backend {
	t.Helper()
	b := &backend{address: address}
	b.http = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if b.draining.Load() {
			w.Header().Set("Connection", "close")
		}
		fmt.Fprintln(w, b.address)
	})}
	listener := must.Get(net.Listen("tcp", net.JoinHostPort(address, httpPort)))(t)
	go func() { _ = b.http.Serve(listener) }()
	b.serveGRPC(t)
	t.Cleanup(b.stop)
	return b
}

func (b *backend) serveGRPC(t testing.TB, options ...grpc.ServerOption) {
	t.Helper()
	b.grpc = grpc.NewServer(options...)
	healthpb.RegisterHealthServer(b.grpc, health.NewServer())
	listener := must.Get(net.Listen("tcp", net.JoinHostPort(b.address, grpcPort)))(t)
	go func(server *grpc.Server) { _ = server.Serve(listener) }(b.grpc)
}

// drain has the backend end connections after a reply, as one does that is about to stop. It
// still takes new ones.
func (b *backend) drain(t testing.TB) {
	t.Helper()
	b.draining.Store(true)
	b.grpc.GracefulStop()
	b.serveGRPC(t, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: pause, MaxConnectionAgeGrace: oneAttempt}))
}

// stop ends the backend at once.
func (b *backend) stop() {
	b.grpc.Stop()
	_ = b.http.Close()
}

// host is a network namespace with a resolv.conf.
type host struct {
	name, address, dir string
}

// newHost makes the nth host.
func newHost(t testing.TB, n int, nameserver string) *host {
	t.Helper()
	gateway, address := fmt.Sprintf("198.18.%d.1", n), fmt.Sprintf("198.18.%d.2", n)
	h := &host{name: fmt.Sprint("client", n), address: address, dir: t.TempDir()}
	ip := func(args ...string) { t.Helper(); run(t, append([]string{"ip"}, args...)...) }
	ip("netns", "add", h.name)
	ip("link", "add", h.name, "type", "veth", "peer", "name", "eth0", "netns", h.name)
	ip("address", "add", gateway+"/30", "dev", h.name)
	ip("link", "set", h.name, "up")
	ip("-n", h.name, "address", "add", address+"/30", "dev", "eth0")
	ip("-n", h.name, "link", "set", "eth0", "up")
	ip("-n", h.name, "link", "set", "lo", "up")
	ip("-n", h.name, "route", "add", "default", "via", gateway)
	// What a kubelet writes for a pod is the second.
	h.write(t, "resolv.conf", "nameserver "+nameserver+"\n")
	h.write(t, "search.conf", "nameserver "+nameserver+"\nsearch default.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n")
	h.write(t, "nsswitch.conf", "hosts: files dns\n")
	return h
}

func (h *host) write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(h.dir, name)
	must.Do(t, os.WriteFile(path, []byte(text), 0o644)) // others than root read it, too
	return path
}

// inside are the arguments that run a program on the host, for command ip. It has the mounts to
// itself.
func (h *host) inside(resolv string, args ...string) []string {
	const mount = `mount --bind "$0/$1" /etc/resolv.conf && mount --bind "$0/nsswitch.conf" /etc/nsswitch.conf && shift && exec "$@"`
	return append([]string{"netns", "exec", h.name, "sh", "-c", mount, h.dir, resolv}, args...)
}

// serve runs a server on the host until the test ends.
func (h *host) serve(t testing.TB, args ...string) {
	t.Helper()
	process := &realserver.Process{
		Name: h.name + "-" + filepath.Base(args[0]), Path: must.Get(exec.LookPath("ip"))(t), Dir: h.dir, Args: h.inside("resolv.conf", args...),
	}
	process.StartFor(t)
}

// attempts is a program that connects to a name, and what it has printed.
type attempts struct {
	stop func() // ends it, and waits for the end

	done chan struct{} // closed when it has ended
	log  testlog.Buffer

	mu    sync.Mutex
	lines []line // guarded by mu
}

// line is the result of one attempt.
type line struct {
	at      time.Time
	failed  bool
	address string // or the error
	known   int    // addresses that the client had, or 0
}

// connect starts a client on the host.
func (h *host) connect(t testing.TB, c *client, resolv, name string, count int) *attempts {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	args := slices.Concat(c.program, []string{fqdn(name), c.port(), strconv.Itoa(count)})
	a := &attempts{done: make(chan struct{})}
	cmd := exec.CommandContext(ctx, "ip", h.inside(resolv, args...)...)
	cmd.Env = append(os.Environ(), c.env...)
	cmd.Stderr, cmd.WaitDelay = &a.log, time.Second
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	go func() {
		defer close(a.done)
		scanner := bufio.NewScanner(out)
		for scanner.Scan() {
			a.add(scanner.Text())
		}
		_ = cmd.Wait() // the lines say what there is to say
	}()
	a.stop = func() { cancel(); <-a.done }
	t.Cleanup(func() {
		a.stop()
		if t.Failed() && a.log.String() != "" {
			t.Logf("%s wrote: %.2000s", c.name, a.log.String())
		}
	})
	return a
}

func (a *attempts) add(text string) {
	l := line{at: time.Now()}
	if l.address, l.failed = strings.CutPrefix(text, "! "); !l.failed {
		var known string
		l.address, known, _ = strings.Cut(text, " ")
		l.known, _ = strconv.Atoi(known)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lines = append(a.lines, l)
}

// since returns the results after a time.
func (a *attempts) since(begin time.Time) []line {
	a.mu.Lock()
	defer a.mu.Unlock()
	i, _ := slices.BinarySearchFunc(a.lines, begin, func(l line, t time.Time) int { return l.at.Compare(t) })
	return slices.Clone(a.lines[i:])
}

// mustLive fails where the program has ended.
func (a *attempts) mustLive(t testing.TB, c *client) {
	t.Helper()
	select {
	case <-a.done:
		t.Fatalf("%s has ended; it wrote %.2000s", c.name, a.log.String())
	default:
	}
}
