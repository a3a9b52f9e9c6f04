package test

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
)

const (
	resyncQueries = 5000        // a second
	resyncSlots   = 1 << 16     // queries that are told apart by their IDs
	resyncDrain   = time.Second // for the last replies
)

// BenchmarkE2EResync asks CoreDNS at a steady rate, first at rest and then while its
// owner is cut off, comes back and sends another version of all of its services. Every reply must
// have the address of its name.
//
// The owner and the client share the cores with CoreDNS, and the owner is busy for as
// long as it sends.
func BenchmarkE2EResync(b *testing.B) {
	metrics := freeAddress(b)
	r := newRace(b, *e2eServices, "federation+prometheus "+metrics)
	s, here := r.servers[0], &server{pids: []int{syscall.Getpid()}}
	eventually(b, syncPatience, func() string {
		if place.Scrape(b, metrics).Sum("coredns_federation_owner_state", `state="synced"`) == 0 {
			return "the catalog is not complete"
		}
		return ""
	})
	c := r.newPaced(b, s)
	stop := c.run(b)
	var rest, away, resync []span
	var took, serverCPU, ownCPU time.Duration
	for range *e2eRounds {
		begin := time.Now()
		<-time.NewTimer(time.Duration(*e2eSeconds) * time.Second).C
		serverCPU -= s.cpu(b)
		ownCPU -= here.cpu(b)
		cut := time.Now()
		tried, synced := r.resync(b, metrics)
		serverCPU += s.cpu(b)
		ownCPU += here.cpu(b)
		rest = append(rest, span{begin, cut})
		away = append(away, span{cut, tried})
		resync = append(resync, span{tried, synced})
		took += synced.Sub(tried)
	}
	samples := place.Scrape(b, metrics)
	stop()

	rounds := float64(*e2eRounds)
	b.ReportMetric(0, "ns/op")
	atRest := c.report(b, "rest", rest)
	c.report(b, "away", away)
	b.ReportMetric(c.report(b, "resync", resync)/atRest, "p99-ratio")
	b.ReportMetric(took.Seconds()/rounds, "resync-s")
	b.ReportMetric(float64(r.size)*rounds/took.Seconds(), "services/s")
	b.ReportMetric(serverCPU.Seconds()/rounds, "coredns-cpu-s")               // away and resync
	b.ReportMetric(ownCPU.Seconds()/rounds, "owner-cpu-s")                    // and that of the client
	for name, quantile := range map[string]string{"p50": "0.5", "max": "1"} { // of the last 256 collections
		b.ReportMetric(1e6*samples[fmt.Sprintf("go_gc_duration_seconds{quantile=%q}", quantile)], "gc-pause-"+name+"-us")
	}
}

// resync cuts the owner off and lets it come back with all of its services described anew. It
// returns when CoreDNS connected again, and when it had the whole catalog.
func (r *race) resync(b *testing.B, metrics string) (tried, synced time.Time) {
	b.Helper()
	count := func(samples place.Samples, operation string) int {
		return int(samples.Sum("coredns_federation_responses_total", fmt.Sprintf("operation=%q", operation)))
	}
	before, cut := place.Scrape(b, metrics), time.Now()
	r.owner.stop()
	all := r.p.catalog(b, r.size)
	for _, s := range all { // or it would only say that nothing is different
		s.Description = cut.String()
	}
	must.Get(r.owner.Set(all))(b)
	r.owner = serveRegistry(b, r.keys.owner, r.owner.address, r.owner.Registry, 256)
	tick := time.NewTicker(100 * time.Millisecond) // a page costs CPU time
	defer tick.Stop()
	for range tick.C {
		if time.Since(cut) > syncPatience {
			b.Fatalf("not synced %v after the cut", syncPatience)
		}
		after := place.Scrape(b, metrics)
		if count(after, "end") == count(before, "end") || after.Sum("coredns_federation_owner_state", `state="synced"`) == 0 {
			continue
		}
		if again := count(after, "upsert") - count(before, "upsert"); again != r.size {
			b.Fatalf("%d services were sent again, want %d", again, r.size)
		}
		tried = timestamp(after, "coredns_federation_last_attempt_timestamp_seconds")
		synced = timestamp(after, "coredns_federation_last_sync_timestamp_seconds")
		break
	}
	return tried, synced
}

// timestamp returns a metric that is one.
func timestamp(samples place.Samples, metric string) time.Time {
	return time.UnixMicro(int64(samples.Sum(metric) * 1e6))
}

// span is a time between two others.
type span struct{ from, to time.Time }

// paced asks a server for A records over UDP at a steady rate, whatever comes back.
type paced struct {
	conn    *net.UDPConn
	queries [resyncSlots]struct {
		wire []byte
		want [4]byte
		sent atomic.Int64 // Unix time in nanoseconds; 0: answered
	}

	// Written by run until it is stopped.
	answered []measured
	lost     []measured
	wrong    []string
}

// measured is a query, when it was sent and when its reply came.
type measured struct {
	sent int64 // Unix time in nanoseconds
	took time.Duration
}

