package test

import (
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const secondarySeconds = 20

var (
	secondaryServices = flag.Int("secondary-services", 100_000, "size of the catalog that secondaries follow")
	secondaryRates    = []int{e2eUpdates} // updates a second
	secondaryPrimary  = flag.String("secondary-primary", coreDNSBinary, "CoreDNS that they transfer it from")
)

// relay passes on to a primary what one secondary asks, and counts what it is given.
type relay struct {
	address string
	octets  atomic.Int64 // of answers over TCP
}

func startRelay(b *testing.B, primary string) *relay {
	b.Helper()
	listener := listen(b, "127.0.0.1:0")
	r := &relay{address: listener.Addr().String()}
	packets := must.Get(net.ListenPacket("udp", r.address))(b)
	var wg sync.WaitGroup
	b.Cleanup(func() { _, _ = listener.Close(), packets.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = near.Close() }()
				far, err := net.Dial("tcp", primary)
				if err != nil {
					return
				}
				wg.Go(func() {
					_, _ = io.Copy(far, near)
					_ = far.Close() // the secondary has gone
				})
				_, _ = io.Copy(io.MultiWriter(near, (*counter)(&r.octets)), far)
			})
		}
	})
	wg.Go(func() { // SOA queries, one at a time
		buf := make([]byte, dns.MaxMsgSize)
		for {
			n, from, err := packets.ReadFrom(buf)
			if err != nil {
				return
			}
			query := new(dns.Msg)
			if query.Unpack(buf[:n]) != nil {
				continue
			}
			if reply, err := exchangeRaw("udp", primary, query); err == nil {
				if wire, err := reply.Pack(); err == nil {
					_, _ = packets.WriteTo(wire, from)
				}
			}
		}
	})
	return r
}

// counter counts what is written to it.
type counter atomic.Int64

func (c *counter) Write(p []byte) (int, error) {
	(*atomic.Int64)(c).Add(int64(len(p)))
	return len(p), nil
}

// BenchmarkE2ESecondaries has other name servers follow a catalog that changes, one at
// a time: how many seconds their serial is behind that of the primary, what is
// transferred for each update, and what the primary and they take of a processor.
func BenchmarkE2ESecondaries(b *testing.B) {
	program(b, "nsd", "nsd")
	program(b, "knotd", "knot")
	if _, err := os.Stat(*secondaryPrimary); err != nil {
		b.Skipf("%v: run make build", err)
	}
	p := &profiles()[0]
	for _, kind := range []struct {
		name  string
		start func(t testing.TB, address, zone, primary string) *process
	}{
		{"knot", func(t testing.TB, address, zone, primary string) *process {
			return startKnotWith(t, address, zone, primary, "off") // which is its default: the checks read the whole zone
		}},
		{"nsd", startNSD},
	} {
		b.Run("secondary="+kind.name, func(b *testing.B) {
			keys, address, primary := newPKI(b), freeAddress(b), freeAddress(b)
			r := &race{p: p, size: *secondaryServices}
			r.owner = serveRegistry(b, keys.owner, "", filled(b, p.catalog(b, r.size)), 256)
			corefile := filepath.Join(b.TempDir(), "Corefile")
			_, port, _ := net.SplitHostPort(primary)
			writeFile(b, corefile, fmt.Sprintf("%s:%s {\nbind 127.0.0.1\ntransfer {\nto %s\n}\nfederation {\nowner %s\n%s\n}\n}\n",
				benchOrigin, port, address, r.owner.address, keys.tls()))
			coreDNS := startProcess(b, exec.Command(*secondaryPrimary, "-conf", corefile))
			eventually(b, syncPatience, func() string {
				_, err := soaSerial(primary)
				return errorText(err)
			})
			relay := startRelay(b, primary)
			other := kind.start(b, address, benchOrigin, relay.address)
			eventually(b, syncPatience, func() string {
				_, err := soaSerial(address)
				return errorText(err)
			})
			b.Logf("%s has the zone: %d octets", kind.name, relay.octets.Load())
			for _, rate := range secondaryRates {
				b.Run(fmt.Sprintf("updates=%d", rate), func(b *testing.B) {
					r.measureSecondary(b, rate, primary, address, relay, coreDNS, other)
				})
			}
		})
	}
}

func (r *race) measureSecondary(b *testing.B, rate int, primary, address string, relay *relay, processes ...*process) {
	b.Helper()
	caughtUp := func() {
		b.Helper()
		eventually(b, syncPatience, func() string {
			newest, err := soaSerial(primary)
			if err != nil {
				return err.Error()
			}
			has, err := soaSerial(address)
			if err == nil && has != newest {
				return fmt.Sprintf("serial %d, the primary has %d", has, newest)
			}
			return errorText(err)
		})
	}
	for range 2 { // a serial that is old says nothing of how far a secondary is behind
		r.updating(b, 10)()
		caughtUp()
	}
	before := relay.octets.Load()
	var used [2]time.Duration
	for i, p := range processes {
		used[i] = cpuTime(b, p.cmd.Process.Pid)
	}
	var behind []float64 // seconds
	begin := time.Now()
	stop := r.updating(b, rate)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for time.Since(begin) < secondarySeconds*time.Second {
		<-tick.C
		newest := must.Get(soaSerial(primary))(b)
		has, err := soaSerial(address)
		if err != nil {
			continue // NSD replaces the process that answers
		}
		behind = append(behind, float64(int32(newest-has)))
	}
	updates := stop() * time.Since(begin).Seconds()
	took := time.Since(begin).Seconds()
	for i, name := range []string{"primary", "secondary"} {
		b.ReportMetric(100*(cpuTime(b, processes[i].cmd.Process.Pid)-used[i]).Seconds()/took, name+"-cpu-%")
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(updates/took, "updates/sec")
	b.ReportMetric(float64(relay.octets.Load()-before)/updates, "B/update")
	b.ReportMetric(median(behind), "behind-p50-s") // which sorts them
	b.ReportMetric(behind[len(behind)-1], "behind-max-s")
	caughtUp()
	b.ReportMetric(time.Since(begin).Seconds()-took, "caught-up-s")
}

func soaSerial(address string) (uint32, error) {
	reply, err := query(address, benchOrigin, dns.TypeSOA)
	if err != nil {
		return 0, err
	}
	if len(reply.Answer) == 1 {
		if soa, ok := reply.Answer[0].(*dns.SOA); ok {
			return soa.Serial, nil
		}
	}
	return 0, fmt.Errorf("%s has no zone yet: %s", address, dns.RcodeToString[reply.Rcode])
}

func errorText(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}
