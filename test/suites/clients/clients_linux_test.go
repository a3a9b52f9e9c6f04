package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
)

const (
	many = 100 // endpoints of the largest service

	// cached is how long a client may go on with what it knows: the longest caches of the
	// table have 30 s.
	cached = 45 * time.Second
	quiet  = 3 * time.Second // is how long nothing must happen to be over
)

var eventually = await.Eventually

// client is a row of the table.
type client struct {
	name    string
	program []string // which gets HOST PORT ATTEMPTS
	env     []string
	grpc    bool

	resolved bool // systemd-resolved asks CoreDNS for it
}

func (c *client) port() string {
	if c.grpc {
		return grpcPort
	}
	return httpPort
}

// clients builds the programs, and returns all clients.
func clients(t testing.TB) []*client {
	t.Helper()
	data, built := must.Get(filepath.Abs("testdata"))(t), t.TempDir()
	in := func(name string) string { return filepath.Join(data, name) }
	glibc, musl := filepath.Join(built, "glibc"), filepath.Join(built, "musl")
	run(t, "gcc", "-Wall", "-O2", "-o", glibc, in("attempt.c"))
	run(t, "musl-gcc", "-Wall", "-O2", "-static", "-o", musl, in("attempt.c"))
	run(t, "javac", "-d", built, in("Attempt.java"))
	self := must.Get(os.Executable())(t)
	role := func(name string) string { return roleVariable + "=" + name }
	java := func(options ...string) []string {
		return slices.Concat([]string{"java", "-XX:TieredStopAtLevel=1", "-cp", built}, options, []string{"Attempt"})
	}
	return []*client{
		{name: "grpc-go", program: []string{self}, env: []string{role("grpc")}, grpc: true},
		{name: "grpc-go, with the recipe", program: []string{self}, env: []string{role("grpc"), "RESOLUTION=2s"}, grpc: true},
		{name: "Go net/http", program: []string{self}, env: []string{role("http"), "GODEBUG=netdns=go"}},
		{name: "Go net/http, cgo", program: []string{self}, env: []string{role("http"), "GODEBUG=netdns=cgo"}},
		{name: "JVM HttpClient", program: java()},
		{name: "JVM HttpClient, with the recipe", program: java("-Djava.security.properties=" + in("java.security"))},
		{name: "glibc", program: []string{glibc}},
		{name: "musl", program: []string{musl}},
		{name: "systemd-resolved", program: []string{glibc}, resolved: true},
	}
}

// resolved starts systemd-resolved, without systemd and D-Bus: it needs a user, a folder and its
// configuration.
func resolved(t testing.TB, h *host) {
	t.Helper()
	program := filepath.Join(must.Get(realserver.Root())(t), "bin/tools/systemd-resolved")
	config := filepath.Join(h.dir, "systemd")
	must.Do(t, os.Mkdir(config, 0o755))
	h.write(t, "systemd/resolved.conf", "[Resolve]\nDNS="+coreDNSAddress+"\nLLMNR=no\nMulticastDNS=no\nDNSSEC=no\n")
	passwd := h.write(t, "passwd", "root:x:0:0::/:/bin/sh\nsystemd-resolve:x:995:995::/:/bin/false\n")
	group := h.write(t, "group", "root:x:0:\nsystemd-resolve:x:995:\n")
	h.serve(t, "sh", "-ec", `mount --bind "$1" /etc/passwd
mount --bind "$2" /etc/group
mount --bind "$3" /etc/systemd
mkdir -p /run/systemd/resolve
chown systemd-resolve:systemd-resolve /run/systemd/resolve
exec "$4"`, "sh", passwd, group, config, program)
}

// course is what became of one client.
type course struct {
	*client

	host       *host
	web, later *attempts
	once       map[string]*attempts // what was done once, by service
	row        row
}

// all runs f for all clients, some at a time: to start them takes all processors.
func all(courses []*course, f func(*course)) {
	var wg sync.WaitGroup
	tokens := make(chan struct{}, 6)
	for _, c := range courses {
		tokens <- struct{}{}
		wg.Go(func() { f(c); <-tokens })
	}
	wg.Wait()
}

