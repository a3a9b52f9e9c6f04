package test

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
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
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	e2eUpdates   = 1000 // a second
	e2eFreshness = 2000 // samples
)

var (
	e2eServices = flag.Int("e2e-services", 10_000, "size of the catalog of benchmarks over UDP")
	e2eSizes    = flag.String("e2e-sizes", "1000,1000000", "sizes of the catalogs that BenchmarkE2ESizes compares, with a comma between them")
	e2eSeconds  = flag.Int("e2e-seconds", 3, "seconds of one run of dnsperf")
)

// BenchmarkE2EQueries runs dnsperf against servers in turn, over UDP: while nothing changes, and
// while the owner of federation updates its services. `make bench-e2e` runs all of it again and
// again, so a machine that becomes slower does so for all servers.
func BenchmarkE2EQueries(b *testing.B) {
	r := newRace(b, *e2eServices, "federation", "hosts", "file", "knot")
	for _, q := range []struct {
		name             string
		servers, updated []string // that have such records, and that are asked beside updates as well
	}{
		{"A", []string{"federation", "hosts", "file", "knot"}, []string{"federation", "hosts"}},
		{"NODATA", []string{"federation", "hosts", "file", "knot"}, nil},
		{"SRV", []string{"federation", "file", "knot"}, []string{"federation", "file"}},
		{"TXT", []string{"federation", "file", "knot"}, nil},
		{"NXDOMAIN", []string{"federation", "file", "knot"}, nil},
	} {
		for _, name := range q.servers {
			r.measure(b, name, q.name, 0)
		}
		for _, name := range q.updated {
			r.measure(b, name, q.name, e2eUpdates)
		}
	}
}

// BenchmarkE2ESizes compares A queries among few services with A queries among many.
func BenchmarkE2ESizes(b *testing.B) {
	for text := range strings.SplitSeq(*e2eSizes, ",") {
		size, err := strconv.Atoi(text)
		if err != nil || size < 1 || size >= 1<<24 {
			b.Fatalf("-e2e-sizes %q: want sizes of 1 to %d with commas between them", *e2eSizes, 1<<24-1)
		}
		r := newRace(b, size, "federation", "hosts")
		for _, name := range []string{"federation", "hosts"} {
			r.measure(b, name, "A", 0)
		}
	}
}

// race is the same services in several DNS servers, each a process of its own, and
// the owner that feeds federation.
type race struct {
	owner   *realOwner
	p       *profile
	size    int
	servers map[string]*server // by what they get their answers from: federation, another plugin, or knot
	updated int                // changes so far

	dir                 string // for their files
	keys                *place.Place
	zoneFile, hostsFile string // with the records of the services
}

// server is one of them.
type server struct {
	address string // where it answers
	process *realserver.Process
}

// newRace starts servers by name. One that this machine does not have is left out.
func newRace(b *testing.B, size int, names ...string) *race {
	b.Helper()
	if _, err := exec.LookPath("dnsperf"); err != nil {
		b.Skip("dnsperf is not installed; on Debian: apt-get install dnsperf")
	}
	if _, err := place.Program("coredns"); err != nil {
		b.Skip(err)
	}
	p := &profiles()[0]
	dir := b.TempDir()
	r := &race{
		p: p, size: size, dir: dir, keys: newPlace(b), servers: make(map[string]*server),
		zoneFile: filepath.Join(dir, "zone"), hostsFile: filepath.Join(dir, "hosts"),
	}
	all := p.catalog(size)
	r.owner = serveRegistry(b, r.keys, loopback.Address(b), filled(b, all), 256)
	export(b, all, r.zoneFile, r.hostsFile)
	for _, name := range names {
		s := &server{address: loopback.Address(b)}
		if err := r.start(b, name, s); err != nil {
			b.Logf("%s is left out: %v", name, err)
			continue
		}
		r.servers[name] = s
		await.Until(b, syncPatience, func() string { return r.unready(name, s) })
	}
	return r
}

// query returns a query of the profile.
func (r *race) query(b *testing.B, name string) *benchQuery {
	b.Helper()
	i := slices.IndexFunc(r.p.queries, func(q benchQuery) bool { return q.name == name })
	if i < 0 {
		b.Fatalf("the profile has no query %s", name)
	}
	return &r.p.queries[i]
}

