package register

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
	"github.com/hamlet-federation/coredns-federation/test/suites/register/fleet"
)

var (
	instances = flag.Int("instances", 100_000, "how many nodes BenchmarkRegister registers")
	ofService = flag.Int("of-service", 10, "how many of them each service has")
	streams   = flag.Int("streams", 1000, "how many providers do that")
)

const (
	fleets    = 4 // processes that the providers are in
	benchTTL  = time.Minute
	rest      = benchTTL / 2 // for which CPU time is measured: every node is heard of once
	changes   = 500
	perChange = 20 * time.Millisecond // between two changes
)

// BenchmarkRegister registers many nodes at one owner, from as many connections as
// there are providers, and then changes one node after the other beside their
// heartbeats.
func BenchmarkRegister(b *testing.B) {
	for _, kind := range []struct {
		name  string
		store func(testing.TB) string
	}{
		{"memory", func(testing.TB) string { return "" }},
		{"etcd", oneEtcd},
	} {
		b.Run("store="+kind.name, func(b *testing.B) {
			for b.Loop() {
				benchmarkRegister(b, kind.store(b))
			}
		})
	}
}

func benchmarkRegister(b *testing.B, store string) {
	w := start(b, options{store: store, convergence: 2 * time.Second})
	o := w.owners[0]
	all := make([]*providers, fleets)
	for i := range all {
		n := *instances / fleets
		all[i] = w.launch(b, fleet.Config{
			First: i * n, Nodes: n, Services: *instances / *ofService, Streams: *streams / fleets, TTL: benchTTL,
		})
	}
	for _, f := range all {
		f.connected(b)
	}
	resolvedTo(b, w, "none."+zone, "NXDOMAIN") // the owner of a new store is silent before
	connected, _ := memory(b, o.PID())
	lost := make([]int, fleets)
	for i, f := range all {
		s, _ := f.now()
		lost[i] = s.Lost // a handshake among a thousand may take too long
	}

	usedBefore := cpu(b, o.PID())
	begin := time.Now()
	for _, f := range all {
		f.begin(b)
	}
	end := begin
	for _, f := range all {
		if at := f.granted(b); at.After(end) {
			end = at
		}
	}
	b.ReportMetric(float64(*instances)/end.Sub(begin).Seconds(), "registrations/s")
	b.ReportMetric((cpu(b, o.PID())-usedBefore).Seconds()*1e6/float64(*instances), "owner-CPU-us/registration")

	last := all[0].Service(*instances - 1)
	eventually(b, func() string {
		if got := w.dns.Answer(b.Context(), last, dns.TypeA); !strings.HasPrefix(got, "NOERROR") {
			return last + " is " + got
		}
		return ""
	})
	b.ReportMetric(time.Since(begin).Seconds(), "s-until-resolved")

	begin, usedBefore = time.Now(), cpu(b, o.PID())
	passes(b, begin.Add(rest))
	b.ReportMetric(100*(cpu(b, o.PID())-usedBefore).Seconds()/time.Since(begin).Seconds(), "%CPU-at-rest")
	resident, most := memory(b, o.PID())
	b.ReportMetric((resident-connected)*(1<<20)/float64(*instances), "B/node")
	b.ReportMetric(resident, "MiB-owner")
	b.ReportMetric(most, "MiB-owner-most")

	took := changed(b, w, changes)
	b.ReportMetric(float64(took[changes/2])/1e6, "ms-change-p50")
	b.ReportMetric(float64(took[changes*99/100])/1e6, "ms-change-p99")
	b.ReportMetric(float64(took[changes-1])/1e6, "ms-change-most")
	b.ReportMetric(0, "ns/op") // which says nothing here
	for i, f := range all {
		if s, _ := f.now(); s.Granted != f.Nodes || s.Refused+s.Expired+s.Lost > lost[i] {
			b.Errorf("the providers were disturbed: %+v", s)
		}
	}
}

// changed registers new nodes, one after the other, and returns how long each took from
// the provider's message until CoreDNS has answered for it, in order.
func changed(b *testing.B, w *processes, n int) []time.Duration {
	b.Helper()
	p := w.open(b, w.owners[0], "fleet")
	client := &domain.DNS{Address: w.dns.Address}
	took := make([]time.Duration, 0, n)
	next := time.Now()
	for i := range n {
		passes(b, next)
		next = next.Add(perChange)
		name, address := fmt.Sprintf("change-%d.%s", i, zone), fleet.Address(1<<22+i)
		want := short([]string{address.String()})
		begin := time.Now()
		p.active(b, name, node(address), benchTTL)
		for got := ""; got != want; got = client.Answer(b.Context(), name, dns.TypeA) {
			if time.Since(begin) > await.Patience {
				b.Fatalf("%s is %q after %v", name, got, await.Patience)
			}
		}
		took = append(took, time.Since(begin))
		p.grants(b, node(address))
	}
	slices.Sort(took)
	return took
}

// memory returns how much memory a process has, now and at most, in MiB.
func memory(b *testing.B, pid int) (now, most float64) {
	b.Helper()
	text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(b)
	value := func(field string) float64 {
		match := regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(text)
		if match == nil {
			b.Fatalf("/proc has no %s", field)
		}
		n := must.Get(strconv.ParseFloat(string(match[1]), 64))(b)
		return n / 1024
	}
	return value("VmRSS"), value("VmHWM")
}

// tickRate is how many times a second Linux counts the time of a process.
const tickRate = 100

// cpu returns the processor time that a process has used.
func cpu(b *testing.B, pid int) time.Duration {
	b.Helper()
	text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)))(b)
	_, rest, _ := strings.Cut(string(text), ") ") // behind the name of the program
	fields := strings.Fields(rest)
	var sum time.Duration
	for _, field := range fields[11:13] { // utime, stime: proc(5)
		n := must.Get(strconv.Atoi(field))(b)
		sum += time.Duration(n) * time.Second / tickRate
	}
	return sum
}
