package test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// BenchmarkE2EStart has CoreDNS download a catalog, answer queries as fast as they come for some
// seconds, and start anew without its owner, from the file that it keeps. It reports how much
// memory is resident for each service, and how long a start takes until all names are answered.
func BenchmarkE2EStart(b *testing.B) {
	needDnsperf(b)
	r := newRace(b, *e2eServices)
	s := &server{name: "federation", address: freeAddress(b), suffix: benchOrigin}
	_, port, _ := strings.Cut(s.address, ":")
	corefile, kept := filepath.Join(r.dir, "corefile"), filepath.Join(r.dir, "kept")
	writeFile(b, corefile, fmt.Sprintf("%s:%s {\nbind 127.0.0.1\nfederation {\nowner %s\n%s\npersist %s\n}\n}\n",
		benchOrigin, port, r.owner.address, r.keys.tls(), kept))
	start := func() (*process, time.Time) {
		return startProcess(b, exec.Command(coreDNSBinary, "-conf", corefile)), time.Now()
	}
	report := func(p *process, when string) {
		b.ReportMetric(memoryOf(b, p, "VmRSS")*1e6/float64(r.size), when+"-B/service")
		b.ReportMetric(memoryOf(b, p, "VmHWM")*1e6/float64(r.size), when+"-peak-B/service")
	}
	ask := func(p *process, when string) {
		s.pids = []int{p.cmd.Process.Pid}
		e := &entry{race: r, server: s, query: r.query(b, "A")}
		e.run(b, 0, *e2eSeconds)
		report(p, when)
	}

	p, begin := start()
	eventually(b, syncPatience, func() string { return p.unlogged(1, "owner is synced") })
	b.ReportMetric(time.Since(begin).Seconds(), "sync-s")
	report(p, "synced")
	ask(p, "asked")
	r.owner.stop()
	p.end(b, syscall.SIGTERM) // which saves the catalog

	p, begin = start()
	eventually(b, syncPatience, func() string { return p.unlogged(1, "catalog restored from its file") })
	b.ReportMetric(time.Since(begin).Seconds(), "restored-s")
	b.ReportMetric(cpuTime(b, p.cmd.Process.Pid).Seconds(), "restored-cpu-s")
	report(p, "restored")
	ask(p, "asked-restored")
	b.ReportMetric(0, "ns/op")
}
