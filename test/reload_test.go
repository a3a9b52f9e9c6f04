package test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/place"
)

// federationSeries returns the names of the plugin's series that contain all of
// the labels.
func federationSeries(samples place.Samples, labels ...string) []string {
	var ours []string
	for series := range samples {
		if strings.HasPrefix(series, "coredns_federation_") && containsAll(series, labels) {
			ours = append(ours, series)
		}
	}
	return ours
}

// reload makes CoreDNS read its Corefile again, and waits until it has either
// taken or refused it.
func (d *coreDNS) reload(t testing.TB) {
	t.Helper()
	over := func() int { return d.log.Count("Reloading complete") + d.log.Count("Restart failed") }
	before := over()
	d.signal(syscall.SIGUSR1)
	eventually(t, patience, func() string {
		if over() == before {
			return "the reload is not over"
		}
		return ""
	})
}

// asker asks for names until it is stopped, and collects the wrong answers.
type asker struct {
	stop   func() // ends the asking and waits for the end
	closed chan struct{}

	// Owned by the goroutine that asks, until stop has returned.
	asked int
	wrong []string
}

// keepAsking asks for the A records of the names over and over. Each answer must
// be the one given for its name, in the form of summary.
func keepAsking(t testing.TB, address string, want map[string]string) *asker {
	t.Helper()
	a := &asker{closed: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() {
		pace := time.NewTicker(2 * time.Millisecond)
		defer pace.Stop()
		for {
			for name, answer := range want {
				m, err := query(address, name, dns.TypeA)
				a.asked++
				switch {
				case err != nil:
					a.wrong = append(a.wrong, fmt.Sprintf("%s: %v", name, err))
				case summary(m) != answer:
					a.wrong = append(a.wrong, fmt.Sprintf("%s: %s, want %s", name, summary(m), answer))
				}
				select {
				case <-a.closed:
					return
				case <-pace.C:
				}
			}
		}
	})
	a.stop = sync.OnceFunc(func() { close(a.closed); wg.Wait() })
	t.Cleanup(a.stop)
	return a
}

// check ends the asking, and fails the test where an answer was wrong.
func (a *asker) check(t testing.TB) {
	t.Helper()
	a.stop()
	if len(a.wrong) > 0 {
		t.Errorf("%d of %d answers were wrong, the first: %s", len(a.wrong), a.asked, a.wrong[0])
	}
	if a.asked < 10 {
		t.Errorf("only %d queries", a.asked)
	}
}

// openFiles counts the file descriptors of a process.
func (p *process) openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	if err != nil {
		t.Skipf("file descriptors cannot be counted here: %v", err)
	}
	return len(entries)
}

// leaked returns "" once CoreDNS has hardly more goroutines than before, and
// hardly more open files than given. The sockets of the last configuration and the
// goroutines of the last queries may take a moment to end.
func (d *coreDNS) leaked(t testing.TB, before, after place.Samples, files int) string {
	t.Helper()
	const goroutines = "go_goroutines"
	if got, want := after[goroutines], before[goroutines]; got == 0 || got > want+3 {
		return fmt.Sprintf("%v goroutines, %v before", got, want)
	}
	if got := d.openFiles(t); got > files+2 {
		return fmt.Sprintf("%d file descriptors, %d before", got, files)
	}
	return ""
}

