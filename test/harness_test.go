package test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/acl"
	_ "github.com/coredns/coredns/plugin/any"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/bufsize"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/debug"
	_ "github.com/coredns/coredns/plugin/dnssec"
	_ "github.com/coredns/coredns/plugin/dynupdate"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/file"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/metadata"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
	_ "github.com/coredns/coredns/plugin/rewrite"
	_ "github.com/coredns/coredns/plugin/template"
	_ "github.com/coredns/coredns/plugin/transfer"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/cmd/coredns/directives"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	_ "github.com/hamlet-federation/coredns-federation/plugin"
	"github.com/hamlet-federation/coredns-federation/test/faultowner"
)

// roleVariable makes this test binary be CoreDNS instead, or an owner with a
// script: a real process, with the plugins that the tests need and no others,
// without building it.
const roleVariable = "FEDERATION_TEST_ROLE"

func TestMain(m *testing.M) {
	order, err := directives.Insert(dnsserver.Directives)
	if err == nil {
		err = dnsserver.SetDirectives(order)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	switch os.Getenv(roleVariable) {
	case "coredns":
		coremain.Run()
		return
	case "faultowner":
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := faultowner.Run(ctx, os.Args[1:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1) //nolint:gocritic // the process ends, and its handler of signals with it
		}
		return
	}
	code := m.Run()
	if scratch != "" {
		os.RemoveAll(scratch)
	}
	os.Exit(code)
}

// patience bounds every wait for a condition that is expected to come.
const patience = time.Minute

// eventually waits for the condition, which says why it is not met yet or "".
func eventually(t testing.TB, within time.Duration, condition func() string) {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		why := condition()
		if why == "" {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("after %v: %s", within, why)
		case <-tick.C:
		}
	}
}

// pki is a throwaway authority with the files of an owner and of a consumer.
type pki struct {
	authority       *mtls.Authority
	dir             string
	owner, consumer mtls.Files
}

// ownerID is the SPIFFE ID in the certificate of an owner; its DNS name is
// localhost.
const ownerID = "spiffe://owner.example/hamlet"

func newPKI(t testing.TB) *pki {
	t.Helper()
	authority, err := mtls.NewAuthority("test", 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	p := &pki{authority: authority, dir: t.TempDir()}
	p.owner = p.issue(t, "owner", mtls.Leaf{
		Name: "owner", DNSNames: []string{"localhost"},
		IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, URIs: []string{ownerID},
	})
	p.consumer = p.issue(t, "consumer", mtls.Leaf{Name: "consumer", DNSNames: []string{"consumer.example"}})
	return p
}

// issue writes a certificate, its key and the authority's certificate.
func (p *pki) issue(t testing.TB, name string, leaf mtls.Leaf) mtls.Files {
	t.Helper()
	issued, err := p.authority.Issue(leaf)
	if err != nil {
		t.Fatal(err)
	}
	files := mtls.Files{
		Cert: filepath.Join(p.dir, name+".pem"), Key: filepath.Join(p.dir, name+"-key.pem"), CA: filepath.Join(p.dir, "ca.pem"),
	}
	if err := issued.WriteFiles(files); err != nil {
		t.Fatal(err)
	}
	return files
}

// tls is the property of a Corefile.
func (p *pki) tls() string {
	return fmt.Sprintf("tls %s %s %s", p.consumer.Cert, p.consumer.Key, p.consumer.CA)
}

// realOwner is an owner in this process, on a real socket.
type realOwner struct {
	*owner.Registry
	server  *owner.Server
	address string
	stop    func() // ends it and waits
}

// startOwner serves the services. With an address it listens there, as an owner
// that comes back does.
func startOwner(t testing.TB, files mtls.Files, address string, services ...*federation.Service) *realOwner {
	t.Helper()
	registry := owner.NewRegistry()
	if _, err := registry.Set(services); err != nil {
		t.Fatal(err)
	}
	return serveRegistry(t, files, address, registry, 1)
}

// serveRegistry is an owner that keeps up to window responses in flight.
func serveRegistry(t testing.TB, files mtls.Files, address string, registry *owner.Registry, window int) *realOwner {
	t.Helper()
	if address == "" {
		address = freeAddress(t)
	}
	var listener net.Listener
	eventually(t, patience, func() string {
		var err error
		if listener, err = net.Listen("tcp", address); err != nil {
			return err.Error() // the port of the one before may be in use still
		}
		return ""
	})
	server, stop := serveOn(t, listener, files, registry, window)
	return &realOwner{Registry: registry, server: server, address: address, stop: stop}
}

// serveOn is serveRegistry on any listener. The function ends it and waits.
func serveOn(t testing.TB, listener net.Listener, files mtls.Files, registry *owner.Registry, window int) (*owner.Server, func()) {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	source, err := mtls.Load(files, logger)
	if err != nil {
		t.Fatal(err)
	}
	server, err := owner.New(owner.Config{Registry: registry, Credentials: source.Server(), Window: window, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = source.Run(ctx) })
	wg.Go(func() {
		if err := server.Serve(ctx, listener); err != nil {
			t.Error(err)
		}
	})
	stop := sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stop)
	return server, stop
}

