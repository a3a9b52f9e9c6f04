package test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/loopback"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
)

// federationSeries returns the names of the plugin's series that contain all of
// the labels.
func federationSeries(samples place.Samples, labels ...string) []string {
	var ours []string
	for series := range samples {
		if strings.HasPrefix(series, "coredns_federation_") && !slices.ContainsFunc(labels, func(label string) bool { return !strings.Contains(series, label) }) {
			ours = append(ours, series)
		}
	}
	return ours
}

// reload makes CoreDNS read this Corefile, and waits until it has either taken or refused it.
func (d *coreDNS) reload(t testing.TB, corefile string) {
	t.Helper()
	d.write(t, corefile)
	over := func() int { return d.Logged("Reloading complete") + d.Logged("Restart failed") }
	before := over()
	d.Signal(syscall.SIGUSR1)
	await.Eventually(t, func() string {
		if over() == before {
			return "the reload is not over"
		}
		return ""
	})
}

// keepAsking asks for the A records of the names over and over. Each answer must be the one given
// for its name, in the form of summary. The function that it returns ends that, and fails the test
// where an answer was wrong.
func keepAsking(t testing.TB, address string, want map[string]string) (check func()) {
	t.Helper()
	closed := make(chan struct{})
	var asking sync.WaitGroup
	asked, wrong := 0, []string(nil)
	asking.Go(func() {
		pace := time.NewTicker(2 * time.Millisecond)
		defer pace.Stop()
		for {
			for name, answer := range want {
				m, err := query(address, name, dns.TypeA)
				asked++
				switch {
				case err != nil:
					wrong = append(wrong, fmt.Sprintf("%s: %v", name, err))
				case summary(m) != answer:
					wrong = append(wrong, fmt.Sprintf("%s: %s, want %s", name, summary(m), answer))
				}
				select {
				case <-closed:
					return
				case <-pace.C:
				}
			}
		}
	})
	stop := sync.OnceFunc(func() { close(closed); asking.Wait() })
	t.Cleanup(stop)
	return func() {
		t.Helper()
		stop()
		if len(wrong) > 0 {
			t.Errorf("%d of %d answers were wrong, the first: %s", len(wrong), asked, wrong[0])
		}
		if asked < 10 {
			t.Errorf("only %d queries", asked)
		}
	}
}

// openFiles counts the file descriptors of CoreDNS.
func (d *coreDNS) openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.PID()))
	if err != nil {
		t.Skipf("file descriptors cannot be counted here: %v", err)
	}
	return len(entries)
}