// TestReloads reloads a hundred times under load: no query fails, the stream
// stays, and nothing is left behind.
func TestReloads(t *testing.T) {
	p := newPKI(t)
	o := startOwner(t, p.owner, "", simpleService(t, "web", "web.fed.example", "192.0.2.1"))
	metrics := freeAddress(t)
	corefile := func(ttl int) string {
		return federationBlock(p, "fed.example", "prometheus "+metrics, fmt.Sprintf("%s ttl %d", o.address, ttl))
	}
	d := startCoreDNS(t, corefile(30))
	d.awaitComplete(t, "nope.fed.example")
	a := keepAsking(t, d.address, map[string]string{"web.fed.example": "NOERROR 192.0.2.1", "nope.fed.example": "NXDOMAIN"})
	d.reload(t) // the first one may keep something, such as a second socket: that is no leak

	// A series begins when something is counted, which is after the answers.
	eventually(t, patience, func() string {
		if place.Scrape(t, metrics).Sum("coredns_federation_responses_total", `operation="end"`) != 1 {
			return "the end of the catalog is not counted"
		}
		return ""
	})
	before, files := place.Scrape(t, metrics), d.openFiles(t)
	for i := range 100 {
		d.write(t, corefile(30+i%2))
		d.reload(t)
	}
	a.check(t)
	if n := d.log.Count("Reloading complete"); n != 101 {
		t.Errorf("%d reloads, want 101", n)
	}
	if n := d.log.Count("owner is synced"); n != 1 {
		t.Errorf("the owner was synced %d times, want once:\n%s", n, d.log)
	}
	eventually(t, patience, func() string {
		after := place.Scrape(t, metrics)
		if got, want := len(federationSeries(after)), len(federationSeries(before)); got == 0 || got != want {
			return fmt.Sprintf("%d series, %d before", got, want)
		}
		return d.leaked(t, before, after, files)
	})
	if got := place.Scrape(t, metrics).Sum("coredns_federation_sessions_total"); got != 0 {
		t.Errorf("%v streams have ended", got)
	}
}

// TestReloadChanges changes the TTL, the zones and the fallthrough of an owner,
// which keeps its stream and its records. Then it removes another owner, which is
// forgotten at once. A reload that fails changes nothing.
func TestReloadChanges(t *testing.T) {
	p := newPKI(t)
	one := startOwner(t, p.owner, "", simpleService(t, "web", "web.fed.example", "192.0.2.1"), simpleService(t, "wide", "wide.more.example", "192.0.2.2"))
	two := startOwner(t, p.owner, "", simpleService(t, "two", "two.fed.example", "192.0.2.3"))
	metrics := freeAddress(t)
	block := func(o *realOwner, zones, more string) string {
		return fmt.Sprintf("federation %s {\nowner %s\n%s\n%s\n}\n", zones, o.address, p.tls(), more)
	}
	corefile := func(blocks ...string) string {
		return fmt.Sprintf(".:PORT {\nbind 127.0.0.1\nprometheus %s\n%s}\n", metrics, strings.Join(blocks, ""))
	}
	d := startCoreDNS(t, corefile(block(one, "fed.example", ""), block(two, "fed.example", "")))
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	d.awaitAnswer(t, "two.fed.example", dns.TypeA, "NOERROR 192.0.2.3")
	d.awaitComplete(t, "nope.fed.example")
	a := keepAsking(t, d.address, map[string]string{"web.fed.example": "NOERROR 192.0.2.1"})

	d.write(t, corefile(block(one, "fed.example more.example", "ttl 7"), block(two, "fed.example", "")))
	d.reload(t)
	if m := mustQuery(t, d.address, "web.fed.example", dns.TypeA); m.Answer[0].Header().Ttl != 7 {
		t.Errorf("TTL after the reload is %d, want 7", m.Answer[0].Header().Ttl)
	}
	// The zones did not include it before, so it was refused, and has to be sent again.
	d.awaitAnswer(t, "wide.more.example", dns.TypeA, "NOERROR 192.0.2.2")
	d.awaitComplete(t, "nope.fed.example")

	for more, want := range map[string]string{"fallthrough": "REFUSED", "": "NXDOMAIN"} { // there is no other plugin
		d.write(t, corefile(block(one, "fed.example", more), block(two, "fed.example", more)))
		d.reload(t)
		if m := mustQuery(t, d.address, "nope.fed.example", dns.TypeA); summary(m) != want {
			t.Errorf("a name that does not exist, with %q: %s, want %s", more, summary(m), want)
		}
	}

	d.write(t, corefile(block(one, "fed.example", "")))
	d.reload(t)
	if m := mustQuery(t, d.address, "two.fed.example", dns.TypeA); summary(m) != "NXDOMAIN" {
		t.Errorf("a service of an owner that was removed: %s, want NXDOMAIN", summary(m))
	}
	checkSeries := func(when string) {
		t.Helper()
		samples := place.Scrape(t, metrics)
		if len(federationSeries(samples, one.address)) == 0 {
			t.Errorf("%s: no series of the owner that stayed", when)
		}
		if left := federationSeries(samples, two.address); len(left) > 0 {
			t.Errorf("%s: series of an owner that is not configured: %q", when, left)
		}
	}
	checkSeries("after the removal")

	for name, broken := range map[string]string{
		"a mistake":     corefile(block(one, "fed.example", "ttl never")),
		"no such file":  corefile(block(one, "fed.example", "ttl 9\npersist /nonexistent/catalog")),
		"occupied port": corefile(block(one, "fed.example", "ttl 9")) + fmt.Sprintf("x.example:%s {\nbind 127.0.0.1\n%s}\n", portOf(one.address), block(two, "", "")),
	} {
		failed := d.log.Count("Restart failed")
		d.write(t, broken)
		d.reload(t)
		if d.log.Count("Restart failed") != failed+1 {
			t.Errorf("%s: the reload did not fail", name)
		}
		if m := mustQuery(t, d.address, "web.fed.example", dns.TypeA); m.Answer[0].Header().Ttl != 30 {
			t.Errorf("%s: TTL after a failed reload is %d, want 30", name, m.Answer[0].Header().Ttl)
		}
	}
	checkSeries("after the failed reloads")
	a.check(t)
	samples := place.Scrape(t, metrics)
	if lost := samples.Sum("coredns_federation_sessions_total", one.address) - samples.Sum("coredns_federation_sessions_total", one.address, `code="OK"`); lost != 0 {
		t.Errorf("%v streams to the owner that stayed were lost", lost)
	}
}