// simpleService is a service with one instance and one endpoint.
func simpleService(t testing.TB, name, fqdn, address string) *federation.Service {
	t.Helper()
	n, err := federation.ParseFQDN(fqdn)
	if err != nil {
		t.Fatal(err)
	}
	a, err := federation.ParseAddress(address)
	if err != nil {
		t.Fatal(err)
	}
	return &federation.Service{
		Name: name, FQDN: n,
		Endpoints: []federation.Endpoint{{Address: a, Port: 443}},
		Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTPS}},
	}
}

// process is a program that a test started.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	log  *logBuffer
}

// startProcess starts the command with its output in the log, and ends it with
// the test.
func startProcess(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, done: make(chan struct{}), log: new(logBuffer)}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // the exit code is in ProcessState
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGCONT)
		p.end(t, syscall.SIGTERM)
		if t.Failed() {
			t.Logf("output of %s:\n%s", filepath.Base(cmd.Path), p.log)
		}
	})
	return p
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// end sends a signal and waits for the end.
func (p *process) end(t testing.TB, s syscall.Signal) {
	t.Helper()
	p.signal(s)
	select {
	case <-p.done:
	case <-time.After(patience):
		p.signal(syscall.SIGKILL)
		<-p.done
		t.Errorf("%s did not end on %v", p.cmd.Path, s)
	}
}

// logBuffer collects output that is read while it is written.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// count returns how many lines hold all of the strings.
func (b *logBuffer) count(all ...string) int {
	n := 0
	for line := range strings.Lines(b.String()) {
		if !slices.ContainsFunc(all, func(s string) bool { return !strings.Contains(line, s) }) {
			n++
		}
	}
	return n
}

// coreDNS is a running CoreDNS.
type coreDNS struct {
	*process
	address  string // of DNS, over UDP and TCP
	corefile string // path
}

// startCoreDNS runs CoreDNS with the Corefile, in which PORT stands for its
// port, and waits until it answers.
func startCoreDNS(t testing.TB, corefile string) *coreDNS {
	t.Helper()
	d := &coreDNS{address: freeAddress(t), corefile: filepath.Join(t.TempDir(), "Corefile")}
	d.write(t, corefile)
	t.Cleanup(func() { // after its end
		if d.log.count("DATA RACE")+d.log.count("Recovered from panic") > 0 {
			t.Errorf("race or panic in CoreDNS:\n%s", d.log)
		}
	})
	d.process = startProcess(t, coreDNSCommand(d.corefile))
	d.await(t)
	return d
}

// await waits until it answers.
func (d *coreDNS) await(t testing.TB) {
	t.Helper()
	eventually(t, patience, func() string {
		select {
		case <-d.done:
			t.Fatalf("CoreDNS has ended:\n%s", d.log)
		default:
		}
		if _, err := query(d.address, "up.invalid.", dns.TypeA); err != nil {
			return err.Error()
		}
		return ""
	})
}

