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
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

var (
	e2eProfiles = flag.String("e2e-profiles", "", "folder for the profiles of BenchmarkE2EProfile, which needs one")
	e2eMixed    = flag.String("e2e-mixed", "", "file for the profile of BenchmarkE2EMixedProfile, which needs one")
)

// BenchmarkE2EProfile takes a CPU profile of each CoreDNS while dnsperf asks it, and
// says what the time goes to. The profiles stay in a folder, for `go tool pprof`.
func BenchmarkE2EProfile(b *testing.B) {
	if *e2eProfiles == "" {
		b.Skip("-e2e-profiles is not set")
	}
	needDnsperf(b)
	must.Do(b, os.MkdirAll(*e2eProfiles, 0o750))
	rows := [][]string{append([]string{"query", "server", "replies/s"}, spent...), {"---", "---", "---:"}}
	for range spent {
		rows[1] = append(rows[1], "---:")
	}
	b.Cleanup(func() {
		var text strings.Builder
		fmt.Fprintf(&text, "\n%s: shares of CPU time, in percent, %d s each\n\n", b.Name(), *e2eSeconds)
		writeRows(&text, rows)
		fmt.Fprintln(os.Stdout, text.String())
	})
	r := newRace(b, *e2eServices, "federation", "hosts", "file")
	for _, q := range e2eQueries {
		b.Run("query="+q.name, func(b *testing.B) {
			for _, s := range r.servers {
				if !slices.Contains(q.servers, s.plugin) {
					continue
				}
				e := &entry{race: r, server: s, query: r.query(b, q.name)}
				r.check(b, s, e.query)
				path := filepath.Join(*e2eProfiles, q.name+"-"+s.plugin+".pprof")
				got := make(chan error, 1)
				go func() { got <- fetchProfile(s, path, *e2eSeconds) }()
				measured := e.run(b, 0, *e2eSeconds+1)
				if err := <-got; err != nil {
					b.Fatal(err)
				}
				traces := must.Get(exec.Command("go", "tool", "pprof", "-traces", "-unit=us", coreDNSBinary, path).Output())(b)
				shares := spending(string(traces))
				row := []string{q.name, s.plugin, fmt.Sprintf("%.0f", measured.rate)}
				for _, on := range spent {
					row = append(row, fmt.Sprintf("%.1f", 100*shares[on]))
				}
				rows = append(rows, row)
				b.Run("server="+s.plugin, func(b *testing.B) {
					b.ReportMetric(0, "ns/op")
					for _, on := range spent {
						b.ReportMetric(100*shares[on], strings.ReplaceAll(on, " ", "-")+"-%")
					}
				})
			}
		})
	}
}

// BenchmarkE2EMixedProfile writes a CPU profile of CoreDNS, while dnsperf asks for
// every kind of answer and the owner updates its services.
func BenchmarkE2EMixedProfile(b *testing.B) {
	if *e2eMixed == "" {
		b.Skip("-e2e-mixed is not set")
	}
	needDnsperf(b)
	r := newRace(b, *e2eServices, "federation")
	s := r.servers[0]
	questions := filepath.Join(r.dir, "mixed")
	w := create(b, questions)
	for _, i := range order(r.size) {
		for _, query := range []struct{ labels, qtype string }{
			{"", "A"}, {"", "A"}, {"v1.", "A"}, {"", "AAAA"}, {"_http._tcp.", "SRV"}, {"", "TXT"}, {"", "MX"}, {"no-", "A"},
		} {
			fmt.Fprintf(w, "%s%s %s\n", query.labels, s.fqdn(i), query.qtype)
		}
	}
	must.Do(b, w.Flush())
	defer r.updating(b, e2eUpdates)()
	got := make(chan error, 1)
	go func() { got <- fetchProfile(s, *e2eMixed, *e2eSeconds) }()
	host, port, _ := net.SplitHostPort(s.address)
	output, err := exec.Command("dnsperf",
		"-s", host, "-p", port, "-d", questions, "-l", strconv.Itoa(*e2eSeconds+1), "-c", "8", "-q", "100").CombinedOutput()
	if err != nil {
		b.Fatalf("dnsperf: %v\n%s", err, output)
	}
	if err := <-got; err != nil {
		b.Fatal(err)
	}
	b.Logf("%s queries a second", dnsperfRate.FindSubmatch(output)[1])
}

// fetchProfile writes a CPU profile of some seconds to a file.
func fetchProfile(s *server, path string, seconds int) error {
	status, body, err := get(fmt.Sprintf("%s/profile?seconds=%d", s.pprof, seconds))
	if err != nil {
		return err
	}
	if status != 200 {
		return fmt.Errorf("%s: status %d: %.300s", s.pprof, status, body)
	}
	return os.WriteFile(path, []byte(body), 0o600)
}