// start starts a server. The error says why this machine cannot run it.
func (r *race) start(b *testing.B, name string, s *server) error {
	b.Helper()
	blocks := map[string]string{
		"federation": fmt.Sprintf("federation {\nowner %s\n%s\n}", r.owner.address, tlsOf(r.keys)),
		"hosts":      "hosts " + r.hostsFile + " {\nreload 0\nttl 30\n}",
		"file":       "file " + r.zoneFile + " {\nreload 0\n}",
	}
	if name == "knot" {
		return r.startKnot(b, s)
	}
	// All have the same plugins beside the one that answers.
	_, port, _ := net.SplitHostPort(s.address)
	corefile := filepath.Join(r.dir, name+".corefile")
	writeFile(b, corefile, fmt.Sprintf("%s:%s {\nbind 127.0.0.1\nerrors\n%s\n}\n", benchOrigin, port, blocks[name]))
	s.process = &realserver.Process{Name: name, Path: must.Get(place.Program("coredns"))(b), Dir: r.dir, Args: []string{"-conf", corefile}}
	s.process.StartFor(b)
	return nil
}

// startKnot starts Knot DNS as a primary with the zone file.
func (r *race) startKnot(b *testing.B, s *server) error {
	b.Helper()
	path, err := exec.LookPath("knotd")
	if err != nil {
		path = "/usr/sbin/knotd" // may not be in PATH
	}
	if _, err := os.Stat(path); err != nil {
		return errors.New("knotd is not installed; it is in the package knot")
	}
	config := filepath.Join(r.dir, "knot.conf")
	writeFile(b, config, fmt.Sprintf(`server:
  rundir: "%[2]s"
  listen: %[1]s
log:
  - target: stderr
    any: warning
database:
  storage: "%[2]s"
zone:
  - domain: "%[3]s"
    storage: "%[2]s"
    file: "%[4]s"
`, strings.Replace(s.address, ":", "@", 1), r.dir, benchOrigin, r.zoneFile))
	s.process = &realserver.Process{Name: "knot", Path: path, Dir: r.dir, Args: []string{"-c", config}}
	s.process.StartFor(b)
	return nil
}

// unready returns "" once a server answers as it should for the first and the last
// service, and says what is missing until then. The owner sends the services in
// order.
func (r *race) unready(name string, s *server) string {
	for _, i := range []int{0, r.size - 1} {
		reply, err := query(s.address, benchFQDN(i), dns.TypeA)
		if err != nil {
			return err.Error()
		}
		if got, want := summary(reply), "NOERROR "+r.p.addresses(i)[0].String(); got != want {
			return fmt.Sprintf("%s answers %s, expected %s", name, got, want)
		}
	}
	return ""
}

var (
	dnsperfCompleted = regexp.MustCompile(`Queries completed: +([0-9]+)`)
	dnsperfRate      = regexp.MustCompile(`Queries per second: +([0-9.]+)`)
	dnsperfLatency   = regexp.MustCompile(`Average Latency \(s\): +([0-9.]+)`)
	dnsperfReply     = regexp.MustCompile(`Average packet size: +request [0-9]+, response ([0-9]+)`)
	dnsperfLost      = regexp.MustCompile(`Queries lost: +0 `)
	dnsperfCodes     = regexp.MustCompile(`Response codes: +(\S+) [0-9]+ \(100.00%\)`)
)