func portOf(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

// TestFailedReloads reloads Corefiles that are broken in different ways. The
// failures leave nothing behind, whether or not the running configuration has an
// owner, and a correct Corefile is taken afterwards.
func TestFailedReloads(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	o := startOwner(t, p.owner, "", simpleService(t, "web", "web.fed.example", "192.0.2.1"))
	other := startOwner(t, p.owner, "", simpleService(t, "new", "new.new.example", "192.0.2.2"))
	block := func(zone, address, more string) string {
		return fmt.Sprintf("federation %s {\nowner %s\ntls %s %s %s\n%s}\n", zone, address, p.consumer.Cert, p.consumer.Key, p.consumer.CA, more)
	}
	const missing = "persist /nonexistent/catalog\n"
	for name, running := range map[string]string{"with an owner": block("fed.example", o.address, ""), "without": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			metrics := freeAddress(t)
			corefile := func(more, server string) string {
				return fmt.Sprintf(".:PORT {\nbind 127.0.0.1\nprometheus %s\n%s%s}\n%s", metrics, running, more, server)
			}
			d := startCoreDNS(t, corefile("", ""))
			if running != "" {
				d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
			}
			// The port is in use, which CoreDNS finds only after the owners of the new
			// configuration have been started.
			occupied := fmt.Sprintf(".:%s {\nbind 127.0.0.1\n}\n", portOf(o.address))
			good := block("new.example", other.address, "")
			broken := []string{
				corefile(good+"no_such_plugin\n", ""),
				corefile(good+block("more.example", "127.0.0.1:1", missing), ""),
				corefile(good, ".:PORT {\nbind 127.0.0.2\n"+block("more.example", "127.0.0.1:1", missing)+"}\n"),
				corefile(good, occupied),
			}
			var before place.Samples
			var files int
			for i := range 40 {
				if i == 4 { // the first ones may keep something: that is no leak
					before, files = place.Scrape(t, metrics), d.openFiles(t)
				}
				d.write(t, broken[i%len(broken)])
				d.reload(t)
			}
			if n := d.log.Count("Restart failed"); n != 40 {
				t.Fatalf("%d reloads failed, want 40", n)
			}
			eventually(t, patience, func() string {
				after := place.Scrape(t, metrics)
				if left := federationSeries(after, other.address); len(left) > 0 {
					return fmt.Sprintf("left behind: %q", left)
				}
				return d.leaked(t, before, after, files)
			})
			if running != "" {
				d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
				if n := d.log.Count("owner is lost") + d.log.Count(o.address, "connected to owner"); n != 1 {
					t.Errorf("the running owner was connected or lost %d times, want 1:\n%s", n, d.log)
				}
			}
			d.write(t, corefile(good, ""))
			d.reload(t)
			d.awaitAnswer(t, "new.new.example", dns.TypeA, "NOERROR 192.0.2.2")
			if len(federationSeries(place.Scrape(t, metrics), other.address)) == 0 {
				t.Error("no series of the owner that was added")
			}
		})
	}
}

