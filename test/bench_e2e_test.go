package test

import (
	"flag"
	"fmt"
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
