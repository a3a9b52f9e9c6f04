package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	heldcatalog "github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/source"
	"github.com/hamlet-federation/coredns-federation/federation/source/relay"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/federation/wire/receipt"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network"
	"github.com/hamlet-federation/coredns-federation/test/kit/pki"
	"github.com/hamlet-federation/coredns-federation/test/kit/runner/race"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

var (
	firstSeed = flag.Uint64("seed", 1, "the first `seed` of TestReceiptsSchedules")
	schedules = flag.Int("schedules", 0, "`number` of schedules of TestReceiptsSchedules; 0 for the usual one")
)

// TestReceiptsSchedules runs an owner, a relay and their consumers through random faults, and
// asks all the while whether addresses are gone.
func TestReceiptsSchedules(t *testing.T) {
	n := 100
	switch {
	case *schedules > 0:
		n = *schedules
	case race.Enabled:
		n = 40
	case os.Getenv("CI") == "true":
		n = 500
	case testing.Short():
		n = 50
	}
	const shards = 4
	sums := make([]figures, shards)
	t.Run("all", func(t *testing.T) {
		for shard := range shards {
			t.Run(strconv.Itoa(shard), func(t *testing.T) {
				t.Parallel()
				for i := shard; i < n && !t.Failed(); i += shards {
					simulate(t, *firstSeed+uint64(i), &sums[shard])
				}
			})
		}
	})
	var sum figures
	for _, s := range sums {
		sum.gone, sum.looks, sum.unknown, sum.events, sum.calm = sum.gone+s.gone, sum.looks+s.looks, sum.unknown+s.unknown, sum.events+s.events, sum.calm+s.calm
	}
	t.Logf("%d schedules: %+v", n, sum)
	if n > 1 && (sum.gone == 0 || sum.calm == 0) {
		t.Error("nothing was ever said to be gone")
	}
}

// figures count what happened.
type figures struct {
	events  int
	looks   int // answers of inquiries
	gone    int // of them, those that an address is gone
	unknown int // of them, those that nobody can know it
	calm    int // withdrawals while all was well
}

func simulate(t *testing.T, seed uint64, sum *figures) {
	dir, err := os.MkdirTemp(inMemory(), "receipts") //nolint:usetesting // that is a disk
	must.Do(t, err)
	defer os.RemoveAll(dir)
	synctest.Test(t, func(t *testing.T) {
		w := &receiptsWorld{T: t, Rand: rand.New(rand.NewPCG(seed, 2)), seed: seed, dir: dir, figures: sum, services: make(map[string]*federation.Service), started: time.Now()}
		w.run()
	})
}

// inMemory returns a folder that is no disk, where there is one: there is a commit for each stream.
func inMemory() string {
	if _, err := os.Stat("/dev/shm"); err == nil {
		return "/dev/shm"
	}
	return ""
}

// receiptsWorld is one schedule.
type receiptsWorld struct {
	network.Network
	*testing.T
	*rand.Rand
	*figures

	seed     uint64
	dir      string
	started  time.Time
	origin   *ownerNode
	services map[string]*federation.Service // at the origin
	relay    *relayNode
	members  []*member
	asked    []*asked
	next     int // number of the next address
	policies bool

	mu    sync.Mutex // guards the trace
	trace []string
}

func (w *receiptsWorld) notef(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trace = append(w.trace, fmt.Sprintf("%10v  ", time.Since(w.started))+fmt.Sprintf(format, args...))
}

func (w *receiptsWorld) wrongf(format string, args ...any) {
	w.notef("WRONG: "+format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Fatalf("seed %d: run it again with -run TestReceiptsSchedules -schedules 1 -seed %d\n%s", w.seed, w.seed, strings.Join(w.trace, "\n"))
}

// plain are credentials without cryptography, of which each handshake takes a millisecond: a
// consumer says who it is, and is believed.
type plain struct{ name string }

func (p plain) ClientHandshake(_ context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	_, err := conn.Write(append([]byte{byte(len(p.name))}, p.name...))
	return conn, infoOf("owner"), err
}

func (plain) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	size := make([]byte, 1)
	if _, err := io.ReadFull(conn, size); err != nil {
		return nil, nil, err
	}
	name := make([]byte, size[0])
	_, err := io.ReadFull(conn, name)
	return conn, infoOf(string(name)), err
}

