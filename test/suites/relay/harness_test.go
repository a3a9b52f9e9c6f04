package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	patience = 2 * time.Minute // bounds each wait for something that must happen
	promised = 5 * time.Second // is what such a wait takes in the median
	tick     = 20 * time.Millisecond

	zone      = "fed.example"
	ownerID   = "spiffe://fed.example/owner"
	relayID   = "spiffe://fed.example/relay"
	coreDNSID = "spiffe://fed.example/coredns"
)

// scratch is a directory for the programs, until the tests end.
var scratch string

func TestMain(m *testing.M) {
	code := m.Run()
	if scratch != "" {
		os.RemoveAll(scratch)
	}
	os.Exit(code)
}

// programs builds the programs once, and returns the directory that they are in.
var programs = sync.OnceValues(func() (string, error) {
	var err error
	if scratch, err = os.MkdirTemp("", "relay"); err != nil {
		return "", err
	}
	args := []string{"build", "-o", scratch + "/", "../../../cmd/coredns", "../../../cmd/federationctl"}
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return scratch, nil
})

// long skips a test that takes long, unless it is asked for.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("REAL_SERVERS") != "required" {
		t.Skip("takes long: REAL_SERVERS=required runs it")
	}
}

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until condition has nothing to complain of.
func eventually(t testing.TB, condition func() string) {
	t.Helper()
	await.Until(t, promised, patience, condition)
}