// newPaced returns a client with queries for names all over the catalog.
func (r *race) newPaced(b *testing.B, s *server) *paced {
	b.Helper()
	address, err := net.ResolveUDPAddr("udp", s.address)
	must.Do(b, err)
	c := new(paced)
	c.conn = must.Get(net.DialUDP("udp", nil, address))(b)
	b.Cleanup(func() { _ = c.conn.Close() })
	// The kernel says when a reply came: this process may get its turn much later.
	raw, err := c.conn.SyscallConn()
	must.Do(b, err)
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_TIMESTAMP, 1)
	})
	if err != nil || failed != nil {
		b.Fatal(err, failed)
	}
	must.Do(b, c.conn.SetReadBuffer(4<<20))
	numbers := order(r.size)
	for slot := range c.queries {
		q, i := &c.queries[slot], numbers[slot%r.size]
		m := new(dns.Msg).SetQuestion(s.fqdn(i), dns.TypeA)
		m.Id = uint16(slot)
		q.wire = must.Get(m.Pack())(b)
		q.want = r.p.addresses(i)[0].As4()
	}
	return c
}

// run asks until the function that it returns is called, which waits for the end.
func (c *paced) run(b *testing.B) (stop func()) {
	b.Helper()
	done := make(chan struct{})
	var asks, reads sync.WaitGroup
	asks.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for begin, n := time.Now(), 0; ; {
			for ; time.Since(begin) > time.Duration(n)*time.Second/resyncQueries; n++ {
				q := &c.queries[n%resyncSlots]
				if sent := q.sent.Swap(time.Now().UnixNano()); sent != 0 {
					c.lost = append(c.lost, measured{sent: sent})
				}
				if _, err := c.conn.Write(q.wire); err != nil {
					b.Error(err)
					return
				}
			}
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	})
	reads.Go(func() {
		reply, control := make([]byte, 512), make([]byte, 64)
		for {
			n, m, _, _, err := c.conn.ReadMsgUDP(reply, control)
			if err != nil {
				return // stop has set a deadline
			}
			c.take(reply[:n], received(control[:m]))
		}
	})
	return func() {
		close(done)
		asks.Wait()
		_ = c.conn.SetReadDeadline(time.Now().Add(resyncDrain))
		reads.Wait()
		for i := range c.queries {
			if sent := c.queries[i].sent.Load(); sent != 0 {
				c.lost = append(c.lost, measured{sent: sent})
			}
		}
		if len(c.wrong) > 0 {
			b.Errorf("%d wrong answers, the first of which is %s", len(c.wrong), c.wrong[0])
		}
	}
}

// received returns when the kernel got a message, in nanoseconds of Unix time.
func received(control []byte) int64 {
	all, _ := syscall.ParseSocketControlMessage(control)
	for _, m := range all {
		if m.Header.Type == syscall.SCM_TIMESTAMP && len(m.Data) >= 16 {
			seconds, micros := binary.NativeEndian.Uint64(m.Data), binary.NativeEndian.Uint64(m.Data[8:])
			return int64(seconds)*int64(time.Second) + int64(micros)*int64(time.Microsecond)
		}
	}
	return time.Now().UnixNano()
}

// take checks a reply. The answer is the address, at the end of the message.
func (c *paced) take(reply []byte, at int64) {
	const header = 12
	if len(reply) < header+4 {
		c.wrong = append(c.wrong, fmt.Sprintf("%x", reply))
		return
	}
	q := &c.queries[binary.BigEndian.Uint16(reply)]
	if sent := q.sent.Swap(0); sent != 0 {
		c.answered = append(c.answered, measured{sent, time.Duration(at - sent)})
	}
	counts := [4]uint16{}
	for i := range counts {
		counts[i] = binary.BigEndian.Uint16(reply[4+2*i:])
	}
	if reply[3]&0xf != dns.RcodeSuccess || counts != [4]uint16{1, 1, 0, 0} || [4]byte(reply[len(reply)-4:]) != q.want {
		m := new(dns.Msg)
		_ = m.Unpack(reply)
		c.wrong = append(c.wrong, fmt.Sprintf("%v, want %v", m, q.want))
	}
}

// report reports the queries that were sent within one of the spans, and returns the
// 99th percentile of their times in microseconds.
func (c *paced) report(b *testing.B, name string, spans []span) (p99 float64) {
	b.Helper()
	within := func(m measured) bool {
		return slices.ContainsFunc(spans, func(s span) bool { return m.sent >= s.from.UnixNano() && m.sent < s.to.UnixNano() })
	}
	var all []time.Duration
	for _, m := range c.answered {
		if within(m) {
			all = append(all, m.took)
		}
	}
	lost := 0
	for _, m := range c.lost {
		if within(m) {
			lost++
		}
	}
	if len(all) == 0 {
		b.Fatalf("%s: no reply to any query", name)
	}
	reportPercentiles(b, name, all) // which sorts them
	b.ReportMetric(float64(all[len(all)-1].Nanoseconds())/1000, name+"-max-us")
	b.ReportMetric(float64(lost), name+"-lost")
	b.ReportMetric(float64(len(all)), name+"-replies")
	return float64(all[(len(all)-1)*99/100].Nanoseconds()) / 1000
}