// TestReloadKeepsHosts has a host that cannot be looked up any more after a reload: its last
// addresses are answered as if there had been none. A reload that finds others answers these.
func TestReloadKeepsHosts(t *testing.T) {
	p := newPKI(t)
	o := startOwner(t, p.owner, "", fixtureService(t, "web", "web.fed.example", []string{"gw.elsewhere.example:443"}, []string{"v1 HTTPS"}))
	blocks := federationBlock(p, "fed.example", "", o.address)
	corefile := func(elsewhere string) string {
		return blocks + "elsewhere.example:PORT {\nbind 127.0.0.1\n" + elsewhere + "\n}\n"
	}
	found := func(address string) string {
		return corefile("template IN A {\nanswer \"{{ .Name }} 300 IN A " + address + "\"\n}")
	}
	d := startCoreDNS(t, found("198.51.100.7"))
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 198.51.100.7")
	d.write(t, corefile("template IN A {\nrcode SERVFAIL\n}"))
	for range 2 {
		d.reload(t)
		if got := summary(mustQuery(t, d.address, "web.fed.example", dns.TypeA)); got != "NOERROR 198.51.100.7" {
			t.Errorf("after a reload the answer is %q", got)
		}
	}
	d.write(t, found("198.51.100.8"))
	d.reload(t)
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 198.51.100.8")
}

// TestLameduck has a CoreDNS that answers for a minute after SIGTERM: what an owner withdraws
// meanwhile is gone, and so is what an owner has whose retention ends.
func TestLameduck(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	open := startOwner(t, p.owner, "", simpleService(t, "web", "web.fed.example", "192.0.2.1"), simpleService(t, "old", "old.fed.example", "192.0.2.2"))
	lost := startOwner(t, p.owner, "", simpleService(t, "lost", "lost.fed.example", "192.0.2.3"))
	extra := fmt.Sprintf("health %s {\nlameduck 1m\n}", freeAddress(t))
	d := startCoreDNS(t, federationBlock(p, "fed.example", extra, open.address+" name open", lost.address+" name lost\nretention 2s"))
	d.awaitAnswer(t, "old.fed.example", dns.TypeA, "NOERROR 192.0.2.2")
	d.awaitAnswer(t, "lost.fed.example", dns.TypeA, "NOERROR 192.0.2.3")
	d.awaitComplete(t, "nope.fed.example")

	d.signal(syscall.SIGTERM)
	d.awaitLog(t, 1, "Going into lameduck mode")
	open.Delete("old")
	d.awaitNXDOMAIN(t, "old.fed.example")
	lost.stop()
	eventually(t, patience, func() string {
		m, err := query(d.address, "lost.fed.example", dns.TypeA)
		if err != nil {
			return err.Error()
		}
		if len(m.Answer) > 0 {
			return "is answered after its retention: " + summary(m)
		}
		return ""
	})
	mustUpsert(t, open, simpleService(t, "new", "new.fed.example", "192.0.2.4"))
	d.awaitAnswer(t, "new.fed.example", dns.TypeA, "NOERROR 192.0.2.4")
	d.end(t, syscall.SIGKILL) // the minute is only as long as a busy machine may need
}
