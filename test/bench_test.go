package test

import (
	"bufio"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/transfer"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services/registrytest"
)

// Benchmarks are named for benchstat: `benchstat -col /plugin` sets the plugins
// side by side.

var benchServices = flag.String("services", "1000,100000", "sizes of the catalogs that benchmarks use, with commas between them")

// largest bounds the catalogs of services with many records: at a million of
// them the file plugin would need more memory than most machines have.
const largest = 200_000

// profile is a kind of service.
type profile struct {
	name      string
	instances []federation.Instance
	addresses func(i int) []netip.Addr
	queries   []benchQuery
}

// benchQuery is what is asked of every service.
type benchQuery struct {
	name     string
	labels   string // in front of the fqdn
	qtype    uint16
	rcode    int
	answers  int
	extra    int
	contests []string // the plugins that can answer it
}

func profiles() []profile {
	v4 := func(network byte, i int) netip.Addr {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(i)) // below 1<<24
		b[0] = network
		return netip.AddrFrom4(b)
	}
	v6 := func(i int) netip.Addr {
		b := netip.MustParseAddr("2001:db8::").As16()
		binary.BigEndian.PutUint32(b[12:], uint32(i))
		return netip.AddrFrom16(b)
	}
	all, zones := []string{"federation", "hosts", "file"}, []string{"federation", "file"}
	return []profile{
		{
			name:      "one",
			instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTP}},
			addresses: func(i int) []netip.Addr { return []netip.Addr{v4(10, i)} },
			queries: []benchQuery{
				{"A", "", dns.TypeA, dns.RcodeSuccess, 1, 0, all},
				{"A-instance", "v1.", dns.TypeA, dns.RcodeSuccess, 1, 0, all},
				{"NODATA", "", dns.TypeAAAA, dns.RcodeSuccess, 0, 0, all},
				{"NXDOMAIN", "no-", dns.TypeA, dns.RcodeNameError, 0, 0, zones},
				{"SRV", "_http._tcp.", dns.TypeSRV, dns.RcodeSuccess, 1, 1, zones},
				{"TXT", "", dns.TypeTXT, dns.RcodeSuccess, 2, 0, zones},
			},
		},
		{
			name: "three",
			instances: []federation.Instance{
				{ID: "v1", Protocol: federation.HTTP}, {ID: "v2", Protocol: federation.HTTPS}, {ID: "v3", Protocol: federation.GRPC},
			},
			addresses: func(i int) []netip.Addr { return []netip.Addr{v4(10, i), v4(11, i), v6(i)} },
			queries: []benchQuery{
				{"A", "", dns.TypeA, dns.RcodeSuccess, 2, 0, all},
				{"AAAA", "", dns.TypeAAAA, dns.RcodeSuccess, 1, 0, all},
				{"NXDOMAIN", "no-", dns.TypeA, dns.RcodeNameError, 0, 0, zones},
				{"SRV", "_http._tcp.", dns.TypeSRV, dns.RcodeSuccess, 3, 3, zones},
				{"TXT", "", dns.TypeTXT, dns.RcodeSuccess, 4, 0, zones},
			},
		},
	}
}

// benchOrigin is the zone of all services of a benchmark.
const benchOrigin = "fed.example."

func benchFQDN(i int) string { return fmt.Sprintf("svc-%07d.team-%02d.%s", i, i%100, benchOrigin) }

// service is the i-th one.
func (p *profile) service(i int) *federation.Service {
	name := fmt.Sprintf("service-%07d", i)
	s := simpleService(name, benchFQDN(i), "192.0.2.1")
	s.Instances, s.Endpoints = p.instances, nil
	for _, ip := range p.addresses(i) {
		s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: benchAddress(ip), Port: 8080})
	}
	return s
}

func (p *profile) catalog(size int) []*federation.Service {
	all := make([]*federation.Service, size)
	for i := range all {
		all[i] = p.service(i)
	}
	return all
}

// eachCatalog runs f for every profile and size.
func eachCatalog(b *testing.B, f func(b *testing.B, p *profile, size int)) {
	b.Helper()
	for _, p := range profiles() {
		for text := range strings.SplitSeq(*benchServices, ",") {
			size, err := strconv.Atoi(text)
			if err != nil || size < 1 || size >= 1<<24 {
				b.Fatalf("-services %q: want sizes of 1 to %d with commas between them", *benchServices, 1<<24-1)
			}
			if len(p.instances) > 1 && size > largest {
				continue
			}
			b.Run(fmt.Sprintf("profile=%s/services=%d", p.name, size), func(b *testing.B) { f(b, &p, size) })
		}
	}
}