// TestReloads reloads Corefiles under load, every other of which fails, each in its way: no query
// fails, the stream stays, CoreDNS stays ready, and nothing is left behind. Then the status moves,
// and the federation blocks go and come again. What a reload may change of an owner is in package
// agent.
func TestReloads(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	o := startOwner(t, p, simpleService("web", "web.fed.example", "192.0.2.1"),
		fixtureService("host", "host.fed.example", []string{"gw.elsewhere.example:443"}, []string{"v1 HTTPS"}))
	other := startOwner(t, p, simpleService("new", "new.new.example", "192.0.2.2"))
	metrics, ready, page, moved := loopback.Address(t), loopback.Address(t), loopback.Address(t), loopback.Address(t)
	block := func(zone, address, properties string) string {
		return fmt.Sprintf("federation %s {\nowner %s\n%s\n%s\n}\n", zone, address, tlsOf(p), properties)
	}
	own := func(ttl int, page string) string {
		return block("fed.example", o.address, fmt.Sprintf("ttl %d\nstatus %s", ttl, page))
	}
	corefile := func(blocks, servers string) string {
		return fmt.Sprintf(".:PORT {\nbind 127.0.0.1\nprometheus %s\nready %s\n%s}\n%s", metrics, ready, blocks, servers)
	}
	elsewhere := func(properties string) string {
		return "elsewhere.example:PORT {\nbind 127.0.0.1\ntemplate IN A {\n" + properties + "\n}\n}\n"
	}
	// A host cannot be looked up any more after the first reload: its last addresses are answered.
	failing := elsewhere("rcode SERVFAIL")
	d := startCoreDNS(t, corefile(own(30, page), elsewhere(`answer "{{ .Name }} 300 IN A 198.51.100.7"`)))
	d.awaitAnswer(t, "host.fed.example", dns.TypeA, "NOERROR 198.51.100.7")
	d.awaitComplete(t, "nope.fed.example")
	check := keepAsking(t, d.address, map[string]string{
		"web.fed.example": "NOERROR 192.0.2.1", "host.fed.example": "NOERROR 198.51.100.7", "nope.fed.example": "NXDOMAIN",
	})

	_, taken, _ := net.SplitHostPort(o.address)
	files := p.Files("owner")
	newer := own(9, page) + block("new.example", other.address, "")
	missing := block("more.example", "127.0.0.1:1", "persist /nonexistent/catalog")
	occupied := corefile(newer, fmt.Sprintf(".:%s {\nbind 127.0.0.1\n}\n", taken)) // which is found after the owners were started
	broken := []string{
		corefile(newer+"no_such_plugin\n", ""),
		corefile(newer+missing, ""),
		corefile(newer, ".:PORT {\nbind 127.0.0.2\n"+missing+"}\n"),
		occupied,
		corefile(own(9, o.address), ""),
		corefile(own(9, strings.Join([]string{page, files.Cert, files.Key, files.CA}, " ")), ""), // takes a restart
		corefile(newer+block("more.example", "127.0.0.1:1", "status "+moved), ""),
	}
	var before place.Samples
	var open int
	for i := range 3 * len(broken) {
		if i == len(broken) { // the first ones may keep something: that is no leak
			before, open = place.Scrape(t, metrics), d.openFiles(t)
		}
		d.reload(t, corefile(own(30+i, page), failing))
		d.reload(t, broken[i%len(broken)])
		if taken, refused := d.Logged("Reloading complete"), d.Logged("Restart failed"); taken != i+1 || refused != i+1 {
			t.Fatalf("%d reloads were taken and %d refused, want %d of each:\n%s", taken, refused, i+1, d.Tail())
		}
		if m := mustQuery(t, d.address, "web.fed.example", dns.TypeA); m.Answer[0].Header().Ttl != uint32(30+i) {
			t.Errorf("the TTL after a reload, and one that fails, is %d, want %d", m.Answer[0].Header().Ttl, 30+i)
		}
		if code, body, err := get("http://" + ready + "/ready"); err != nil || code != http.StatusOK {
			t.Errorf("CoreDNS is not ready any more: %d %s %v", code, body, err)
		}
	}
	await.Eventually(t, func() string {
		after := place.Scrape(t, metrics)
		const goroutines = "go_goroutines"
		switch got := d.openFiles(t); {
		case after[goroutines] == 0 || after[goroutines] > before[goroutines]+3:
			return fmt.Sprintf("%v goroutines, %v before", after[goroutines], before[goroutines])
		case got > open+2:
			return fmt.Sprintf("%d file descriptors, %d before", got, open)
		}
		if got, want := len(federationSeries(after)), len(federationSeries(before)); got == 0 || got != want {
			return fmt.Sprintf("%d series, %d before", got, want)
		}
		return ""
	})
	for text, want := range map[string]int{"owner is synced": 1, "owner is lost": 0, "status is served": 1} {
		if n := d.Logged(text); n != want {
			t.Errorf("the log says %d times %q, want %d:\n%s", n, text, want, d.Tail())
		}
	}

	served := func(at string) {
		t.Helper()
		if s := statusOf[status.Status](t, at, "/v1/status"); len(s.Owners) != 1 || s.Owners[0].State != "synced" || len(s.Zones) != 1 {
			t.Errorf("the status is %+v", s)
		}
	}
	ended := func(at string) {
		t.Helper()
		if c, err := net.Dial("tcp", at); err == nil {
			c.Close()
			t.Errorf("%s is still listened on", at)
		}
	}
	served(page)
	ended(moved)
	d.reload(t, corefile(own(30, moved), failing))
	served(moved)
	ended(page)
	check()
	d.reload(t, corefile("", ""))
	ended(moved)
	awaitLog(t, d.Process, 1, "[WARNING]", "owner has left the configuration with a reload", "owner="+o.address, "services=2")
	d.reload(t, occupied)
	d.reload(t, corefile("", ""))
	if left := federationSeries(place.Scrape(t, metrics), "owner"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	d.reload(t, corefile(newer, ""))
	d.awaitAnswer(t, "new.new.example", dns.TypeA, "NOERROR 192.0.2.2")
}