// TestClients takes all clients through the life of a service at the same time.
func TestClients(t *testing.T) {
	if unfit != nil {
		t.Skip(unfit)
	}
	for _, program := range []string{"gcc", "ip", "musl-gcc", "java", "javac"} {
		must.Get(exec.LookPath(program))(t)
	}
	s := newServers(t)
	var courses []*course
	for n, c := range clients(t) {
		nameserver := coreDNSAddress
		if c.resolved {
			nameserver = "127.0.0.53"
		}
		h := newHost(t, n, nameserver)
		if c.resolved {
			resolved(t, h)
		}
		courses = append(courses, &course{client: c, host: h, once: make(map[string]*attempts), row: row{name: c.name}})
	}

	var every []string
	for n := 1; n <= many; n++ {
		every = append(every, endpoint(n))
	}
	before, after := every[:3], every[3:6]
	services := map[string][]string{"web": before, "first": before, "search": before, "many": every}
	s.publish(t, services)
	s.answers(t, "many", every...)

	// One attempt each, by a process of its own.
	all(courses, func(c *course) {
		for _, name := range []string{"first", "search", "many"} {
			resolv := "resolv.conf"
			if name == "search" {
				resolv = "search.conf"
			}
			c.once[name] = c.host.connect(t, c.client, resolv, name, 1)
			timer := time.NewTimer(await.Patience)
			select {
			case <-c.once[name].done:
			case <-timer.C:
			}
			timer.Stop()
		}
	})
	for _, c := range courses {
		c.judgeOnce(t, s)
	}

	// Attempts all the time, while the owner changes what it publishes.
	begin := time.Now()
	for _, c := range courses {
		c.web = c.host.connect(t, c.client, "resolv.conf", "web", -1)
		c.later = c.host.connect(t, c.client, "resolv.conf", "later", -1)
	}
	for _, c := range courses {
		eventually(t, func() string {
			c.web.mustLive(t, c.client)
			c.later.mustLive(t, c.client)
			if !slices.ContainsFunc(c.web.since(begin), func(l line) bool { return !l.failed }) {
				return c.name + " has not connected to web"
			}
			if len(c.later.since(begin)) == 0 {
				return c.name + " has not tried later"
			}
			return ""
		})
	}

	services["web"], services["later"] = before[1:], before[1:]
	s.publish(t, services)
	s.answers(t, "web", services["web"]...)
	withdrawn := time.Now()
	s.backends[before[0]].drain(t)
	settled(t, courses, withdrawn, func(c *course) bool {
		return c.now(withdrawn, services["web"]) && slices.ContainsFunc(c.later.since(withdrawn), func(l line) bool { return !l.failed })
	})

	services["web"] = after
	s.publish(t, services)
	s.answers(t, "web", after...)
	replaced := time.Now()
	for _, address := range before {
		s.backends[address].stop()
	}
	settled(t, courses, replaced, func(c *course) bool { return c.now(replaced, after) })

	killed := time.Now()
	s.owner.Kill()
	s.answers(t, "web")
	lost := time.Now()
	settled(t, courses, lost, func(c *course) bool { return !c.web.goesOn(lost) })
	end := time.Now()
	var table []row
	for _, c := range courses {
		c.web.stop()
		c.later.stop()
		c.judge(t, withdrawn, replaced, killed, lost)
		c.row.queries = fmt.Sprintf("%.0f", float64(len(s.queries(t, c.host, "web")))/end.Sub(begin).Minutes())
		table = append(table, c.row)
	}
	checkTable(t, table)
}

// settled waits until something is so for all clients, or for as long as they may cache: it
// ends by itself, so nothing is promised.
func settled(t testing.TB, courses []*course, begin time.Time, over func(*course) bool) {
	t.Helper()
	await.Until(t, await.Patience, func() string {
		for _, c := range courses {
			if time.Since(begin) < cached && !over(c) {
				return c.name + " goes on as before"
			}
		}
		return ""
	})
}