func infoOf(name string) credentials.TLSInfo {
	id := &url.URL{Scheme: "spiffe", Host: "example.org", Path: "/" + name}
	return credentials.TLSInfo{
		State:          tls.ConnectionState{PeerCertificates: []*x509.Certificate{{URIs: []*url.URL{id}}}},
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}
}

func idOf(name string) string { return "spiffe://example.org/" + name }

func (plain) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "plain"}
}
func (p plain) Clone() credentials.TransportCredentials { return p }
func (plain) OverrideServerName(string) error           { return nil }

// link is the way from a consumer to its owner.
type link struct {
	w       *receiptsWorld
	mu      sync.Mutex // guards the fields below
	cut     bool
	slow    time.Duration // of what the consumer sends
	stalled chan struct{} // closed when nothing is stalled
	conns   map[*stallable]struct{}
}

func newLink(w *receiptsWorld) *link {
	l := &link{w: w, stalled: make(chan struct{}), conns: make(map[*stallable]struct{})}
	close(l.stalled)
	w.Cleanup(func() { l.stall(false) })
	return l
}

func (l *link) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

func (l *link) dial(ctx context.Context, address string) (net.Conn, error) {
	l.mu.Lock()
	cut := l.cut
	l.mu.Unlock()
	if cut {
		return nil, errors.New("the link is cut")
	}
	conn, err := l.w.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	c := &stallable{Conn: conn, link: l, closed: make(chan struct{})}
	l.mu.Lock()
	l.conns[c] = struct{}{}
	l.mu.Unlock()
	return c, nil
}

// close closes all connections.
func (l *link) close() {
	l.mu.Lock()
	conns := slices.Collect(maps.Keys(l.conns))
	l.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

func (l *link) stall(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.stalled:
		if on {
			l.stalled = make(chan struct{})
		}
	default:
		if !on {
			close(l.stalled)
		}
	}
}

// stallable is a connection through which nothing comes while its link is stalled.
type stallable struct {
	net.Conn

	link   *link
	once   sync.Once
	closed chan struct{}
}

func (c *stallable) wait() error {
	c.link.mu.Lock()
	stalled := c.link.stalled
	c.link.mu.Unlock()
	select {
	case <-stalled:
		return nil
	case <-c.closed:
		return net.ErrClosed
	}
}

func (c *stallable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if waited := c.wait(); waited != nil {
		return 0, waited
	}
	return n, err
}

