package test

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
)

const (
	e2eRounds     = 5
	e2eSeconds    = 3    // of one run of dnsperf
	e2eUpdates    = 1000 // a second
	e2eFreshness  = 2000 // samples
	linkDelay     = 25 * time.Millisecond
	linkLockStep  = 100    // services that are enough to see one round trip for each
	linkWindowed  = 10_000 // services
	coreDNSBinary = "../bin/coredns"
)

var e2eServices = flag.Int("e2e-services", 1000, "size of the catalog of benchmarks over UDP")

// race is a CoreDNS with a server block for each plugin, and the owner that
// feeds federation.
type race struct {
	*owner.Registry
	p       *profile
	size    int               // of the catalog
	servers map[string]string // address by plugin
}

func newRace(b *testing.B) *race {
	b.Helper()
	if _, err := os.Stat(coreDNSBinary); err != nil {
		b.Skipf("%v: run make build", err)
	}
	p := &profiles()[0]
	all := p.catalog(b, *e2eServices)
	r := &race{Registry: filled(b, all), p: p, size: *e2eServices, servers: make(map[string]string)}
	dir, keys := b.TempDir(), newPKI(b)
	zoneFile, hostsFile := filepath.Join(dir, "zone"), filepath.Join(dir, "hosts")
	export(b, all, zoneFile, hostsFile)
	blocks := map[string]string{
		"federation": fmt.Sprintf("federation {\nowner %s\n%s\nmax_services %d\n}", serveRegistry(b, keys.owner, "", r.Registry, 1).address, keys.tls(), *e2eServices+1),
		"hosts":      "hosts " + hostsFile + " {\nreload 0\nttl 30\n}",
		"file":       "file " + zoneFile + " {\nreload 0\n}",
	}
	var corefile strings.Builder
	for name, block := range blocks {
		r.servers[name] = freeAddress(b)
		_, port, _ := net.SplitHostPort(r.servers[name])
		fmt.Fprintf(&corefile, "%s:%s {\nbind 127.0.0.1\n%s\n}\n", benchOrigin, port, block)
	}
	path := filepath.Join(dir, "Corefile")
	if err := os.WriteFile(path, []byte(corefile.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	startProcess(b, exec.Command(coreDNSBinary, "-conf", path))
	for name, address := range r.servers {
		last := *e2eServices - 1 // the owner sends the services in order
		want := "NOERROR " + p.addresses(last)[0].String()
		eventually(b, syncPatience, func() string {
			reply, err := query(address, benchFQDN(last), dns.TypeA)
			if err != nil {
				return err.Error()
			}
			if got := summary(reply); got != want {
				return fmt.Sprintf("%s answers %s, expected %s", name, got, want)
			}
			return ""
		})
		b.Logf("%s answers on %s", name, address)
	}
	return r
}

// updating changes services at the rate until the function that it returns is
// called, which returns how many it changed a second.
func (r *race) updating(b *testing.B, rate int) (stop func() float64) {
	b.Helper()
	done := make(chan struct{})
	var wg sync.WaitGroup
	begin, n := time.Now(), 0
	wg.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for u := range r.p.updates(b, r.size, false) {
			for time.Since(begin) < time.Duration(n)*time.Second/time.Duration(rate) {
				select {
				case <-done:
					return
				case <-tick.C:
				}
			}
			if _, err := r.Upsert(u.service); err != nil {
				b.Error(err)
				return
			}
			n++
		}
	})
	return func() float64 {
		close(done)
		wg.Wait()
		return float64(n) / time.Since(begin).Seconds()
	}
}

// BenchmarkE2EQueries runs dnsperf against the plugins in turn, round by round,
// over UDP, while nothing changes and while an owner updates its services. The
// results are medians of the rounds.
func BenchmarkE2EQueries(b *testing.B) {
	if _, err := exec.LookPath("dnsperf"); err != nil {
		b.Skip("dnsperf is not installed; on Debian: apt-get install dnsperf")
	}
	r := newRace(b)
	type run struct {
		query, labels, qtype, plugin string
		updates                      int
	}
	var runs []run
	for _, updates := range []int{0, e2eUpdates} {
		runs = append(runs,
			run{"A", "", "A", "federation", updates}, run{"A", "", "A", "hosts", updates},
			run{"SRV", "_http._tcp.", "SRV", "federation", updates}, run{"SRV", "_http._tcp.", "SRV", "file", updates})
	}
	rates, latencies := make(map[run][]float64), make(map[run][]float64)
	for range e2eRounds {
		for _, run := range runs {
			end := func() float64 { return 0 }
			if run.updates > 0 {
				end = r.updating(b, run.updates)
			}
			rate, latency := dnsperf(b, r.servers[run.plugin], run.labels, run.qtype)
			if updated := end(); updated < 0.95*float64(run.updates) {
				b.Logf("only %.0f of %d updates a second", updated, run.updates)
			}
			rates[run], latencies[run] = append(rates[run], rate), append(latencies[run], latency)
		}
	}
	for _, run := range runs {
		b.Run(fmt.Sprintf("query=%s/updates=%d/plugin=%s", run.query, run.updates, run.plugin), func(b *testing.B) {
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(rates[run]), "queries/sec")
			b.ReportMetric(median(latencies[run])*1e6, "latency-us")
		})
	}
}