// now reports whether the client has lately connected to these addresses only.
func (c *course) now(begin time.Time, addresses []string) bool {
	if time.Since(begin) < quiet {
		return false
	}
	lines := c.web.since(time.Now().Add(-quiet))
	return len(lines) > 0 && !slices.ContainsFunc(lines, func(l line) bool { return !slices.Contains(addresses, l.address) })
}

// goesOn reports whether no attempt has failed.
func (a *attempts) goesOn(since time.Time) bool {
	return !slices.ContainsFunc(a.since(since), func(l line) bool { return l.failed })
}

// wholeAnswer is what the log has of an answer with endpoints that is not truncated.
var wholeAnswer = regexp.MustCompile(` (A|SRV) qr,aa,rd`)

// judgeOnce fills the row in with what the client did once.
func (c *course) judgeOnce(t testing.TB, s *servers) {
	t.Helper()
	for name, a := range c.once {
		a.stop()
		lines := a.since(time.Time{})
		if len(lines) == 0 || lines[len(lines)-1].failed {
			t.Fatalf("%s: no connection to %s: %v %s", c.name, name, lines, a.log.String())
		}
		queries := s.queries(t, c.host, name)
		count := fmt.Sprint(len(queries))
		switch name {
		case "first":
			c.row.first = count
		case "search":
			c.row.search = count
		case "many":
			whole := func(line string) bool { return wholeAnswer.MatchString(line) }
			if known := lines[len(lines)-1].known; known > 0 && known < many || !slices.ContainsFunc(queries, whole) {
				c.row.verdict = []string{"has part of 100 addresses"}
			}
		}
	}
}

// judge fills in the rest.
func (c *course) judge(t testing.TB, withdrawn, replaced, killed, lost time.Time) {
	t.Helper()
	between := func(a *attempts, from, to time.Time) []line {
		return slices.DeleteFunc(a.since(from), func(l line) bool { return l.at.After(to) })
	}
	failures := func(lines []line) (n int) {
		for _, l := range lines {
			if l.failed {
				n++
			}
		}
		return n
	}
	failed := func(lines []line) string {
		if n := failures(lines); n > 0 {
			return fmt.Sprintf(", %d failed", n)
		}
		return ""
	}
	// Until the last one that is not as it should be.
	last := func(lines []line, from time.Time, wrong func(line) bool) string {
		for _, l := range slices.Backward(lines) {
			if wrong(l) {
				return seconds(l.at.Sub(from))
			}
		}
		return seconds(0)
	}

	lines := between(c.web, withdrawn, replaced)
	old := func(l line) bool { return l.address == endpoint(1) }
	c.row.withdrawn = last(lines, withdrawn, old) + failed(lines)
	if slices.ContainsFunc(between(c.web, replaced.Add(-quiet), replaced), old) {
		c.row.withdrawn = "not in " + seconds(cached)
		c.row.verdict = append(c.row.verdict, "stays with what was withdrawn")
	}

	lines = between(c.web, replaced, killed)
	c.row.replaced = last(lines, replaced, func(l line) bool { return l.failed }) + failed(lines)
	if recent := between(c.web, killed.Add(-quiet), killed); len(recent) == 0 || failures(recent) > 0 {
		t.Errorf("%s does not find the new endpoints: %v", c.name, recent)
	}

	c.row.born = "never"
	for _, l := range c.later.since(withdrawn) {
		if !l.failed {
			c.row.born = seconds(l.at.Sub(withdrawn))
			break
		}
	}
	if c.row.born == "never" {
		t.Errorf("%s does not find a name that was not there at first", c.name)
	}

	c.row.lost = "goes on"
	for _, l := range c.web.since(lost.Add(-time.Second)) {
		if l.failed {
			c.row.lost = seconds(l.at.Sub(lost))
			break
		}
	}
	if c.row.lost == "goes on" {
		c.row.verdict = append(c.row.verdict, "keeps its connection")
	}
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", max(0, d).Seconds()) }
