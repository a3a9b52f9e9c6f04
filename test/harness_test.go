package test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/acl"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/bufsize"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/dnssec"
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
	_ "github.com/coredns/coredns/plugin/template"
	_ "github.com/coredns/coredns/plugin/transfer"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/cmd/coredns/directives"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	_ "github.com/hamlet-federation/coredns-federation/plugin"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

// roleVariable is the environment variable that turns this test binary into
// CoreDNS. Tests get real processes that way, with only the plugins that they need and
// without a build.
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
	if os.Getenv(roleVariable) == "coredns" {
		runCoreDNS()
		return
	}
	code := m.Run()
	if scratch != "" {
		os.RemoveAll(scratch)
	}
	os.Exit(code)
}

// runCoreDNS is the main function of CoreDNS. Its start is not over before Caddy takes
// SIGUSR1: Caddy asks for signals in a goroutine, and a reload wanted earlier is lost.
func runCoreDNS() {
	signal.Ignore(syscall.SIGUSR1) // until somebody asks to be notified
	caddy.RegisterEventHook("signals", func(event caddy.EventName, _ any) error {
		for event == caddy.InstanceStartupEvent && signal.Ignored(syscall.SIGUSR1) {
			runtime.Gosched()
		}
		return nil
	})
	coremain.Run()
}

// patience bounds each wait for something that must happen.
const patience = 2 * time.Minute

// eventually waits until a condition has nothing to complain of.
var eventually = await.Until

// pki is a throwaway authority, and the certificate files of an owner and a
// consumer that it signed.
type pki struct {
	authority       *mtls.Authority
	dir             string
	owner, consumer mtls.Files
}

func newPKI(t testing.TB) *pki {
	t.Helper()
	authority := must.Get(mtls.NewAuthority("test", 24*time.Hour))(t)
	p := &pki{authority: authority, dir: t.TempDir()}
	p.owner = p.issue(t, "owner", mtls.Leaf{
		Name: "owner", DNSNames: []string{"localhost"},
		IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")},
	})
	p.consumer = p.issue(t, "consumer", mtls.Leaf{Name: "consumer", DNSNames: []string{"consumer.example"}})
	return p
}

// issue writes a new certificate, its key and the authority's certificate. Files
// of the same name are replaced.
func (p *pki) issue(t testing.TB, name string, leaf mtls.Leaf) mtls.Files {
	t.Helper()
	issued := must.Get(p.authority.Issue(leaf))(t)
	files := mtls.Files{
		Cert: filepath.Join(p.dir, name+".pem"), Key: filepath.Join(p.dir, name+"-key.pem"), CA: filepath.Join(p.dir, "ca.pem"),
	}
	must.Do(t, issued.WriteFiles(files))
	return files
}

// tls returns the Corefile property tls with the consumer's files.
func (p *pki) tls() string {
	return fmt.Sprintf("tls %s %s %s", p.consumer.Cert, p.consumer.Key, p.consumer.CA)
}

// realOwner is an owner of package owner, in this process and on a real socket.
type realOwner struct {
	*registry.Registry
	address string
	stop    func() // ends the owner and waits for the end
}

// startOwner starts an owner with the services. It listens on the address, as an
// owner that comes back does, or on a free one where the address is empty.
func startOwner(t testing.TB, files mtls.Files, address string, services ...*federation.Service) *realOwner {
	t.Helper()
	registry := registry.New()
	must.Get(registry.Set(services))(t)
	return serveRegistry(t, files, address, registry, 1)
}

// upserter is a registry, or an owner that embeds one.
type upserter interface {
	Upsert(s *federation.Service) (bool, error)
}

// mustUpsert publishes a service. The test fails here if the registry refuses it.
func mustUpsert(t testing.TB, to upserter, s *federation.Service) {
	t.Helper()
	must.Get(to.Upsert(s))(t)
}

// listen listens on an address that may still be in use, by an owner that has
// just been stopped.
func listen(t testing.TB, address string) net.Listener {
	t.Helper()
	var listener net.Listener
	eventually(t, patience, func() string {
		var err error
		if listener, err = net.Listen("tcp", address); err != nil {
			return err.Error()
		}
		return ""
	})
	return listener
}