// write replaces the Corefile.
func (d *coreDNS) write(t testing.TB, corefile string) {
	t.Helper()
	_, port, _ := net.SplitHostPort(d.address)
	content := strings.ReplaceAll(corefile, "PORT", port)
	if err := os.WriteFile(d.corefile, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// coreDNSCommand is CoreDNS, in this binary.
func coreDNSCommand(corefile string, flags ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], append([]string{"-conf", corefile}, flags...)...)
	cmd.Env = append(os.Environ(), roleVariable+"=coredns")
	return cmd
}

// Ports that are free are looked for below those that the system gives to
// clients and to listeners of port 0 (32768 and above on Linux): nobody takes one
// between the choice and the use, or while the server that has it is down.
const (
	firstPort = 10_000
	lastPort  = 32_000
)

// portsTried is how many ports were looked at. It begins anywhere, for another
// process of tests that is at it as well.
var portsTried = func() *atomic.Int64 {
	n := new(atomic.Int64)
	n.Store(rand.Int64N(lastPort - firstPort))
	return n
}()

// freeAddress returns a loopback address whose port is free for UDP and TCP, and
// was not returned before.
func freeAddress(t testing.TB) string {
	t.Helper()
	for range 100 {
		port := firstPort + portsTried.Add(1)%(lastPort-firstPort)
		address := net.JoinHostPort("127.0.0.1", strconv.FormatInt(port, 10))
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		_ = l.Close()
		p, err := net.ListenPacket("udp", address)
		if err != nil {
			continue
		}
		_ = p.Close()
		return address
	}
	t.Fatal("no port is free for both UDP and TCP")
	return ""
}

// option changes a query.
type option func(*dns.Msg)

func withEDNS(m *dns.Msg) { m.SetEdns0(1232, false) }

// query asks once over UDP.
func query(address, name string, qtype uint16, options ...option) (*dns.Msg, error) {
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), qtype)
	for _, o := range options {
		o(m)
	}
	client := dns.Client{Timeout: 10 * time.Second, UDPSize: dns.MaxMsgSize}
	reply, _, err := client.Exchange(m, address)
	return reply, err
}

// mustQuery is query for a server that is up.
func mustQuery(t testing.TB, address, name string, qtype uint16, options ...option) *dns.Msg {
	t.Helper()
	m, err := query(address, name, qtype, options...)
	if err != nil {
		t.Fatalf("%s %s: %v", name, dns.TypeToString[qtype], err)
	}
	return m
}

// summary is a reply in one line: the code, then the answers without their
// owners and TTLs, sorted.
func summary(m *dns.Msg) string {
	var answers []string
	for _, rr := range m.Answer {
		text := strings.TrimPrefix(rr.String(), rr.Header().String())
		answers = append(answers, text)
	}
	slices.Sort(answers)
	return strings.Join(append([]string{dns.RcodeToString[m.Rcode]}, answers...), " ")
}

// awaitAnswer waits until the name is answered as said in summary's form.
func (d *coreDNS) awaitAnswer(t testing.TB, name string, qtype uint16, want string) *dns.Msg {
	t.Helper()
	var reply *dns.Msg
	eventually(t, patience, func() string {
		var err error
		if reply, err = query(d.address, name, qtype, withEDNS); err != nil {
			return err.Error()
		}
		if got := summary(reply); got != want {
			return fmt.Sprintf("%s %s is %q, want %q", name, dns.TypeToString[qtype], got, want)
		}
		return ""
	})
	return reply
}

// extendedError returns the code of RFC 8914 in a reply, or -1.
func extendedError(m *dns.Msg) int {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				return int(e.InfoCode)
			}
		}
	}
	return -1
}

// awaitEnd waits until there is no such name, and returns how long after since
// there certainly was one: when the last query was sent that got an answer.
func (d *coreDNS) awaitEnd(t testing.TB, name string, since time.Time) (held time.Duration) {
	t.Helper()
	eventually(t, patience, func() string {
		sent := time.Since(since)
		m := mustQuery(t, d.address, name, dns.TypeA, withEDNS)
		if m.Rcode == dns.RcodeNameError {
			return ""
		}
		held = sent
		return summary(m)
	})
	return held
}
