package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
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
	"github.com/hamlet-federation/coredns-federation/internal/owner"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	_ "github.com/hamlet-federation/coredns-federation/plugin"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
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
	os.Exit(m.Run())
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

// newPlace returns a folder with the certificates of an owner and a consumer.
func newPlace(t testing.TB) *place.Place {
	t.Helper()
	return place.For(t, map[string]string{"owner": "spiffe://owner.example/owner", "consumer": "spiffe://consumer.example/coredns"})
}

// tlsOf returns the Corefile property tls with the consumer's files.
func tlsOf(p *place.Place) string {
	files := p.Files("consumer")
	return fmt.Sprintf("tls %s %s %s", files.Cert, files.Key, files.CA)
}

// realOwner is an owner of package owner, in this process and on a real socket.
type realOwner struct {
	*registry.Registry
	address string
	stop    func() // ends the owner and waits for the end
}

// startOwner starts an owner with the services on a free address.
func startOwner(t testing.TB, p *place.Place, services ...*federation.Service) *realOwner {
	t.Helper()
	registry := registry.New()
	must.Get(registry.Set(services))(t)
	return serveRegistry(t, p, loopback.Address(t), registry, 1)
}

// serveRegistry starts an owner that keeps up to window responses in flight.
func serveRegistry(t testing.TB, p *place.Place, address string, published *registry.Registry, window int) *realOwner {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	source := must.Get(mtls.Load(p.Files("owner"), logger))(t)
	server := must.Get(owner.New(owner.Config{Catalogs: map[string]*registry.Registry{"": published}, Credentials: source.Server(), Window: window, Logger: logger}))(t)
	listener := must.Get(net.Listen("tcp", address))(t)
	stop := must.Run(t, func(ctx context.Context) error { return server.Serve(ctx, listener) })
	return &realOwner{Registry: published, address: address, stop: stop}
}

// mustUpsert publishes a service. The test fails here if the registry refuses it.
func mustUpsert(t testing.TB, to interface {
	Upsert(s *federation.Service) (bool, error)
}, s *federation.Service,
) {
	t.Helper()
	must.Get(to.Upsert(s))(t)
}

// simpleService returns a service with the instance v1 (HTTPS) and one endpoint,
// port 443 of the address.
func simpleService(name, fqdn, address string) *federation.Service {
	s := services.At(fqdn, address)
	s.Name = name
	return s
}

// awaitLog waits until at least n lines of a log contain all of the texts.
func awaitLog(t testing.TB, p *realserver.Process, n int, texts ...string) {
	t.Helper()
	await.Eventually(t, func() string {
		if got := p.Logged(texts...); got < n {
			return fmt.Sprintf("%d lines of %s contain %q, want %d", got, p.Name, texts, n)
		}
		return ""
	})
}

// coreDNS is a running CoreDNS.
type coreDNS struct {
	*realserver.Process
	address  string // where it answers, over UDP and TCP
	corefile string // path of its Corefile
}

// startCoreDNS starts CoreDNS with the Corefile, in which PORT stands for its
// port, and waits until it answers and has said that its start is over: Caddy
// takes no lock between the end of its start and the stop of its servers, and a
// signal between the two is a data race there. The test fails if CoreDNS had a data
// race or recovered from a panic.
func startCoreDNS(t testing.TB, corefile string) *coreDNS {
	t.Helper()
	dir := t.TempDir()
	d := &coreDNS{address: loopback.Address(t), corefile: filepath.Join(dir, "Corefile")}
	d.write(t, corefile)
	_, port, _ := net.SplitHostPort(d.address)
	d.Process = &realserver.Process{
		Name: "coredns", Path: must.Get(os.Executable())(t), Dir: dir, Env: []string{roleVariable + "=coredns"},
		Args: []string{"-conf", d.corefile, "-dns.port", port},
		Ready: func(context.Context) error {
			if _, err := query(d.address, "up.invalid.", dns.TypeA); err != nil || d.Logged("CoreDNS-"+coremain.CoreVersion) > 0 {
				return err
			}
			return errors.New("the start is not over")
		},
	}
	t.Cleanup(func() { // runs after CoreDNS has ended
		if d.Logged("DATA RACE")+d.Logged("Recovered from panic")+d.Logged("a panic was recovered") > 0 {
			t.Errorf("race or panic in CoreDNS:\n%s", d.Tail())
		}
	})
	d.StartFor(t)
	return d
}