// serveRegistry is startOwner for a registry. The owner keeps up to window
// responses in flight.
func serveRegistry(t testing.TB, files mtls.Files, address string, registry *registry.Registry, window int) *realOwner {
	t.Helper()
	if address == "" {
		address = freeAddress(t)
	}
	listener, logger := listen(t, address), slog.New(slog.DiscardHandler)
	source := must.Get(mtls.Load(files, logger))(t)
	server := must.Get(owner.New(owner.Config{Registry: registry, Credentials: source.Server(), Window: window, Logger: logger}))(t)
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
	return &realOwner{Registry: registry, address: address, stop: stop}
}

// simpleService returns a service with the instance v1 (HTTPS) and one endpoint,
// port 443 of the address.
func simpleService(t testing.TB, name, fqdn, address string) *federation.Service {
	t.Helper()
	n := must.Get(federation.ParseFQDN(fqdn))(t)
	a := must.Get(federation.ParseAddress(address))(t)
	return &federation.Service{
		Name: name, FQDN: n,
		Endpoints: []federation.Endpoint{{Address: a, Port: 443}},
		Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTPS}},
	}
}

// process is a program that a test has started.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	log  *testlog.Buffer
}

// startProcess starts the command and collects its output in log. The process is
// ended when the test ends, and a test that failed logs the output.
func startProcess(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, done: make(chan struct{}), log: &testlog.Buffer{}}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	must.Do(t, cmd.Start())
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

// end sends a signal and waits until the process has ended.
func (p *process) end(t testing.TB, s syscall.Signal) {
	t.Helper()
	p.signal(s)
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	select {
	case <-p.done:
	case <-deadline.C:
		p.signal(syscall.SIGKILL)
		<-p.done
		t.Errorf("%s did not end on %v", p.cmd.Path, s)
	}
}

// unlogged returns "" once at least n lines of the output contain all of the
// texts, and says what is missing until then. It is a condition for eventually.
func (p *process) unlogged(n int, texts ...string) string {
	if got := p.log.Count(texts...); got < n {
		return fmt.Sprintf("%d lines of %s contain %q, want %d", got, filepath.Base(p.cmd.Path), texts, n)
	}
	return ""
}

// awaitLog waits until at least n lines of the output contain all of the texts.
func (p *process) awaitLog(t testing.TB, n int, texts ...string) {
	t.Helper()
	eventually(t, patience, func() string { return p.unlogged(n, texts...) })
}

// containsAll reports whether s contains every one of the texts.
func containsAll(s string, texts []string) bool {
	return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(s, text) })
}

// coreDNS is a running CoreDNS.
type coreDNS struct {
	*process
	address  string // where it answers, over UDP and TCP
	corefile string // path of its Corefile
}

// startCoreDNS starts CoreDNS with the Corefile, in which PORT stands for its
// port, and waits until it answers. The test fails if CoreDNS had a data race or
// recovered from a panic.
func startCoreDNS(t testing.TB, corefile string) *coreDNS {
	t.Helper()
	d := &coreDNS{address: freeAddress(t), corefile: filepath.Join(t.TempDir(), "Corefile")}
	d.write(t, corefile)
	t.Cleanup(func() { // runs after CoreDNS has ended
		if d.log.Count("DATA RACE")+d.log.Count("Recovered from panic")+d.log.Count("a panic was recovered") > 0 {
			t.Errorf("race or panic in CoreDNS:\n%s", d.log)
		}
	})
	d.process = startProcess(t, coreDNSCommand(d.corefile))
	d.await(t)
	return d
}

// await waits until CoreDNS answers and has said that its start is over: Caddy
// takes no lock between the end of its start and the stop of its servers, and a
// signal between the two is a data race there.
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
		return d.unlogged(1, "CoreDNS-"+coremain.CoreVersion)
	})
}

