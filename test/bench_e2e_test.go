package test

import (
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const (
	e2eUpdates   = 1000 // a second
	e2eFreshness = 2000 // samples
	linkDelay    = 25 * time.Millisecond
	linkLockStep = 100    // services that are enough to see one round trip for each
	linkWindowed = 10_000 // services
)

var (
	e2eServices = flag.Int("e2e-services", 10_000, "size of the catalog of benchmarks over UDP")
	e2eSizes    = flag.String("e2e-sizes", "1000,1000000", "sizes of the catalogs that BenchmarkE2ESizes compares, with a comma between them")
	e2eServers  = flag.String("e2e-servers", "federation,hosts,file,knot,etcd,kubernetes", "servers that BenchmarkE2EQueries compares, with commas between them")
	e2eRounds   = flag.Int("e2e-rounds", 5, "rounds of benchmarks over UDP")
	e2eSeconds  = flag.Int("e2e-seconds", 3, "seconds of one run of dnsperf")
)

// e2eQueries are the queries of BenchmarkE2EQueries, by the names that they have in
// profiles, with the servers that have such records, in the order in which they are
// asked.
var e2eQueries = []struct {
	name    string
	servers []string
	updates []string // the servers that are asked while the owner changes services as well
}{
	{"A", []string{"federation", "hosts", "file", "knot", "etcd", "kubernetes"}, []string{"federation", "hosts"}},
	{"NODATA", []string{"federation", "hosts", "file", "knot", "etcd", "kubernetes"}, nil},
	{"SRV", []string{"federation", "file", "knot", "etcd", "kubernetes"}, []string{"federation", "file"}},
	{"TXT", []string{"federation", "file", "knot"}, nil},
	{"NXDOMAIN", []string{"federation", "file", "knot", "etcd", "kubernetes"}, nil},
}

// BenchmarkE2EQueries runs dnsperf against the servers in turn, round by round, over
// UDP: while nothing changes, and while the owner of federation updates its services.
func BenchmarkE2EQueries(b *testing.B) {
	table := newTable(b)
	r := newRace(b, *e2eServices, strings.Split(*e2eServers, ",")...)
	table.missing = r.missing
	for _, q := range e2eQueries {
		b.Run("query="+q.name, func(b *testing.B) {
			var all []*entry
			for _, updates := range []int{0, e2eUpdates} {
				names, condition := q.servers, ""
				if updates > 0 {
					names, condition = q.updates, fmt.Sprintf("%d updates/s", updates)
				}
				for _, name := range names {
					if s := r.server(name); s != nil {
						all = append(all, &entry{race: r, server: s, query: r.query(b, q.name), condition: condition, updates: updates})
					}
				}
			}
			table.measure(b, all)
		})
	}
}

// BenchmarkE2ESizes compares A queries among few services with A queries among many.
func BenchmarkE2ESizes(b *testing.B) {
	table := newTable(b)
	var all []*entry
	for text := range strings.SplitSeq(*e2eSizes, ",") {
		size, err := strconv.Atoi(text)
		if err != nil || size < 1 || size >= 1<<24 {
			b.Fatalf("-e2e-sizes %q: want sizes of 1 to %d with commas between them", *e2eSizes, 1<<24-1)
		}
		r := newRace(b, size, "federation", "hosts")
		for _, s := range r.servers {
			all = append(all, &entry{race: r, server: s, query: r.query(b, "A"), condition: fmt.Sprintf("%d services", size)})
		}
	}
	b.Run("query=A", func(b *testing.B) { table.measure(b, all) })
}

// BenchmarkE2EMultisocket compares servers that read from one socket with the same
// servers with CoreDNS's plugin multisocket.
func BenchmarkE2EMultisocket(b *testing.B) {
	table := newTable(b)
	r := newRace(b, *e2eServices, "federation", "hosts", "federation+multisocket 2", "hosts+multisocket 2")
	for _, name := range []string{"A", "SRV"} {
		b.Run("query="+name, func(b *testing.B) {
			var all []*entry
			for _, s := range r.servers {
				if name == "A" || s.plugin == "federation" {
					all = append(all, &entry{race: r, server: s, query: r.query(b, name), condition: s.condition})
				}
			}
			table.measure(b, all)
		})
	}
}

// BenchmarkE2EStatus compares a federation that serves its status with one that does not,
// and with itself while somebody reads it: at the rate that dnsperf reaches, and at half the
// rate that was reached first, where the latency tells more.
func BenchmarkE2EStatus(b *testing.B) {
	table := newTable(b)
	r := newRace(b, *e2eServices, "federation", "federation+"+withStatus)
	for _, name := range []string{"A", "SRV"} {
		b.Run("query="+name, func(b *testing.B) {
			entries := func(query *benchQuery, rate int) (all []*entry) {
				for _, s := range r.servers {
					all = append(all, &entry{race: r, server: s, query: query, condition: s.condition, rate: rate})
					if s.condition == withStatus {
						all = append(all, &entry{race: r, server: s, query: query, condition: "status is read", rate: rate, reads: true})
					}
				}
				return all
			}
			all := entries(r.query(b, name), 0)
			table.measure(b, all)
			half := *r.query(b, name)
			half.name += " at half the rate"
			table.measure(b, entries(&half, int(median(all[0].each(func(s sample) float64 { return s.rate }))/2)))
		})
	}
}

// reading reads the status of the server once a second, as a person does who reloads all the
// time: the page, an explanation, and a page of services, which begins where the one before
// has ended. The function that it returns ends that, and notes how long the answers have
// taken.
func (e *entry) reading(b *testing.B) (stop func()) {
	b.Helper()
	done := make(chan struct{})
	var wg sync.WaitGroup
	slowest := make(map[string]time.Duration)
	read := func(what, path string) {
		begin := time.Now()
		code, _, err := get("http://" + e.server.status + path)
		if err != nil || code != http.StatusOK {
			b.Errorf("%s: %d %v", path, code, err)
		}
		slowest[what] = max(slowest[what], time.Since(begin))
	}
	wg.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			read("page", "/")
			read("why", "/v1/why?name="+e.server.fqdn(1))
			read("services", "/services?of="+url.QueryEscape(e.race.owner.address))
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
		var all []string
		for _, what := range slices.Sorted(maps.Keys(slowest)) {
			all = append(all, fmt.Sprintf("%s %.1f ms", what, 1e3*slowest[what].Seconds()))
		}
		e.notes = append(e.notes, "the slowest answers of the status: "+strings.Join(all, ", "))
	}
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
		skip := r.updated // a change that was made before would be none
		for u := range r.p.updates(b, r.size, false) {
			if skip > 0 {
				skip--
				continue
			}
			for time.Since(begin) < time.Duration(n)*time.Second/time.Duration(rate) {
				select {
				case <-done:
					return
				case <-tick.C:
				}
			}
			if _, err := r.owner.Upsert(u.service); err != nil {
				b.Error(err)
				return
			}
			n++
			r.updated++
		}
	})
	return func() float64 {
		close(done)
		wg.Wait()
		return float64(n) / time.Since(begin).Seconds()
	}
}

// BenchmarkE2EFreshness is the time from a change at the owner to the first
// reply over UDP that shows it, one change at a time.
func BenchmarkE2EFreshness(b *testing.B) {
	r := newRace(b, *e2eServices, "federation")
	for _, updates := range []int{0, e2eUpdates} {
		b.Run(fmt.Sprintf("updates=%d", updates), func(b *testing.B) {
			if updates > 0 {
				defer r.updating(b, updates)()
			}
			conn := must.Get(dns.Dial("udp", r.server("federation").address))(b)
			defer func() { _ = conn.Close() }()
			fresh := r.p.service(b, r.size)
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
				mustUpsert(b, r.owner, fresh)
				for seen := false; !seen; {
					must.Do(b, conn.WriteMsg(query))
					reply := must.Get(conn.ReadMsg())(b)
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
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(b)
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