// passes lets a time pass.
func passes(t testing.TB, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// place is where a test runs its processes.
type place struct {
	dir       string
	authority *mtls.Authority
	api       string // that relays and CoreDNS speak to who is before them; empty for the default
}

func newPlace(t testing.TB) *place {
	t.Helper()
	authority, err := mtls.NewAuthority("test", 24*time.Hour)
	must(t, err)
	p := &place{dir: t.TempDir(), authority: authority}
	for name, id := range map[string]string{"owner": ownerID, "relay": relayID, "coredns": coreDNSID} {
		issued, err := authority.Issue(mtls.Leaf{
			Name: name, URIs: []string{id}, DNSNames: []string{"localhost"}, IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")},
		})
		must(t, err)
		must(t, issued.WriteFiles(mtls.Files{Cert: p.path(name + ".pem"), Key: p.path(name + "-key.pem"), CA: p.path("ca.pem")}))
	}
	return p
}

func (p *place) version() string { return cmp.Or(p.api, wire.V1Alpha2.String()) }

func (p *place) path(name string) string { return filepath.Join(p.dir, name) }

// write replaces a file at once.
func (p *place) write(t testing.TB, name, text string) string {
	t.Helper()
	path := p.path(name)
	must(t, os.WriteFile(path+".part", []byte(text), 0o600))
	must(t, os.Rename(path+".part", path))
	return path
}

// tierProcess is a process, and the gate before it through which others reach it.
type tierProcess struct {
	*realserver.Process

	address string
	gate    *realserver.Gate // nil of CoreDNS
}

// start starts a program.
func (p *place) start(t testing.TB, name, program, address string, args ...string) *tierProcess {
	t.Helper()
	dir, err := programs()
	must(t, err)
	n := &tierProcess{address: address, Process: &realserver.Process{
		Name: name, Path: filepath.Join(dir, program), Dir: p.dir, Args: args,
		Ready: func(ctx context.Context) error {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err != nil {
				return err
			}
			return conn.Close()
		},
	}}
	n.StartFor(t)
	t.Cleanup(func() {
		if n.Logged("panic")+n.Logged("DATA RACE") > 0 {
			t.Errorf("%s has lines about panics or races:\n%s", n.Log(), n.Tail())
		}
	})
	return n
}

// services is the text of a catalog file.
func services(addresses map[string]string) string {
	var b strings.Builder
	b.WriteString("services:\n")
	for name, address := range addresses {
		fmt.Fprintf(&b, "- {name: %s, fqdn: %s.%s, endpoints: [{address: %s, port: 80}], instances: [{id: v1, protocol: HTTP}]}\n",
			name, name, zone, address)
	}
	return b.String()
}

// origin starts an owner of a catalog file.
func (p *place) origin(t testing.TB, catalog string) *tierProcess {
	t.Helper()
	address := freeAddress(t)
	n := p.start(t, "origin", "federationctl", address, "serve", "--listen", address, "--catalog", p.write(t, "catalog.yaml", catalog),
		"--cert", p.path("owner.pem"), "--key", p.path("owner-key.pem"), "--ca", p.path("ca.pem"))
	n.gate = realserver.StartGate(t, address)
	return n
}

// relay starts a relay of another tier. keys are further ones of the catalog.
func (p *place) relay(t testing.TB, name string, of *tierProcess, id, keys string) *tierProcess {
	t.Helper()
	address := freeAddress(t)
	config := p.write(t, name+".yaml", fmt.Sprintf(`listen: %q
identity:
  files: {cert: relay.pem, key: relay-key.pem, ca: ca.pem}
allow:
  ids: [%s, %s]
catalogs:
- relay: {addresses: [%q], owner_ids: [%q], keepalive: 10s, persist: %s.catalog, api: %s}
%s`, address, relayID, coreDNSID, of.gate.Address, id, name, p.version(), keys))
	n := p.start(t, name, "federationctl", address, "serve", "--config", config)
	n.gate = realserver.StartGate(t, address)
	return n
}

// coreDNS starts a CoreDNS that subscribes to a relay.
func (p *place) coreDNS(t testing.TB, name string, of *tierProcess, id, zone string, retention time.Duration) *tierProcess {
	t.Helper()
	address := freeAddress(t)
	_, port, err := net.SplitHostPort(address)
	must(t, err)
	corefile := p.write(t, name+".corefile", fmt.Sprintf(`%s:%s {
    bind 127.0.0.1
    errors
    federation {
        owner %s
        tls %s %s %s
        owner_id %s
        ttl 2
        negative_ttl 1
        keepalive 10s
        retention %v
        persist %s
        api %s
    }
}
`, zone, port, of.gate.Address, p.path("coredns.pem"), p.path("coredns-key.pem"), p.path("ca.pem"), id, retention, p.path(name+".catalog"), p.version()))
	return p.start(t, name, "coredns", address, "-conf", corefile)
}

func freeAddress(t testing.TB) string {
	t.Helper()
	address, err := loopback.FreeAddress()
	must(t, err)
	return address
}

// answer is what a CoreDNS says of a name.
type answer struct {
	asked, at time.Time // when the query was sent, and when the answer was there
	rcode     int
	address   string
	ttl       time.Duration
	ede       int // -1 for none
}

func (a answer) stale() bool { return a.ede == int(dns.ExtendedErrorCodeStaleAnswer) }

func (a answer) String() string {
	return fmt.Sprintf("%s %s, TTL %v, extended error %d", dns.RcodeToString[a.rcode], a.address, a.ttl, a.ede)
}

// oneQuery bounds a query. A process that is stopped does not answer.
const oneQuery = 300 * time.Millisecond

var errForm = errors.New("the reply has not the expected form")

// ask asks for the address of a name.
func (n *tierProcess) ask(ctx context.Context, name string) (answer, error) {
	question := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA)
	question.SetEdns0(dns.DefaultMsgSize, false)
	a := answer{asked: time.Now(), ede: -1}
	reply, _, err := (&dns.Client{Timeout: oneQuery}).ExchangeContext(ctx, question, n.address)
	if err != nil {
		return a, err
	}
	a.at, a.rcode = time.Now(), reply.Rcode
	for _, rr := range reply.Answer {
		record, ok := rr.(*dns.A)
		if !ok {
			return a, fmt.Errorf("%w: %v", errForm, rr)
		}
		a.address, a.ttl = record.A.String(), time.Duration(record.Hdr.Ttl)*time.Second
	}
	if opt := reply.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				a.ede = int(e.InfoCode)
			}
		}
	}
	return a, nil
}

// answers waits until the answer for a name is one that want accepts.
func (n *tierProcess) answers(t testing.TB, name, what string, want func(answer) bool) (a answer) {
	t.Helper()
	eventually(t, func() string {
		var err error
		if a, err = n.ask(t.Context(), name); err != nil {
			return err.Error()
		}
		if !want(a) {
			return fmt.Sprintf("%s answers %v for %s, not yet %s", n.Name, a, name, what)
		}
		return ""
	})
	return a
}

// live waits until a name has an address that a stream vouches for.
func (n *tierProcess) live(t testing.TB, name, address string) {
	t.Helper()
	n.answers(t, name, "live at "+address, func(a answer) bool {
		return a.rcode == dns.RcodeSuccess && a.address == address && !a.stale()
	})
}

// lost waits until a name has a stale answer.
func (n *tierProcess) lost(t testing.TB, name string) {
	t.Helper()
	n.answers(t, name, "stale", func(a answer) bool { return a.rcode == dns.RcodeSuccess && a.stale() })
}

// gone waits until there is no such name.
func (n *tierProcess) gone(t testing.TB, name string) {
	t.Helper()
	n.answers(t, name, "gone", func(a answer) bool { return a.rcode == dns.RcodeNameError })
}