// write replaces the Corefile. CoreDNS reads it at its next reload.
func (d *coreDNS) write(t testing.TB, corefile string) {
	t.Helper()
	_, port, _ := net.SplitHostPort(d.address)
	content := strings.ReplaceAll(corefile, "PORT", port)
	must.Do(t, os.WriteFile(d.corefile, []byte(content), 0o600))
}

// coreDNSCommand returns the command that runs this binary as CoreDNS.
func coreDNSCommand(corefile string, flags ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], append([]string{"-conf", corefile}, flags...)...)
	cmd.Env = append(os.Environ(), roleVariable+"=coredns")
	return cmd
}

// freeAddress is loopback.FreeAddress.
func freeAddress(t testing.TB) string {
	t.Helper()
	address := must.Get(loopback.FreeAddress())(t)
	return address
}

// option changes a query before it is sent.
type option func(*dns.Msg)

func withEDNS(m *dns.Msg) { m.SetEdns0(1232, false) }

// query sends one query over UDP and returns the reply. It does not try again.
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

// mustQuery is query, and fails the test where there is no reply.
func mustQuery(t testing.TB, address, name string, qtype uint16, options ...option) *dns.Msg {
	t.Helper()
	m, err := query(address, name, qtype, options...)
	if err != nil {
		t.Fatalf("%s %s: %v", name, dns.TypeToString[qtype], err)
	}
	return m
}

// summary returns a reply as one line: the code, then the sorted data of the
// answers, without their names, TTLs and types.
func summary(m *dns.Msg) string {
	var answers []string
	for _, rr := range m.Answer {
		text := strings.TrimPrefix(rr.String(), rr.Header().String())
		answers = append(answers, text)
	}
	slices.Sort(answers)
	return strings.Join(append([]string{dns.RcodeToString[m.Rcode]}, answers...), " ")
}

// awaitAnswer waits until the answer for a name is want, in the form of summary,
// and returns the reply.
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

// awaitStale waits until the answer for a name is marked as stale (RFC 8914
// section 4.4), and returns the reply.
func (d *coreDNS) awaitStale(t testing.TB, name string) *dns.Msg {
	t.Helper()
	var reply *dns.Msg
	eventually(t, patience, func() string {
		var err error
		if reply, err = query(d.address, name, dns.TypeA, withEDNS); err != nil {
			return err.Error()
		}
		if got := extendedError(reply); got != int(dns.ExtendedErrorCodeStaleAnswer) {
			return fmt.Sprintf("%s has the extended error %d, want that of a stale answer", name, got)
		}
		return ""
	})
	return reply
}

// awaitComplete waits until a name that nobody publishes is denied for certain: the
// catalogs of all owners of the zone are complete, and none of them is lost.
func (d *coreDNS) awaitComplete(t testing.TB, name string) {
	t.Helper()
	eventually(t, patience, func() string {
		m, err := query(d.address, name, dns.TypeA, withEDNS)
		if err != nil {
			return err.Error()
		}
		if m.Rcode != dns.RcodeNameError || extendedError(m) != -1 {
			return fmt.Sprintf("%s is %s, with the extended error %d", name, summary(m), extendedError(m))
		}
		return ""
	})
}

// extendedError returns the info code of the extended error (RFC 8914) in a reply,
// or -1 where there is none.
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

// awaitNXDOMAIN waits until a name does not exist any more.
func (d *coreDNS) awaitNXDOMAIN(t testing.TB, name string) {
	t.Helper()
	eventually(t, patience, func() string {
		if m := mustQuery(t, d.address, name, dns.TypeA, withEDNS); m.Rcode != dns.RcodeNameError {
			return summary(m)
		}
		return ""
	})
}

// get fetches a page and returns its status and body.
func get(url string) (status int, body string, err error) {
	response, err := http.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return response.StatusCode, string(content), err
}

// awaitStatus waits until a page has the status.
func awaitStatus(t testing.TB, url string, want int) {
	t.Helper()
	eventually(t, patience, func() string {
		status, body, err := get(url)
		if err != nil {
			return err.Error()
		}
		if status != want {
			return fmt.Sprintf("%s: %d %s", url, status, body)
		}
		return ""
	})
}
