package etcd

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration/store"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/store/storetest"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

// BenchmarkCommit puts nodes in batches, with an etcd that does not wait for its disk.
func BenchmarkCommit(b *testing.B) {
	for _, size := range []int{1, 128, 4096} {
		b.Run(fmt.Sprint("batch=", size), func(b *testing.B) {
			e := realserver.StartEtcd(b)
			s := newStore(b, func(c *Config) { c.Lease = time.Hour }, e.URL)
			storetest.Start(b, s)
			changes := puts(1, size, 7)
			for b.Loop() {
				versions := storetest.Commit(b, s, changes...)
				for i := range changes {
					changes[i].Before = versions[i]
				}
			}
			b.ReportMetric(float64(size*b.N)/b.Elapsed().Seconds(), "nodes/s")
		})
	}
}

// BenchmarkLeases measures what the nodes of 1,000 streams cost at rest, with a lease of the
// usual two minutes: CPU time in a second of the store with all of its tests, and of etcd.
func BenchmarkLeases(b *testing.B) {
	const streams = 1000
	e := realserver.StartEtcd(b)
	s := newStore(b, func(c *Config) { c.Lease = 2 * time.Minute }, e.URL)
	s.timing.probe = 2 * time.Second
	storetest.Start(b, s)
	changes := make([]store.Change, streams)
	for i := range changes {
		changes[i] = storetest.Put(storetest.Node(1, i, uint64(1+i)), 0)
	}
	storetest.Commit(b, s, changes...)
	rest := max(45*time.Second, time.Duration(b.N)*time.Second) // the lease is renewed every 40 s
	b.ResetTimer()
	own, etcd := ownCPU(b), cpu(b, e.PID())
	pause(b.Context(), rest)
	b.ReportMetric(float64((ownCPU(b)-own).Microseconds())/rest.Seconds(), "store-µs/s")
	b.ReportMetric(float64((cpu(b, e.PID())-etcd).Microseconds())/rest.Seconds(), "etcd-µs/s")
	b.ReportMetric(0, "ns/op")
}

// ownCPU returns the CPU time of this process.
func ownCPU(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	must.Do(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// cpu returns the CPU time of another process, in hundredths of a second.
func cpu(b *testing.B, pid int) time.Duration {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Skip(err) // there is none beside Linux
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	total := 0
	for _, field := range strings.Fields(rest)[11:13] { // proc(5): utime and stime
		ticks := must.Get(strconv.Atoi(field))(b)
		total += ticks
	}
	return time.Duration(total) * 10 * time.Millisecond
}