// order returns the numbers below n, shuffled in the same way each time.
func order(n int) []int { return rand.New(rand.NewPCG(1, 2)).Perm(n) }

// questions returns a name for each service, in random order and in one run of
// memory: a server has just read them from the network, and pays for no other
// memory of theirs.
func (q *benchQuery) questions(size int) []string {
	var text strings.Builder
	ends := make([]int, size)
	for i, n := range order(size) {
		text.WriteString(q.labels + benchFQDN(n))
		ends[i] = text.Len()
	}
	names, start, all := make([]string, size), 0, text.String()
	for i, end := range ends {
		names[i], start = all[start:end], end
	}
	return names
}

// syncPatience bounds the wait for a whole catalog.
const syncPatience = 10 * time.Minute

// filled returns a registry of services.
func filled(b *testing.B, all []*federation.Service) *registry.Registry {
	b.Helper()
	r := registry.New()
	must.Get(r.Set(all))(b)
	registrytest.Subscribe(r).Close() // the registry sorts the names once, now
	return r
}

// contest is one catalog, held by several plugins in this process.
type contest struct {
	handlers map[string]plugin.Handler
	bytes    map[string]int64 // what a plugin holds
	started  map[string]time.Duration
}

// newContest starts the plugins. Federation takes the catalog from an owner; the
// others take the records of its zone from files.
func newContest(b *testing.B, p *profile, size int) *contest {
	b.Helper()
	c := &contest{
		handlers: make(map[string]plugin.Handler), bytes: make(map[string]int64), started: make(map[string]time.Duration),
	}
	all := p.catalog(size)
	zoneFile, hostsFile := filepath.Join(b.TempDir(), "zone"), filepath.Join(b.TempDir(), "hosts")
	export(b, all, zoneFile, hostsFile)
	keys, registry := newPlace(b), filled(b, all)
	address := serveRegistry(b, keys, loopback.Address(b), registry, 256).address
	c.start(b, "federation", fmt.Sprintf("owner %s\n%s", address, tlsOf(keys)), transfers)
	started := func(plugin.Handler) bool { return true }
	c.start(b, "hosts "+hostsFile, "reload 0\nno_reverse\nttl 30", started)
	c.start(b, "file "+zoneFile, "reload 0", started)
	runtime.KeepAlive(registry)
	return c
}

// transfers reports whether federation has all catalogs, and so would transfer the zone.
func transfers(h plugin.Handler) bool {
	// The answer to a secondary whose serial is newer is the SOA alone.
	records, err := h.(transfer.Transferer).Transfer(benchOrigin, uint32(time.Now().Unix())+1)
	if err != nil {
		return false
	}
	for range records {
	}
	return true
}

// start starts CoreDNS in this process with one plugin, until it is ready.
func (c *contest) start(b *testing.B, directive, properties string, ready func(plugin.Handler) bool) {
	b.Helper()
	name, _, _ := strings.Cut(directive, " ")
	_, port, _ := net.SplitHostPort(loopback.Address(b))
	corefile := fmt.Sprintf("%s:%s {\nbind 127.0.0.1\n%s {\n%s\n}\ncapture\n}\n", benchOrigin, port, directive, properties)
	before, begin := heap(), time.Now()
	config := startInProcess(b, corefile)
	handler := config.Handler(name)
	deadline := time.Now().Add(syncPatience)
	for tick := time.NewTicker(time.Millisecond); !ready(handler); <-tick.C {
		if time.Now().After(deadline) {
			b.Fatalf("%s is not ready after %v", name, syncPatience)
		}
	}
	c.started[name] = time.Since(begin)
	c.bytes[name] = heap() - before
	c.handlers[name] = handler
}

// captured is the server block that startInProcess has started last.
var captured *dnsserver.Config

// registerCapture makes known the directive that captures its server block.
var registerCapture = sync.OnceValue(func() error {
	plugin.Register("capture", func(c *caddy.Controller) error {
		captured = dnsserver.GetConfig(c)
		return nil
	})
	return dnsserver.SetDirectives(append(slices.Clone(dnsserver.Directives), "capture"))
})