// measure asks a server for every service over and over, by 8 clients with 100 queries under way,
// while the owner changes so many services a second.
func (r *race) measure(b *testing.B, name, of string, updates int) {
	b.Helper()
	s, q := r.servers[name], r.query(b, of)
	if s == nil {
		return
	}
	b.Run(fmt.Sprintf("query=%s/services=%d/updates=%d/plugin=%s", of, r.size, updates, name), func(b *testing.B) {
		want := [3]int{q.rcode, q.answers, q.extra}
		for _, i := range []int{0, r.size - 1} {
			reply := must.Get(exchange("udp", s.address, new(dns.Msg).SetQuestion(q.labels+benchFQDN(i), q.qtype)))(b)
			if got := [3]int{reply.Rcode, len(reply.Answer), len(reply.Extra)}; got != want {
				b.Fatalf("rcode, answers and additional records are %v, want %v, in\n%v", got, want, reply)
			}
		}
		questions := filepath.Join(r.dir, "questions")
		w := create(b, questions)
		for _, i := range rand.Perm(r.size) { // a run must not find in the caches what the one before has asked for
			fmt.Fprintf(w, "%s%s %s\n", q.labels, benchFQDN(i), dns.TypeToString[q.qtype])
		}
		must.Do(b, w.Flush())
		end := func() float64 { return 0 }
		if updates > 0 {
			end = r.updating(b, updates)
		}
		host, port, _ := net.SplitHostPort(s.address)
		before := cpuTime(b, s.process.PID())
		output, err := exec.Command("dnsperf", "-s", host, "-p", port, "-d", questions, "-l", strconv.Itoa(*e2eSeconds), "-c", "8", "-q", "100").CombinedOutput()
		used := cpuTime(b, s.process.PID()) - before
		if updated := end(); updated < 0.95*float64(updates) {
			b.Logf("only %.0f of %d updates a second", updated, updates)
		}
		if err != nil {
			b.Fatalf("dnsperf: %v\n%s", err, output)
		}
		if codes := dnsperfCodes.FindSubmatch(output); codes == nil || string(codes[1]) != dns.RcodeToString[q.rcode] {
			b.Fatalf("dnsperf has seen other codes than %s:\n%s", dns.RcodeToString[q.rcode], output)
		}
		if !dnsperfLost.Match(output) {
			b.Log("dnsperf has lost queries")
		}
		number := func(r *regexp.Regexp) float64 {
			match := r.FindSubmatch(output)
			if match == nil {
				b.Fatalf("no %v in the output of dnsperf:\n%s", r, output)
			}
			return must.Get(strconv.ParseFloat(string(match[1]), 64))(b)
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(number(dnsperfRate), "queries/sec")
		b.ReportMetric(number(dnsperfLatency)*1e6, "latency-us")
		b.ReportMetric(used.Seconds()*1e6/cmp.Or(number(dnsperfCompleted), 1), "cpu-us/query")
		b.ReportMetric(number(dnsperfReply), "B/reply")
	})
}

// cpuTime returns the CPU time that a process has taken so far, from Linux's /proc.
func cpuTime(b *testing.B, pid int) (sum time.Duration) {
	b.Helper()
	text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)))(b)
	_, after, _ := strings.Cut(string(text), ") ")             // the end of the name, field 2
	for _, field := range strings.Fields(after)[14-3 : 16-3] { // utime and stime, counted from field 3
		ticks := must.Get(strconv.ParseInt(field, 10, 64))(b)
		sum += time.Duration(ticks) * time.Second / 100 // USER_HZ
	}
	return sum
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
		for u := range r.p.updates(r.size, false) {
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
			conn := must.Get(dns.Dial("udp", r.servers["federation"].address))(b)
			defer func() { _ = conn.Close() }()
			fresh := r.p.service(r.size)
			query := new(dns.Msg)
			query.SetQuestion(fresh.FQDN.String(), dns.TypeA)
			took := make([]time.Duration, e2eFreshness)
			for i := range took {
				want := r.p.addresses(i)[0]
				fresh = &federation.Service{
					Name: fresh.Name, FQDN: fresh.FQDN, Instances: fresh.Instances,
					Endpoints: []federation.Endpoint{{Address: benchAddress(want), Port: 8080}},
				}
				begin := time.Now()
				mustUpsert(b, r.owner, fresh)
				for seen := false; !seen; {
					must.Do(b, conn.WriteMsg(query))
					reply := must.Get(conn.ReadMsg())(b)
					took[i] = time.Since(begin)
					seen = summary(reply) == "NOERROR "+want.String()
					if took[i] > await.Patience {
						b.Fatalf("%v is not answered", want)
					}
				}
			}
			b.ReportMetric(0, "ns/op")
			reportPercentiles(b, "fresh", took)
		})
	}
}