func (c *stallable) Write(b []byte) (int, error) {
	c.link.mu.Lock()
	slow := c.link.slow
	c.link.mu.Unlock()
	select {
	case <-time.After(slow):
	case <-c.closed: // a connection that is given up must not outlive the schedule
		return 0, net.ErrClosed
	}
	if err := c.wait(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Close closes the near end. While the link is stalled, the far end learns of it when it is not
// any more, as with packets that are sent once more.
func (c *stallable) Close() error {
	c.once.Do(func() {
		c.link.mu.Lock()
		delete(c.link.conns, c)
		stalled := c.link.stalled
		c.link.mu.Unlock()
		close(c.closed)
		select {
		case <-stalled:
			c.Conn.Close()
		default:
			go func() {
				<-stalled
				c.Conn.Close()
			}()
		}
	})
	return nil
}

// ownerNode is an owner with its registry.
type ownerNode struct {
	w        *receiptsWorld
	address  string
	receipts string // file; "" without
	registry *registry.Registry
	server   *owner.Server // nil while it is down
	stop     func()
}

func (o *ownerNode) start() {
	o.server = must.Get(owner.New(owner.Config{
		Registry: o.registry, Credentials: plain{}, Logger: slog.New(slog.DiscardHandler), Receipts: o.receipts, Window: 1 + o.w.IntN(4),
	}))(o.w)
	o.stop = o.w.Serve(o.w, o.address, o.server.Serve)
}

// end ends the server: by a crash it leaves the file as it is at this moment, and tells nobody
// anything from then on.
func (o *ownerNode) end(crash bool) {
	var left []byte
	if crash {
		synctest.Wait() // or somebody would be told something between this moment and the end
		left, _ = os.ReadFile(o.receipts)
		o.w.Down(o.address)
		for _, m := range o.w.members {
			if m.from == o.address {
				m.link.close()
			}
		}
		if r := o.w.relay; r != nil && o == o.w.origin {
			r.link.close()
		}
	}
	o.stop()
	o.server = nil
	if left != nil {
		must.Do(o.w, os.WriteFile(o.receipts, left, 0o600))
	}
}

// relayNode is a relay of the origin.
type relayNode struct {
	*ownerNode

	source *relay.Source
	link   *link
	quit   func()
}

func (w *receiptsWorld) startRelay() {
	r := &relayNode{ownerNode: &ownerNode{w: w, address: "relay:1", receipts: filepath.Join(w.dir, "relay.receipts"), registry: registry.New()}, link: newLink(w)}
	of := must.Get(relay.New(relay.Config{
		Subscription: consumer.Subscription{
			Addresses: []string{w.origin.address}, Dial: r.link.dial,
			Identity: &pki.Identity{Of: func(string) credentials.TransportCredentials { return plain{"relay"} }},
		},
		Settle: 5 * time.Second, Logger: slog.New(slog.DiscardHandler),
	}))(w)
	r.source = of
	c := source.NewCatalog(source.Config{Registry: r.registry, Logger: slog.New(slog.DiscardHandler)})
	c.Set([]source.Entry{{Key: "1", Name: "relay", Source: of, Lifetime: source.NoLifetime}})
	r.start()
	end := must.Run(w, c.Run)
	endReports := must.Run(w, func(ctx context.Context) error {
		ticker := time.NewTicker(reportInterval)
		defer ticker.Stop()
		said := &reporting{}
		for {
			select {
			case <-ticker.C:
				said.report(of, r.server, "", c)
			case <-ctx.Done():
				return nil
			}
		}
	})
	r.quit = sync.OnceFunc(func() {
		endReports()
		r.end(w.IntN(2) == 0)
		end()
	})
	w.relay = r
}

// kill ends a relay without a farewell.
func (w *receiptsWorld) killRelay() {
	w.relay.link.stall(false)
	w.relay.link.set(func() { w.relay.link.cut = true })
	w.relay.link.close()
	w.relay.quit()
	w.relay = nil
}

// member is a consumer with its clients.
type member struct {
	w         *receiptsWorld
	name      string // of its certificate
	number    int
	from      string
	ttl       time.Duration
	retention time.Duration
	file      string
	version   wire.Version
	refuses   bool // addresses that end in 0 or 1
	link      *link

	mirror *consumer.Mirror // nil while it is down
	stop   func()

	mu       sync.Mutex // guards the fields below
	life     int
	services map[string][]string  // addresses that are answered
	held     map[string]time.Time // until when clients have addresses that are not answered any more
	shut     time.Time            // when its process ends, after its subscription
}

func (w *receiptsWorld) newMember() {
	m := &member{
		w: w, name: fmt.Sprint("c", w.IntN(4)), number: len(w.members), link: newLink(w), held: make(map[string]time.Time),
		ttl: time.Duration(w.IntN(8)) * time.Second, retention: time.Duration(2+w.IntN(30)) * time.Second, from: "origin:1", version: wire.V1Alpha2,
	}
	if w.relay != nil && w.IntN(2) == 0 {
		m.from = "relay:1"
	}
	if w.IntN(3) == 0 {
		m.file = filepath.Join(w.dir, fmt.Sprint("file", m.number))
	}
	m.refuses = w.IntN(6) == 0
	if w.IntN(8) == 0 {
		m.version, m.file = wire.V1Alpha1, ""
	}
	w.members = append(w.members, m)
	m.start()
}

func (m *member) String() string {
	return fmt.Sprintf("%s #%d at %s (ttl %v, retention %v, file %t, refuses %t, %s)", m.name, m.number, m.from, m.ttl, m.retention, m.file != "", m.refuses, m.version)
}

func (m *member) start() {
	m.mu.Lock()
	m.life++
	life := m.life
	m.services, m.shut = make(map[string][]string), time.Time{}
	m.mu.Unlock()
	m.link.stall(false)
	m.link.set(func() { m.link.cut, m.link.slow = m.life > 1 && m.w.IntN(3) == 0, 0 })
	start := time.Now()
	m.mirror = must.Get(consumer.New(consumer.Config{
		Subscription: consumer.Subscription{
			Addresses: []string{m.from}, Dial: m.link.dial, File: m.file, Version: m.version,
			Identity: &pki.Identity{Of: func(string) credentials.TransportCredentials { return plain{m.name} }},
		},
		Rules: heldcatalog.Rules{Settle: 5 * time.Second, Retention: m.retention, Admit: func(s *federation.Service) *federation.InvalidError {
			if last := s.Endpoints[0].Address.String(); m.refuses && strings.ContainsAny(last[len(last)-1:], "01") {
				return federation.Invalidf("endpoints", federation.ReasonUndecodable, "it is refused")
			}
			return nil
		}},
		Receipt: func() receipt.Receipt { return receipt.Receipt{TTL: m.ttl, Hold: m.retention} },
		Publish: func(c consumer.Changes) { m.publish(life, c) },
		Clock:   func() (time.Time, time.Duration) { return time.Now().Round(0), time.Since(start) },
	}))(m.w)
	m.stop = must.Run(m.w, m.mirror.Run)
}

// publish is what the mirror changes.
func (m *member) publish(life int, c consumer.Changes) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if life != m.life {
		return // it is dead
	}
	for _, change := range c.Services {
		if change.Op() == heldcatalog.Gone {
			m.answers(change.Name, nil, time.Now())
		} else {
			var now []string
			for _, e := range change.Service().Endpoints {
				now = append(now, e.Address.String())
			}
			m.answers(change.Name, now, time.Now())
		}
	}
}

// answers notes what is answered from a time on. The caller holds mu.
func (m *member) answers(name string, now []string, at time.Time) {
	for _, address := range m.services[name] {
		if !slices.Contains(now, address) {
			m.held[address] = at.Add(m.ttl)
		}
	}
	if m.services[name] = now; now == nil {
		delete(m.services, name)
	}
}

// end ends what is answered.
func (m *member) end(at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.life++
	for name := range m.services {
		m.answers(name, nil, at)
	}
	m.shut = time.Time{}
}

// kill ends the process.
func (m *member) kill() {
	m.end(time.Now())
	m.link.set(func() { m.link.cut = true })
	var file []byte
	if m.file != "" {
		file, _ = os.ReadFile(m.file)
	}
	m.link.close()
	m.stop()
	m.mirror = nil
	if file != nil {
		must.Do(m.w, os.WriteFile(m.file, file, 0o600)) // as it was
	} else if m.file != "" {
		_ = os.Remove(m.file)
	}
}

// leave ends the subscription, and the process some time later: what is stale is answered until the
// retention is over.
func (m *member) leave() {
	m.stop()
	m.mirror = nil
	m.mu.Lock()
	defer m.mu.Unlock()
	m.life++
	m.shut = time.Now().Add(min(time.Duration(m.w.IntN(20))*time.Second, m.retention))
}

// has reports whether an address may be used that it has answered, and why.
func (m *member) has(address string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, addresses := range m.services {
		if slices.Contains(addresses, address) {
			return "answers it"
		}
	}
	if until := m.held[address]; time.Now().Before(until) {
		return "has clients that keep it for " + time.Until(until).String()
	}
	return ""
}

// asked is an inquiry about an address.
type asked struct {
	address string
	inquiry *owner.Inquiry
	ignore  []string
}

func (w *receiptsWorld) ask(address string, ignore ...string) *asked {
	return &asked{address, w.origin.server.Inquire(owner.Question{Ignore: ignore, Matches: func(e *wire.Encoded) bool {
		return slices.ContainsFunc(e.Service().Endpoints, func(e federation.Endpoint) bool { return e.Address.String() == address })
	}}), ignore}
}

// look asks, and judges the answer.
func (w *receiptsWorld) look(a *asked) bool {
	s := a.inquiry.Look()
	w.looks++
	if !s.Settled {
		w.unknown += min(1, s.Unknown)
		return false
	}
	w.gone++
	for _, m := range w.members {
		if slices.Contains(a.ignore, idOf(m.name)) {
			continue
		}
		if why := m.has(a.address); why != "" {
			w.wrongf("%s is said to be gone (%d of %d settled), and %s %s", a.address, s.Done, s.Consumers, m, why)
		}
	}
	return true
}

// judge asks all that is asked.
func (w *receiptsWorld) judge() {
	for _, m := range w.members {
		if !m.shut.IsZero() && time.Now().After(m.shut) {
			m.end(m.shut)
		}
	}
	if w.origin.server == nil {
		return
	}
	for i := 0; i < len(w.asked); i++ {
		if w.look(w.asked[i]) && w.IntN(3) == 0 || w.IntN(200) == 0 {
			w.asked = slices.Delete(w.asked, i, i+1)
			i--
		}
	}
}

func (w *receiptsWorld) run() {
	w.origin = &ownerNode{w: w, address: "origin:1", registry: registry.New(), receipts: filepath.Join(w.dir, "receipts")}
	w.policies = w.IntN(2) == 0
	for range 1 + w.IntN(4) {
		w.change()
	}
	w.origin.start()
	if w.IntN(2) == 0 {
		w.startRelay()
	}
	for range 1 + w.IntN(5) {
		w.newMember()
	}
	kinds := []func(){w.change, w.change, w.change, w.askAny, w.askAny, w.cut, w.stall, w.slowDown, w.kill, w.kill, w.revive, w.revive, w.restart, w.unavailable, w.hold, w.tell, w.renew, w.relayEvent}
	steps := 40 + w.IntN(60)
	for range steps {
		for w.IntN(3) > 0 {
			pick(w, kinds)()
			w.events++
			if w.IntN(4) == 0 {
				w.judge()
			}
		}
		time.Sleep(time.Duration(1+w.IntN(20)) * 50 * time.Millisecond << w.IntN(6))
		w.judge()
		synctest.Wait()
		w.judge()
	}
	w.calmDown()
	for _, m := range w.members {
		if m.mirror != nil {
			m.end(time.Now())
			m.stop()
		}
	}
	if w.relay != nil {
		w.relay.quit()
	}
	w.origin.end(false)
}

func pick[T any](w *receiptsWorld, of []T) T { return of[w.IntN(len(of))] }

// change adds, changes or withdraws a service.
func (w *receiptsWorld) change() {
	name := fmt.Sprint("s", w.IntN(4))
	old := w.services[name]
	if old != nil && w.IntN(2) == 0 {
		w.notef("%s is withdrawn, with %s", name, old.Endpoints[0].Address)
		if w.origin.server != nil && w.IntN(2) == 0 {
			w.askFor(old.Endpoints[0].Address.String())
		}
		delete(w.services, name)
		w.origin.registry.Delete(name)
		if w.origin.server != nil && w.IntN(2) == 0 {
			w.askFor(old.Endpoints[0].Address.String())
		}
		return
	}
	w.next++
	number := w.next
	if w.IntN(4) == 0 {
		number = 1 + w.IntN(w.next) // which it or another one had before
	}
	s := serviceAt(name, address(number))
	w.notef("%s has %s", name, address(number))
	w.services[name] = s
	must.Get(w.origin.registry.Upsert(s))(w)
	if old != nil && w.origin.server != nil && w.IntN(2) == 0 {
		w.askFor(old.Endpoints[0].Address.String())
	}
}

// serviceAt returns a service that both versions of the API can express.
func serviceAt(name, address string) *federation.Service {
	s := services.At(name+".example", address)
	s.SANs = []string{name + ".example"}
	return s
}

func address(number int) string {
	return netip.AddrFrom4([4]byte{192, 0, byte(number >> 8), byte(number)}).String()
}

func (w *receiptsWorld) askFor(address string) {
	if len(w.asked) < 10 {
		w.asked = append(w.asked, w.ask(address))
	}
}

func (w *receiptsWorld) askAny() {
	if w.origin.server != nil && w.next > 0 {
		w.askFor(address(max(1, w.next-w.IntN(4))))
	}
}

func (w *receiptsWorld) any() *member { return pick(w, w.members) }

func (w *receiptsWorld) cut() {
	m := w.any()
	m.link.set(func() {
		m.link.cut = !m.link.cut
		w.notef("%s is cut: %t", m, m.link.cut)
	})
	m.link.close()
}

func (w *receiptsWorld) stall() {
	m := w.any()
	on := w.IntN(2) == 0
	w.notef("%s is stalled: %t", m, on)
	m.link.stall(on)
}

func (w *receiptsWorld) slowDown() {
	m, slow := w.any(), time.Duration(0)
	if w.IntN(2) == 0 {
		slow = time.Duration(w.IntN(4000)) * time.Millisecond
	}
	w.notef("%s is slow: %v", m, slow)
	m.link.set(func() { m.link.slow = slow })
}

func (w *receiptsWorld) kill() {
	m := w.any()
	if m.mirror == nil {
		return
	}
	if w.IntN(2) == 0 {
		w.notef("%s is killed", m)
		m.kill()
	} else {
		w.notef("%s leaves", m)
		m.leave()
	}
}

func (w *receiptsWorld) revive() {
	m := w.any()
	if m.mirror != nil {
		if len(w.members) < 8 && w.IntN(2) == 0 {
			w.newMember()
			w.notef("there is a new one: %s", w.members[len(w.members)-1])
		}
		return
	}
	w.notef("%s is back", m)
	m.end(time.Now())
	m.start()
}

// restart ends the owner, or has it start again.
func (w *receiptsWorld) restart() {
	if w.origin.server == nil {
		w.startOrigin()
		return
	}
	if w.IntN(2) == 0 {
		return
	}
	crash := w.IntN(2) == 0
	w.notef("the owner ends, by a crash: %t", crash)
	w.origin.end(crash)
	if w.IntN(2) == 0 {
		w.startOrigin()
	}
}

func (w *receiptsWorld) startOrigin() {
	w.notef("the owner starts")
	now := w.origin.registry
	w.origin.registry = registry.New()
	must.Get(w.origin.registry.Set(slices.Collect(maps.Values(w.services))))(w)
	w.origin.registry.SetPolicy(w.policy(now))
	w.origin.start()
	for _, a := range w.asked {
		*a = *w.ask(a.address, a.ignore...)
	}
}

func (w *receiptsWorld) policy(*registry.Registry) *policy.Policy {
	if !w.policies || w.IntN(3) == 0 {
		return nil
	}
	var rules []policy.Rule
	for i := range 4 {
		r := policy.Rule{FQDNs: []string{fmt.Sprintf("s%d.example", i)}, To: []string{idOf("relay"), idOf("nobody")}}
		for j := range 4 {
			if w.IntN(3) > 0 {
				r.To = append(r.To, idOf(fmt.Sprint("c", j)))
			}
		}
		if w.IntN(4) == 0 {
			r.To = r.To[1:]
		}
		rules = append(rules, r)
	}
	p, mistakes := policy.New(rules)
	if len(mistakes) > 0 {
		w.Fatal(mistakes)
	}
	return p
}

// tell changes the policy.
func (w *receiptsWorld) tell() {
	if w.policies {
		w.notef("the policy changes")
		w.origin.registry.SetPolicy(w.policy(nil))
	}
}

func (w *receiptsWorld) unavailable() {
	reason := ""
	if w.IntN(3) == 0 {
		reason = "away"
	}
	w.notef("the catalog is unavailable: %q", reason)
	w.origin.registry.SetUnavailable(reason)
}

// hold changes several things at once.
func (w *receiptsWorld) hold() {
	defer w.origin.registry.Hold()()
	w.change()
	w.tell()
	w.judge()
	w.change()
}

func (w *receiptsWorld) renew() {
	if m := w.any(); m.mirror != nil {
		w.notef("%s subscribes once more", m)
		m.mirror.Refetch()
	}
}

func (w *receiptsWorld) relayEvent() {
	if w.relay == nil {
		return
	}
	l := w.relay.link
	switch w.IntN(6) {
	case 0:
		w.notef("the relay is stalled")
		l.stall(true)
	case 1, 2:
		w.notef("the relay is not stalled")
		l.stall(false)
	case 3:
		l.set(func() {
			l.cut = !l.cut
			w.notef("the relay is cut: %t", l.cut)
		})
		l.close()
	case 4:
		w.notef("the relay is killed, and started anew")
		w.killRelay()
		w.startRelay()
	}
}

// calmDown ends all faults. Then a withdrawal is settled in time.
func (w *receiptsWorld) calmDown() {
	w.notef("all faults end")
	if w.origin.server == nil {
		w.startOrigin()
	}
	w.origin.registry.SetPolicy(nil)
	w.origin.registry.SetUnavailable("")
	if w.relay != nil {
		w.relay.link.stall(false)
		w.relay.link.set(func() { w.relay.link.cut = false })
		w.relay.source.Retry()
	}
	for _, m := range w.members {
		m.link.stall(false)
		m.link.set(func() { m.link.cut, m.link.slow = false, 0 })
		if m.mirror != nil {
			m.mirror.Retry()
		}
	}
	if w.services["s9"] == nil {
		w.services["s9"] = serviceAt("s9", "198.51.100.9")
	}
	must.Get(w.origin.registry.Upsert(w.services["s9"]))(w)
	for range 40 {
		for _, m := range w.members { // an attempt that was under way over a bad link may still fail
			if m.mirror != nil {
				m.mirror.Retry()
			}
		}
		time.Sleep(5 * time.Second)
		w.judge()
	}
	bound, refusing := time.Second, false
	for _, m := range w.members {
		if m.mirror == nil {
			continue
		}
		if m.has("198.51.100.9") == "" {
			w.wrongf("all is well, and %s does not have the last service: %+v", m, m.mirror.Status())
		}
		refusing = refusing || m.refuses
		bound = max(bound, m.ttl+time.Second)
		if m.from == "relay:1" {
			bound = max(bound, m.ttl+3*time.Second)
		}
	}
	if refusing { // what else it has, of which it refuses the latest, a relay does not know
		return
	}
	w.notef("the last service is withdrawn")
	w.calm++
	before := w.ask("198.51.100.9")
	before.inquiry.Look()
	w.origin.registry.Delete("s9")
	after := w.ask("198.51.100.9")
	for range int(bound/(100*time.Millisecond)) + 1 {
		w.look(before)
		w.look(after)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		w.judge()
	}
	for _, a := range []*asked{before, after} {
		s := a.inquiry.Look()
		waits := slices.ContainsFunc(s.Missing, func(m status.Outstanding) bool {
			return !m.Unknown && time.Until(m.Until) < time.Hour // or it is a relay that was killed before it had its first consumer
		})
		if s.Pending() && waits {
			w.wrongf("all is well, and the last service is not gone after %v: %+v", bound, s)
		}
	}
}

// TestFileIsNotGone withdraws a service a second after another one. The next process of the
// consumer would answer it until it is saved that it is gone.
func TestFileIsNotGone(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := &receiptsWorld{T: t, Rand: rand.New(rand.NewPCG(0, 0)), dir: dir, figures: &figures{}, services: make(map[string]*federation.Service), started: time.Now()}
		w.origin = &ownerNode{w: w, address: "origin:1", registry: registry.New(), receipts: filepath.Join(dir, "receipts")}
		for i, name := range []string{"s0", "s1"} {
			must.Get(w.origin.registry.Upsert(serviceAt(name, address(i))))(t)
		}
		w.origin.start()
		m := &member{w: w, name: "c0", link: newLink(w), held: make(map[string]time.Time), ttl: time.Second, retention: time.Hour, from: "origin:1", file: filepath.Join(dir, "file")}
		m.start()
		time.Sleep(time.Minute)
		w.origin.registry.Delete("s0")
		first := w.ask(address(0))
		time.Sleep(1500 * time.Millisecond)
		if !first.inquiry.Look().Settled {
			t.Errorf("the first one is saved, and %+v", first.inquiry.Look())
		}
		w.origin.registry.Delete("s1")
		second := w.ask(address(1))
		time.Sleep(3 * time.Second)
		if s := second.inquiry.Look(); s.Settled {
			t.Errorf("the second one is not saved, and %+v", s)
		}
		m.kill()
		m.start()
		m.link.set(func() { m.link.cut = true })
		m.link.close()
		synctest.Wait()
		time.Sleep(3 * time.Second)
		m.link.set(func() { m.link.cut = false })
		m.mirror.Retry()
		time.Sleep(10 * time.Second)
		if s := second.inquiry.Look(); !s.Settled {
			t.Errorf("all is saved, and %+v", s)
		}
		m.end(time.Now())
		m.stop()
		w.origin.end(false)
	})
}