// startInProcess runs CoreDNS until the end of the benchmark and returns its
// server block.
func startInProcess(b *testing.B, corefile string) *dnsserver.Config {
	b.Helper()
	must.Do(b, registerCapture())
	caddy.Quiet, dnsserver.Quiet = true, true
	log.SetOutput(io.Discard) // a line of log would break one of the results
	instance := must.Get(caddy.Start(caddy.CaddyfileInput{Filepath: "Corefile", Contents: []byte(corefile), ServerTypeName: "dns"}))(b)
	config := captured
	b.Cleanup(func() {
		instance.ShutdownCallbacks()
		if err := instance.Stop(); err != nil {
			b.Error(err)
		}
		// Caddy keeps an instance that has ended until others have taken its place,
		// and it must not count as theirs.
		instance.OnStartup, instance.OnShutdown, instance.OnRestartFailed = nil, nil, nil
		*config, captured = dnsserver.Config{}, nil
	})
	return config
}

// export writes the records of the services as the files of other plugins.
func export(b *testing.B, all []*federation.Service, zoneFile, hostsFile string) {
	b.Helper()
	now := time.Now()
	zone, hosts := create(b, zoneFile), create(b, hostsFile)
	soas := 0
	for rrs := range reply.FullTransfer(compiled(b, all).Publish(now), benchOrigin, now) {
		for _, rr := range rrs {
			switch rr := rr.(type) {
			case *dns.SOA:
				if soas++; soas > 1 { // the end of a transfer
					continue
				}
			case *dns.A:
				fmt.Fprintln(hosts, rr.A, rr.Hdr.Name)
			case *dns.AAAA:
				fmt.Fprintln(hosts, rr.AAAA, rr.Hdr.Name)
			}
			fmt.Fprintln(zone, rr)
		}
	}
	for _, w := range []*bufio.Writer{zone, hosts} {
		must.Do(b, w.Flush())
	}
}

func create(b *testing.B, path string) *bufio.Writer {
	b.Helper()
	f := must.Get(os.Create(path))(b)
	b.Cleanup(func() { _ = f.Close() })
	return bufio.NewWriter(f)
}

// heap returns the bytes that are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what the first one has finalized
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// client is the writer of a query, and keeps the last reply.
type client struct {
	dns.ResponseWriter

	remote net.Addr
	reply  *dns.Msg
}

func (c *client) RemoteAddr() net.Addr          { return c.remote }
func (c *client) WriteMsg(reply *dns.Msg) error { c.reply = reply; return nil }

// BenchmarkQuery asks each plugin, in this process and without a network, for
// the names of all services in random order.
func BenchmarkQuery(b *testing.B) {
	eachCatalog(b, func(b *testing.B, p *profile, size int) {
		c := newContest(b, p, size)
		for _, q := range p.queries {
			names := q.questions(size)
			for _, name := range q.contests {
				b.Run(fmt.Sprintf("query=%s/plugin=%s", q.name, name), func(b *testing.B) {
					q.run(b, c.handlers[name], names)
				})
			}
		}
		for _, name := range []string{"federation", "hosts", "file"} {
			b.Run("held/plugin="+name, func(b *testing.B) {
				b.ReportMetric(0, "ns/op") // it was measured while the plugins started
				b.ReportMetric(float64(c.bytes[name])/float64(size), "B/service")
				b.ReportMetric(c.started[name].Seconds(), "start-sec")
			})
		}
	})
}

func (q *benchQuery) run(b *testing.B, handler plugin.Handler, names []string) {
	b.Helper()
	at := netip.MustParseAddrPort("127.0.0.1:5353")
	ctx, w := b.Context(), &client{remote: net.UDPAddrFromAddrPort(at)}
	if q.answers > 3 { // more than fit a datagram
		w.remote = net.TCPAddrFromAddrPort(at)
	}
	r := new(dns.Msg)
	r.SetQuestion(names[0], q.qtype)
	must.Get(handler.ServeDNS(ctx, w, r))(b)
	got := [3]int{w.reply.Rcode, len(w.reply.Answer), len(w.reply.Extra)}
	if want := [3]int{q.rcode, q.answers, q.extra}; got != want {
		b.Fatalf("rcode, answers and additional records are %v, want %v, in\n%v", got, want, w.reply)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		r.Question[0].Name = names[i]
		_, _ = handler.ServeDNS(ctx, w, r)
		if i++; i == len(names) {
			i = 0
		}
	}
}

// reportPercentiles reports the median and the 99th percentile of durations.
func reportPercentiles(b *testing.B, name string, all []time.Duration) {
	b.Helper()
	slices.Sort(all)
	at := func(percent int) float64 { return float64(all[(len(all)-1)*percent/100].Nanoseconds()) / 1000 }
	b.ReportMetric(at(50), name+"-p50-us")
	b.ReportMetric(at(99), name+"-p99-us")
}