var (
	dnsperfRate    = regexp.MustCompile(`Queries per second: +([0-9.]+)`)
	dnsperfLatency = regexp.MustCompile(`Average Latency \(s\): +([0-9.]+)`)
	dnsperfLost    = regexp.MustCompile(`Queries lost: +0 `)
	dnsperfSuccess = regexp.MustCompile(`Response codes: +NOERROR [0-9]+ \(100.00%\)`)
)

// dnsperf asks for every service over and over.
func dnsperf(b *testing.B, address, labels, qtype string) (rate, latency float64) {
	b.Helper()
	queries := filepath.Join(b.TempDir(), "queries")
	w := create(b, queries)
	for _, i := range order(*e2eServices) {
		fmt.Fprintf(w, "%s%s %s\n", labels, benchFQDN(i), qtype)
	}
	if err := w.Flush(); err != nil {
		b.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(address)
	output, err := exec.Command("dnsperf",
		"-s", host, "-p", port, "-d", queries, "-l", strconv.Itoa(e2eSeconds), "-c", "8", "-q", "100").CombinedOutput()
	if err != nil {
		b.Fatalf("dnsperf: %v\n%s", err, output)
	}
	if !dnsperfSuccess.Match(output) {
		b.Fatalf("dnsperf has seen failures:\n%s", output)
	}
	if !dnsperfLost.Match(output) {
		b.Logf("dnsperf has lost queries:\n%s", output)
	}
	number := func(r *regexp.Regexp) float64 {
		match := r.FindSubmatch(output)
		if match == nil {
			b.Fatalf("no %v in the output of dnsperf:\n%s", r, output)
		}
		value, err := strconv.ParseFloat(string(match[1]), 64)
		if err != nil {
			b.Fatal(err)
		}
		return value
	}
	return number(dnsperfRate), number(dnsperfLatency)
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// BenchmarkE2EFreshness is the time from a change at the owner to the first
// reply over UDP that shows it, one change at a time.
func BenchmarkE2EFreshness(b *testing.B) {
	r := newRace(b)
	for _, updates := range []int{0, e2eUpdates} {
		b.Run(fmt.Sprintf("updates=%d", updates), func(b *testing.B) {
			if updates > 0 {
				defer r.updating(b, updates)()
			}
			conn, err := dns.Dial("udp", r.servers["federation"])
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			fresh := r.p.service(b, *e2eServices)
			query := new(dns.Msg)
			query.SetQuestion(fresh.FQDN.String(), dns.TypeA)
			took := make([]time.Duration, e2eFreshness)
			for i := range took {
				want := r.p.addresses(i)[0]
				fresh = &federation.Service{
					Name: fresh.Name, FQDN: fresh.FQDN, Instances: fresh.Instances,
					Endpoints: []federation.Endpoint{{Address: benchAddress(b, want), Port: 8080}},
				}
				begin := time.Now()
				mustUpsert(b, r, fresh)
				for seen := false; !seen; {
					if err := conn.WriteMsg(query); err != nil {
						b.Fatal(err)
					}
					reply, err := conn.ReadMsg()
					if err != nil {
						b.Fatal(err)
					}
					took[i] = time.Since(begin)
					seen = summary(reply) == "NOERROR "+want.String()
					if took[i] > patience {
						b.Fatalf("%v is not answered", want)
					}
				}
			}
			b.ReportMetric(0, "ns/op")
			reportPercentiles(b, "fresh", took)
		})
	}
}

// BenchmarkE2ELink downloads a catalog over a link of 50 ms round trip.
func BenchmarkE2ELink(b *testing.B) {
	p := &profiles()[0]
	for _, run := range []struct{ window, size int }{{1, linkLockStep}, {256, linkWindowed}} {
		b.Run(fmt.Sprintf("rtt=%v/window=%d/services=%d", 2*linkDelay, run.window, run.size), func(b *testing.B) {
			keys := newPKI(b)
			address := serveRegistry(b, keys.owner, "", filled(b, p.catalog(b, run.size)), run.window).address
			measureSync(b, keys, delayed(b, address), run.size)
		})
	}
}

// delayed returns the address of a link to another one that takes linkDelay
// each way, whatever is on it.
func delayed(b *testing.B, address string) string {
	b.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	b.Cleanup(func() { _ = listener.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", address)
			if err != nil {
				_ = near.Close()
				continue
			}
			wg.Go(func() { delay(far, near) })
			wg.Go(func() { delay(near, far) })
		}
	})
	return listener.Addr().String()
}

// delay copies what one end sends to the other until one of them closes.
func delay(to, from net.Conn) {
	type chunk struct {
		due   time.Time
		bytes []byte
	}
	chunks := make(chan chunk, 1024)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer func() { _ = to.Close() }()
		timer := time.NewTimer(0)
		defer timer.Stop()
		<-timer.C
		for c := range chunks {
			timer.Reset(time.Until(c.due))
			<-timer.C
			if _, err := to.Write(c.bytes); err != nil {
				_ = from.Close() // which ends the reader
			}
		}
	})
	for {
		buf := make([]byte, 32<<10)
		n, err := from.Read(buf)
		if n > 0 {
			chunks <- chunk{time.Now().Add(linkDelay), buf[:n]}
		}
		if err != nil {
			break
		}
	}
	close(chunks)
	wg.Wait()
}
