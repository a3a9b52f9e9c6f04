package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	zone      = "fed.example"
	ownerID   = "spiffe://fed.example/owner"
	relayID   = "spiffe://fed.example/relay"
	coreDNSID = "spiffe://fed.example/coredns"
)

func TestMain(m *testing.M) { place.Main(m) }

// eventually waits until a condition has nothing to complain of.
var eventually = await.Eventually

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

// world is where a test runs its processes.
type world struct {
	*place.Place

	api string // that relays and CoreDNS speak to who is before them; empty for the default
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return &world{Place: place.For(t, map[string]string{"owner": ownerID, "relay": relayID, "coredns": coreDNSID})}
}

func (p *world) version() string { return cmp.Or(p.api, wire.V1Alpha2.String()) }

// tierProcess is a process, and the gate before it through which others reach it.
type tierProcess struct {
	*realserver.Process

	address string
	metrics string           // their address
	gate    *realserver.Gate // nil of CoreDNS
}

// start starts a program.
func (p *world) start(t testing.TB, name, program, address string, args ...string) *tierProcess {
	t.Helper()
	return &tierProcess{address: address, Process: p.Run(t, name, place.Built(t, program), address, args...)}
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
func (p *world) origin(t testing.TB, catalog string) *tierProcess {
	t.Helper()
	address := loopback.Address(t)
	n := p.start(t, "origin", "federationctl", address, "serve", "--listen", address, "--catalog", p.Put(t, "catalog.yaml", catalog),
		"--cert", p.Path("owner.pem"), "--key", p.Path("owner-key.pem"), "--ca", p.Path("ca.pem"), "--allow-any")
	n.gate = realserver.StartGate(t, address)
	return n
}

// relay starts a relay of another tier. keys are further ones of the catalog.
func (p *world) relay(t testing.TB, name string, of *tierProcess, id, keys string) *tierProcess {
	t.Helper()
	address, metrics := loopback.Address(t), loopback.Address(t)
	config := place.Owner{
		Address: address, Metrics: metrics, TLS: p.Files("relay"), Allow: []string{relayID, coreDNSID},
		More: fmt.Sprintf("catalogs:\n- relay: {addresses: [%q], owner_ids: [%q], persist: %s.catalog, api: %s}\n%s",
			of.gate.Address, id, name, p.version(), keys),
	}
	n := p.start(t, name, "federationctl", address, "serve", "--config", p.Put(t, name+".yaml", config.Config()))
	n.metrics = metrics
	n.gate = realserver.StartGate(t, address)
	return n
}

// coreDNS starts a CoreDNS that subscribes to a relay.
func (p *world) coreDNS(t testing.TB, name string, of *tierProcess, id, zone string, retention time.Duration) *tierProcess {
	t.Helper()
	address, metrics := loopback.Address(t), loopback.Address(t)
	corefile := place.DNS{
		Zone: zone, Address: address, Metrics: metrics, Owners: []string{of.gate.Address}, OwnerID: id, TLS: p.Files("coredns"),
		Properties: []string{
			"ttl 2", fmt.Sprintf("retention %v", retention), "persist " + p.Path(name+".catalog"), "api " + p.version(),
		},
	}
	n := p.start(t, name, "coredns", address, "-conf", p.Put(t, name+".corefile", corefile.Corefile()))
	n.metrics = metrics
	return n
}

// sessions returns how many streams of a CoreDNS have ended.
func (n *tierProcess) sessions(t testing.TB) float64 {
	t.Helper()
	return place.Scrape(t, n.metrics).Sum("coredns_federation_sessions_total")
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

// busy is for how long a client waits that wants each of its queries answered.
const busy = 10 * time.Second

var errForm = errors.New("the reply has not the expected form")

// ask asks for the address of a name.
func (n *tierProcess) ask(ctx context.Context, name string, patience time.Duration) (answer, error) {
	question := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA)
	question.SetEdns0(dns.DefaultMsgSize, false)
	a := answer{asked: time.Now(), ede: -1}
	reply, _, err := (&dns.Client{Timeout: patience}).ExchangeContext(ctx, question, n.address)
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
		if a, err = n.ask(t.Context(), name, oneQuery); err != nil {
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