// The parts of a server's CPU time. They exclude each other.
const (
	onStacks      = "growing stacks"
	onGC          = "garbage collection"
	onSystemCalls = "system calls"
	onFederation  = "federation"
	onDNS         = "miekg/dns"
	onCoreDNS     = "CoreDNS"
	onScheduler   = "scheduler"
	onRest        = "rest"
)

var spent = []string{onStacks, onGC, onSystemCalls, onFederation, onDNS, onCoreDNS, onScheduler, onRest}

// traceValue is the CPU time of a sample, in front of its innermost function.
var traceValue = regexp.MustCompile(`^ +([0-9.]+)us +`)

// spending returns the shares of the CPU time in what `go tool pprof -traces` prints.
// That of stacks, the collector and system calls is all below them. The rest is that
// of the innermost function of a module: what a function of ours spends in the
// library of Go, in making objects say, counts as ours. Where there is no such
// function it is the scheduler's or, as that of a goroutine in package net, the rest.
func spending(traces string) map[string]float64 {
	took, sum := make(map[string]float64), 0.0
	for trace := range strings.SplitSeq(traces, "-----------+") {
		_, trace, _ = strings.Cut(trace, "\n")
		value := traceValue.FindStringSubmatch(trace)
		if value == nil {
			continue // the head
		}
		us, err := strconv.ParseFloat(value[1], 64)
		if err != nil {
			continue
		}
		var stack []string
		for line := range strings.Lines(trace[len(value[0]):]) {
			stack = append(stack, strings.TrimSpace(line))
		}
		took[spender(stack)] += us
		sum += us
	}
	for on := range took {
		took[on] /= sum
	}
	return took
}

// spender returns what a sample counts as, from its functions, the innermost first.
func spender(stack []string) string {
	below := func(prefixes ...string) bool {
		return slices.ContainsFunc(stack, func(function string) bool {
			return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(function, prefix) })
		})
	}
	switch {
	case below("runtime.newstack"):
		return onStacks
	case below("runtime.gc", "runtime.bgsweep", "runtime.bgscavenge"):
		return onGC
	case below("internal/runtime/syscall.", "syscall."):
		return onSystemCalls
	}
	for _, function := range stack {
		switch {
		case strings.HasPrefix(function, module):
			return onFederation
		case strings.HasPrefix(function, "github.com/miekg/dns."):
			return onDNS
		case strings.HasPrefix(function, "github.com/coredns/"):
			return onCoreDNS
		}
	}
	if slices.ContainsFunc(stack, func(function string) bool {
		return strings.Contains(function, "/") && !strings.HasPrefix(function, "internal/runtime/")
	}) {
		return onRest
	}
	return onScheduler
}

func TestSpending(t *testing.T) {
	const traces = `File: coredns
Type: cpu
-----------+-------------------------------------------------------
   40000us   runtime.copystack
             runtime.newstack
             runtime.morestack
             github.com/hamlet-federation/coredns-federation/federation/dns/zone.(*index).get (inline)
-----------+-------------------------------------------------------
   10000us   runtime.scanobject
             runtime.gcDrain
             runtime.gcBgMarkWorker
-----------+-------------------------------------------------------
    5000us   internal/runtime/syscall.Syscall6
             syscall.recvmsg
             github.com/miekg/dns.(*Server).serveUDP
-----------+-------------------------------------------------------
   20000us   runtime.mallocgc
             github.com/hamlet-federation/coredns-federation/federation/dns/zone/reply.Answer
             github.com/coredns/coredns/core/dnsserver.(*Server).ServeDNS
             github.com/miekg/dns.(*Server).serveDNS
-----------+-------------------------------------------------------
   10000us   memeqbody
             github.com/miekg/dns.packRR
             github.com/coredns/coredns/core/dnsserver.(*Server).ServeDNS
-----------+-------------------------------------------------------
    5000us   github.com/coredns/coredns/core/dnsserver.(*Server).ServeDNS
-----------+-------------------------------------------------------
    7500us   runtime.futex
             runtime.mcall
-----------+-------------------------------------------------------
    2500us   internal/poll.(*fdMutex).rwlock
             net.(*conn).Write
`
	want := map[string]float64{
		onStacks: 0.4, onGC: 0.1, onSystemCalls: 0.05, onFederation: 0.2, onDNS: 0.1, onCoreDNS: 0.05, onScheduler: 0.075, onRest: 0.025,
	}
	if diff := cmp.Diff(want, spending(traces)); diff != "" {
		t.Errorf("shares (-want +got):\n%s", diff)
	}
}