// write replaces the Corefile. CoreDNS reads it at its next reload.
func (d *coreDNS) write(t testing.TB, corefile string) {
	t.Helper()
	_, port, _ := net.SplitHostPort(d.address)
	writeFile(t, d.corefile, strings.ReplaceAll(corefile, "PORT", port))
}

// writeFile writes a file as a whole.
func writeFile(t testing.TB, path, content string) {
	t.Helper()
	must.Do(t, os.WriteFile(path+".new", []byte(content), 0o600))
	must.Do(t, os.Rename(path+".new", path))
}

// query sends one query with EDNS over UDP and returns the reply. It does not try again.
func query(address, name string, qtype uint16) (*dns.Msg, error) {
	m := new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype).SetEdns0(4096, false)
	reply, _, err := (&dns.Client{Timeout: 10 * time.Second}).Exchange(m, address)
	return reply, err
}

// mustQuery is query, and fails the test where there is no reply.
func mustQuery(t testing.TB, address, name string, qtype uint16) *dns.Msg {
	t.Helper()
	m, err := query(address, name, qtype)
	if err != nil {
		t.Fatalf("%s %s: %v", name, dns.TypeToString[qtype], err)
	}
	return m
}

// awaitReply asks for a name until wrong says that nothing is, and returns the reply.
func awaitReply(t testing.TB, address, name string, qtype uint16, wrong func(*dns.Msg) string) (reply *dns.Msg) {
	t.Helper()
	await.Eventually(t, func() string {
		var err error
		if reply, err = query(address, name, qtype); err != nil {
			return err.Error()
		}
		if why := wrong(reply); why != "" {
			return fmt.Sprintf("%s %s: %s", name, dns.TypeToString[qtype], why)
		}
		return ""
	})
	return reply
}

// summary returns a reply as one line: the code, then the sorted data of the
// answers, without their names, TTLs and types.
func summary(m *dns.Msg) string {
	var answers []string
	for _, rr := range m.Answer {
		answers = append(answers, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	slices.Sort(answers)
	return strings.Join(append([]string{dns.RcodeToString[m.Rcode]}, answers...), " ")
}

// awaitAnswer waits until the answer for a name is want, in the form of summary,
// and returns the reply.
func (d *coreDNS) awaitAnswer(t testing.TB, name string, qtype uint16, want string) *dns.Msg {
	t.Helper()
	return awaitReply(t, d.address, name, qtype, func(m *dns.Msg) string {
		if got := summary(m); got != want {
			return fmt.Sprintf("%q, want %q", got, want)
		}
		return ""
	})
}

// awaitStale waits until the answer for a name is marked as stale (RFC 8914
// section 4.4), and returns the reply.
func (d *coreDNS) awaitStale(t testing.TB, name string) *dns.Msg {
	t.Helper()
	return awaitReply(t, d.address, name, dns.TypeA, func(m *dns.Msg) string {
		if got := extendedError(m); got != int(dns.ExtendedErrorCodeStaleAnswer) {
			return fmt.Sprintf("the extended error is %d, want that of a stale answer", got)
		}
		return ""
	})
}

// awaitComplete waits until a name that nobody publishes is denied for certain: the
// catalogs of all owners of the zone are complete, and none of them is lost.
func (d *coreDNS) awaitComplete(t testing.TB, name string) {
	t.Helper()
	awaitReply(t, d.address, name, dns.TypeA, func(m *dns.Msg) string {
		if m.Rcode != dns.RcodeNameError || extendedError(m) != -1 {
			return fmt.Sprintf("%s, with the extended error %d", summary(m), extendedError(m))
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
