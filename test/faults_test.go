package test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/await"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place"
	"github.com/hamlet-federation/coredns-federation/test/peers/faultowner"
)

// truth has the allowed answers by name, relative to a zone: one answer in the form
// of summary, or several with "|" between them.
type truth map[string]string

// watched is a zone that is queried all the time.
type watched struct {
	dns, zone string

	mu         sync.Mutex // guards the fields below
	epochs     []epoch
	rounds     int      // how often all names were asked for
	wrong      []string // answers that were not allowed
	unanswered int      // queries
}

// epoch is a truth and the time from which it holds, until the next one does.
type epoch struct {
	from time.Time
	truth
}

// watch asks for the names of first, over and over, until the test ends. It fails
// the test where an answer was allowed at no time between the query and its reply.
func watch(t *testing.T, server, zone string, first truth) *watched {
	t.Helper()
	w := &watched{dns: server, zone: zone}
	w.expect(first)
	stop := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		pace := time.NewTicker(40 * time.Millisecond)
		defer pace.Stop()
		for {
			for _, name := range slices.Sorted(maps.Keys(first)) {
				w.ask(name)
				select {
				case <-stop:
					return
				case <-pace.C:
				}
			}
			w.mu.Lock()
			w.rounds++
			w.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		close(stop)
		asking.Wait()
		for _, wrong := range w.wrong[:min(len(w.wrong), 5)] {
			t.Error(wrong)
		}
		if len(w.wrong) > 5 {
			t.Errorf("and %d more", len(w.wrong)-5)
		}
		if w.unanswered > w.rounds/20 {
			t.Errorf("%d queries got no answer in %d rounds", w.unanswered, w.rounds)
		}
	})
	return w
}

// expect changes what is allowed from now on.
func (w *watched) expect(a truth) { w.expectFrom(time.Now(), a) }

// expectFrom changes what is allowed from a time on, the latest so far.
func (w *watched) expectFrom(from time.Time, a truth) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.epochs = append(w.epochs, epoch{from, a})
}

// ask asks for one name and judges the answer.
func (w *watched) ask(name string) {
	asked := time.Now()
	m, err := query(w.dns, name+"."+w.zone, dns.TypeA, withEDNS)
	replied := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.unanswered++
		return
	}
	got := summary(m)
	var allowed []string
	for i, e := range w.epochs {
		if e.from.After(replied) {
			break
		}
		if i+1 == len(w.epochs) || w.epochs[i+1].from.After(asked) {
			allowed = append(allowed, strings.Split(e.truth[name], "|")...)
		}
	}
	if !slices.Contains(allowed, got) {
		w.wrong = append(w.wrong, fmt.Sprintf("%s %s.%s: %s, want %s",
			time.Now().Format(time.TimeOnly), name, w.zone, got, strings.Join(allowed, " or ")))
	}
}

// more waits for n more rounds.
func (w *watched) more(t *testing.T, n int) {
	t.Helper()
	count := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.rounds
	}
	first := count() + 1 // the current round has begun before
	await.Until(t, 10*time.Second, 3*patience, func() string {
		if got := count() - first; got < n {
			return fmt.Sprintf("%d more rounds, want %d", got, n)
		}
		return ""
	})
}

// await waits until all answers are as given. From then on no others are allowed.
func (w *watched) await(t *testing.T, a truth) {
	t.Helper()
	await.Until(t, 30*time.Second, 5*patience, func() string { // some of it is the retention
		for name, want := range a {
			m, err := query(w.dns, name+"."+w.zone, dns.TypeA, withEDNS)
			if err != nil {
				return err.Error()
			}
			if got := summary(m); got != want {
				return fmt.Sprintf("%s.%s is %q, want %q", name, w.zone, got, want)
			}
		}
		return ""
	})
	w.expect(a)
}

// The allowed answers of most rows: before and during a fault, while it ends, and
// after it. The service web stays, api changes its address, old is deleted. The
// other names never exist.
var (
	before = truth{
		"web": "NOERROR 192.0.2.1", "api": "NOERROR 192.0.2.2", "old": "NOERROR 192.0.2.3",
		"nope": "NXDOMAIN", "evil": "NXDOMAIN",
	}
	ending = truth{
		"web": "NOERROR 192.0.2.1", "api": "NOERROR 192.0.2.2|NOERROR 192.0.2.9", "old": "NOERROR 192.0.2.3|NXDOMAIN",
		"nope": "NXDOMAIN", "evil": "NXDOMAIN",
	}
	after = truth{
		"web": "NOERROR 192.0.2.1", "api": "NOERROR 192.0.2.9", "old": "NXDOMAIN",
		"nope": "NXDOMAIN", "evil": "NXDOMAIN",
	}
)

// unsynced returns the answers that are allowed before the first catalog is
// complete: those of a, and SERVFAIL.
func unsynced(a truth) truth {
	b := make(truth)
	for name, want := range a {
		b[name] = want + "|SERVFAIL"
	}
	return b
}

// through follows a zone from before a fault to after its end. The functions bring
// the fault about and end it.
func (w *watched) through(t *testing.T, fault, end func()) {
	t.Helper()
	w.await(t, before)
	w.more(t, 2)
	fault()
	w.more(t, 5)
	w.expect(ending)
	end()
	w.await(t, after)
	w.more(t, 5)
}

// The catalogs before and after, as steps of a script. ZONE stands for the zone.
const (
	original = "\nupsert web web.ZONE 192.0.2.1\nupsert api api.ZONE 192.0.2.2\nupsert old old.ZONE 192.0.2.3"
	changed  = "\nupsert web web.ZONE 192.0.2.1\nupsert api api.ZONE 192.0.2.9"

	again = "\n---\nawait" + changed // all of changed, on the next stream
)

// lies returns two bad steps: a new service and a change of web. Both must be
// refused.
func lies(step string) string {
	return fmt.Sprintf("\n%s evil evil.ZONE 192.0.2.66\n%s web web.ZONE 192.0.2.66", step, step)
}

// faulty is the owner of one row of the table, and its consumer.
type faulty struct {
	t       *testing.T
	d       *coreDNS
	pki     *pki
	files   mtls.Files // of the consumer
	zone    string
	address string // of the owner
	replica string // another address of the owner, or ""

	owner *faultowner.Owner
	stop  func() // ends the owner and waits for the end
}

// serve starts an owner at f.address. It takes pings at most once in the interval
// given by pings; 0 takes any.
func (f *faulty) serve(script string, c credentials.TransportCredentials, pings time.Duration) {
	f.t.Helper()
	parsed := must.Get(faultowner.Parse(strings.ReplaceAll(script, "ZONE", f.zone)))(f.t)
	o := faultowner.New(faultowner.Config{Script: parsed, Credentials: c, Pings: pings})
	f.owner = o
	listener := listen(f.t, f.address)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := o.Serve(ctx, listener); err != nil {
			f.t.Error(err)
		}
	})
	f.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	f.t.Cleanup(f.stop)
}

// next waits until the script has come to an await, and lets it go on.
func (f *faulty) next() {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
	defer cancel()
	if err := f.owner.Go(ctx); err != nil {
		f.t.Fatalf("the script does not go on: %v", err)
	}
}

// until is eventually with the patience that a test of many owners needs.
func (f *faulty) until(condition func() string) {
	f.t.Helper()
	eventually(f.t, 5*patience, condition)
}

// logged waits until CoreDNS has logged so many lines with the text about the owner.
func (f *faulty) logged(text string, times int) {
	f.t.Helper()
	f.until(func() string { return f.d.unlogged(times, f.address, text) })
}

// streams waits until the owner has had that many streams.
func (f *faulty) streams(want int) {
	f.t.Helper()
	f.until(func() string {
		if all, _ := f.owner.Streams(); all < want {
			return fmt.Sprintf("%d streams, want %d", all, want)
		}
		return ""
	})
}

// refusals waits until the owner has had that many responses refused.
func (f *faulty) refusals(want int) {
	f.t.Helper()
	f.until(func() string {
		n := 0
		for _, a := range f.owner.Answers() {
			if a.Refusal != "" {
				n++
			}
		}
		if n < want {
			return fmt.Sprintf("%d refusals, want %d", n, want)
		}
		return ""
	})
}

// rotate gives the consumer a new certificate.
func (f *faulty) rotate() {
	f.t.Helper()
	issued := must.Get(f.pki.authority.Issue(mtls.Leaf{Name: "consumer", DNSNames: []string{"consumer.example"}}))(f.t)
	must.Do(f.t, issued.WriteFiles(f.files))
}

// load returns the credentials of an owner with these files.
func (f *faulty) load(files mtls.Files) credentials.TransportCredentials {
	f.t.Helper()
	source := must.Get(mtls.Load(files, nil))(f.t)
	return source.Server()
}

// row starts an owner, before CoreDNS starts. It returns the answers that are
// allowed at first, and the story that leads the owner through its fault.
type row func(f *faulty) (first truth, story func(w *watched))

// fault is the usual row. The script of the owner has an await before the fault,
// and one before its end.
type fault struct {
	script string
	pings  time.Duration

	// during waits until the fault has had its effect. It may be nil.
	during func(f *faulty)

	// reset ends the stream, which hangs, to end the fault.
	reset bool
}

// row implements the type row.
func (r fault) row(f *faulty) (truth, func(*watched)) {
	f.serve(r.script, f.load(f.pki.owner), r.pings)
	return unsynced(before), func(w *watched) {
		w.through(f.t, func() {
			f.next()
			if r.during != nil {
				r.during(f)
			}
		}, func() {
			if r.reset {
				f.owner.Reset()
			}
			f.next()
		})
	}
}

// settle is the property settle of all rows.
const settle = 3 * time.Second

// ends is a fault that ends the stream. The owner then comes back by itself.
func ends(script string) row {
	return fault{script: original + "\nawait" + script + again}.row
}

// goesOn is a fault that the stream survives. start comes before the catalog.
func goesOn(start, script string) row {
	return fault{script: start + original + "\nawait" + script + "\nawait\nupsert api api.ZONE 192.0.2.9\ndelete old"}.row
}

// hangs is a second stream that follows the script and then says nothing for longer
// than settle.
func hangs(script string) row {
	return fault{
		script: original + "\nawait\nreset\n---\n" + script + "\nhang" + again,
		during: func(f *faulty) {
			f.streams(2)
			silent := time.Now()
			f.until(func() string {
				if time.Since(silent) < settle+time.Second {
					return "the silence is not long enough to settle"
				}
				return ""
			})
		},
		reset: true,
	}.row
}

// impostor is another owner at the address of the first one, which publishes lies.
// It has the credentials that the function returns; nil is plain text.
func impostor(identity func(f *faulty) credentials.TransportCredentials) row {
	return func(f *faulty) (truth, func(*watched)) {
		f.serve(original, f.load(f.pki.owner), 0)
		return unsynced(before), func(w *watched) {
			w.through(f.t, func() {
				f.stop()
				f.serve("upsert web web.ZONE 192.0.2.66\nupsert evil evil.ZONE 192.0.2.66", identity(f), 0)
				f.logged("TLS handshake", 1)
			}, func() {
				f.stop()
				f.serve(changed, f.load(f.pki.owner), 0)
				f.rotate()
			})
		}
	}
}

// half is an owner that comes back with a quarter of its services and does not mark
// the end of its catalog. The others must be kept until a later catalog.
func half(f *faulty) (truth, func(*watched)) {
	f.serve("services 0 20 ZONE\nawait\nreset\n---\nservices 0 5 ZONE\nhang\n---\nawait\nservices 0 19 ZONE", f.load(f.pki.owner), 0)
	all := truth{"s1": "NOERROR 10.0.0.1", "s18": "NOERROR 10.0.0.18", "s19": "NOERROR 10.0.0.19", "nope": "NXDOMAIN"}
	return unsynced(all), func(w *watched) {
		w.await(f.t, all)
		f.next()
		f.logged("came back without most of its services", 1)
		w.more(f.t, 5)
		w.expect(truth{"s1": all["s1"], "s18": all["s18"], "s19": all["s19"] + "|NXDOMAIN", "nope": "NXDOMAIN"})
		f.owner.Reset()
		f.next()
		w.await(f.t, truth{"s1": all["s1"], "s18": all["s18"], "s19": "NXDOMAIN", "nope": "NXDOMAIN"})
		w.more(f.t, 2)
	}
}

// crash is an owner with 10,000 services. It crashes in the middle of its first,
// third and fourth catalog, and completes the second and the fifth.
func crash(f *faulty) (truth, func(*watched)) {
	const part, whole = "announce\nservices 0 5000 ZONE\nreset", "announce\nservices 0 10000 ZONE\nend"
	f.serve(strings.Join([]string{part, whole + "\nawait\nreset", part, part, whole}, "\n---\n"), f.load(f.pki.owner), 0)
	all := truth{"s1": "NOERROR 10.0.0.1", "s9999": "NOERROR 10.0.39.15", "nope": "NXDOMAIN"}
	return unsynced(all), func(w *watched) {
		w.await(f.t, all)
		f.next()
		f.streams(5)
		f.logged("owner is synced", 2)
		w.more(f.t, 2)
	}
}

// replicas is an owner with two replicas, of which the first ends for good. The second
// one starts later, so that the first has the stream.
func replicas(f *faulty) (truth, func(*watched)) {
	f.serve(original, f.load(f.pki.owner), 0)
	first, stop := f.address, f.stop
	f.replica = freeAddress(f.t)
	return unsynced(before), func(w *watched) {
		w.through(f.t, func() {
			f.address = f.replica
			f.serve(original+"\nawait\nupsert api api.ZONE 192.0.2.9\ndelete old", f.load(f.pki.owner), 0)
			f.address = first
			stop()
			f.logged("owner is synced", 2)
		}, f.next)
	}
}

// publisher is an owner process, federationctl serve, with a catalog file.
type publisher struct {
	*faulty
	*process

	catalog string // path
}

// write replaces the catalog. Services are NAME=ADDRESS.
func (p *publisher) write(services ...string) {
	p.t.Helper()
	content := "services: []\n"
	if len(services) > 0 {
		for i := range services {
			services[i] = strings.Replace(services[i], "=", "."+p.zone+"=", 1)
		}
		content = catalogOf(services...)
	}
	writeFile(p.t, p.catalog, content)
}

// start starts the process, or another one after its end.
func (p *publisher) start() {
	p.t.Helper()
	p.process = serveCatalog(p.t, p.address, p.catalog, p.pki.owner)
}

// kill ends the process with SIGKILL.
func (p *publisher) kill() {
	p.t.Helper()
	p.end(p.t, syscall.SIGKILL)
}

// publishing is a row with a publisher.
func publishing(story func(p *publisher, w *watched)) row {
	return func(f *faulty) (truth, func(*watched)) {
		f.t.Helper()
		p := &publisher{faulty: f, catalog: filepath.Join(f.t.TempDir(), "catalog.yaml")}
		p.write("web=192.0.2.1", "api=192.0.2.2", "old=192.0.2.3")
		p.start()
		return unsynced(before), func(w *watched) { story(p, w) }
	}
}

// scripted is a scripted owner in a process of its own. The fault is what a signal
// does to the process in the middle of the second catalog. The signal end ends the
// fault; after SIGKILL a new process is started.
func scripted(fault, end syscall.Signal) row {
	return func(f *faulty) (truth, func(*watched)) {
		f.t.Helper()
		start := func(script string) *process {
			path := filepath.Join(f.t.TempDir(), "script")
			writeFile(f.t, path, strings.ReplaceAll(script, "ZONE", f.zone))
			cmd := exec.Command(os.Args[0], f.address, f.pki.owner.Cert, f.pki.owner.Key, f.pki.owner.CA, path)
			cmd.Env = append(os.Environ(), roleVariable+"=faultowner")
			return startProcess(f.t, cmd)
		}
		o := start("announce" + original + "\nend\nwait 1s\nreset\n---\nannounce\nupsert web web.ZONE 192.0.2.1\nhang\n---\nannounce" + changed + "\nend")
		return unsynced(before), func(w *watched) {
			w.await(f.t, before)
			f.until(func() string { return o.unlogged(1, "ack 2 1") }) // the second stream has begun
			o.signal(fault)
			f.logged("owner is lost", 2)
			w.more(f.t, 5)
			w.expect(ending)
			if o.signal(end); end == syscall.SIGKILL {
				start("announce" + changed + "\nend")
			}
			w.await(f.t, after)
			w.more(f.t, 5)
		}
	}
}

// faults returns the rows of TestFaults by name.
func faults(p *pki) map[string]row {
	rows := map[string]row{
		"empty nonces":      goesOn("nonce empty", ""),
		"repeated nonces":   goesOn("nonce same", ""),
		"no context":        goesOn("context none", ""),
		"wrong context":     goesOn("", "\ncontext wrong"+lies("upsert")+"\ndelete web\ncontext right"),
		"unknown operation": goesOn("", lies("operation 3")+lies("operation 77")+lies("operation 0")),
		"foreign resource":  goesOn("", lies("foreign")),
		"truncated message": goesOn("", lies("truncated")),
		"names of others":   goesOn("", "\nupsert evil evil.other.example 192.0.2.66\nupsert web web.fed.example 192.0.2.66"),
		"refused addresses": goesOn("", "\nupsert evil evil.ZONE 127.0.0.1\nupsert web web.ZONE 169.254.169.254"),
		"flood":             goesOn("", "\nflood 20000 web web.ZONE 192.0.2.1"),
		"sends again for ever": fault{
			script: original + "\nawait\nresend web web.fed.example 192.0.2.66" + again,
			during: func(f *faulty) { f.refusals(500) },
			reset:  true,
		}.row,

		"announced end that is absent": hangs("announce\nupsert web web.ZONE 192.0.2.1"),
		"no header":                    hangs(""),
		"only a header":                hangs("header"),
		"only empty responses":         hangs("end\nend\nend"),
		"everything is refused":        hangs("upsert web web.fed.example 192.0.2.66\nupsert api api.fed.example 192.0.2.66"),
		"cut within a message":         ends("\ncut\nupsert web web.ZONE 192.0.2.66"),
		"cut within the first message": ends("\nreset\n---\ncut\nupsert web web.ZONE 192.0.2.66"),
		"clean end":                    ends("\nstatus OK"),
		"five flaps":                   ends("\nreset" + strings.Repeat("\n---\nupsert web web.ZONE 192.0.2.1\nreset", 5)),
		"five flaps, announced end":    ends("\nreset" + strings.Repeat("\n---\nannounce\nupsert web web.ZONE 192.0.2.1\nreset", 5)),
		"too many pings": fault{script: original + "\nawait\nhang" + again, pings: 5 * time.Minute, during: func(f *faulty) {
			f.logged("interval doubled", 1)
			f.streams(2)
		}}.row,
		"a replica dies":            replicas,
		"comes back with a quarter": half,
		"crashes at the half":       crash,

		"impostor of another authority": impostor(func(f *faulty) credentials.TransportCredentials {
			files := newPKI(f.t).owner
			files.CA = p.owner.CA
			return f.load(files)
		}),
		"impostor with another identity": impostor(func(f *faulty) credentials.TransportCredentials {
			return f.load(p.issue(f.t, "other-"+f.zone, mtls.Leaf{DNSNames: []string{"elsewhere.example"}}))
		}),
		"impostor in plain text": impostor(func(*faulty) credentials.TransportCredentials { return nil }),
		"owner of other consumers": impostor(func(f *faulty) credentials.TransportCredentials {
			files := p.owner
			files.CA = newPKI(f.t).owner.CA
			return f.load(files)
		}),

		"process killed": publishing(func(p *publisher, w *watched) {
			w.through(p.t, p.kill, func() {
				p.write("web=192.0.2.1", "api=192.0.2.9")
				p.start()
			})
		}),
		"process killed five times": publishing(func(p *publisher, w *watched) {
			w.through(p.t, func() {
				for i := range 5 {
					p.kill()
					p.start()
					p.logged("owner is synced", i+2)
				}
			}, func() { p.write("web=192.0.2.1", "api=192.0.2.9") })
		}),
		"process stopped": publishing(func(p *publisher, w *watched) {
			w.through(p.t, func() {
				p.signal(syscall.SIGSTOP)
				p.logged("owner is lost", 1)
			}, func() {
				p.write("web=192.0.2.1", "api=192.0.2.9")
				p.signal(syscall.SIGCONT)
			})
		}),
		"process back without services": publishing(func(p *publisher, w *watched) {
			w.await(p.t, before)
			p.kill()
			p.write()
			w.more(p.t, 2)
			gone := make(truth)
			for name, want := range before {
				gone[name] = want + "|NXDOMAIN"
			}
			w.expect(gone)
			p.start()
			w.await(p.t, truth{"web": "NXDOMAIN", "api": "NXDOMAIN", "old": "NXDOMAIN", "nope": "NXDOMAIN", "evil": "NXDOMAIN"})
			w.more(p.t, 2)
		}),
		"process back with a broken catalog": publishing(func(p *publisher, w *watched) {
			w.through(p.t, func() {
				p.kill()
				p.write("web=nowhere at all", "api=192.0.2.9")
				p.start()
				<-p.done
			}, func() {
				p.write("web=192.0.2.1", "api=192.0.2.9")
				p.start()
			})
		}),
		"process killed within its catalog":  scripted(syscall.SIGKILL, syscall.SIGKILL),
		"process stopped within its catalog": scripted(syscall.SIGSTOP, syscall.SIGCONT),
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		status := fmt.Sprintf("status %v", code)
		// Once after a whole catalog, and once as the first thing on a stream.
		r := fault{script: original + "\nawait\n" + status + "\n---\n" + status + again}
		if code == codes.Unauthenticated || code == codes.InvalidArgument {
			r.during = func(f *faulty) {
				f.logged("owner is parked", 1)
				f.rotate()
				f.logged("owner is parked", 2)
				f.rotate()
			}
		}
		rows[status] = r.row
	}
	return rows
}

// TestFaults leads owners through faults. No fault may cause a wrong answer, for the
// owner's own names or for those of a healthy owner beside it. All rows run at the
// same time, in one CoreDNS.
func TestFaults(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	rows := faults(p)
	healthy := startOwner(t, p.owner, "", simpleService(t, "web", "web.healthy.example", "192.0.2.0"))
	var corefile strings.Builder
	metrics := freeAddress(t)
	fmt.Fprintf(&corefile, ".:PORT {\nbind 127.0.0.1\nprometheus %s\nfederation healthy.example {\nowner %s\n%s\n}\n", metrics, healthy.address, p.tls())
	var d *coreDNS
	var running sync.WaitGroup
	defer running.Wait()
	started := make(chan struct{}) // closed when CoreDNS has started, or has failed to
	var prepared sync.WaitGroup    // every row has started its owner
	var mu sync.Mutex              // guards corefile
	for i, name := range slices.Sorted(maps.Keys(rows)) {
		prepared.Add(1)
		running.Go(func() {
			t.Run(name, func(t *testing.T) {
				var once sync.Once
				defer once.Do(prepared.Done)
				zone := fmt.Sprintf("f%d.example", i)
				f := &faulty{t: t, pki: p, zone: zone, address: freeAddress(t)}
				f.files = p.issue(t, fmt.Sprintf("consumer-%d", i), mtls.Leaf{Name: "consumer", DNSNames: []string{"consumer.example"}})
				first, story := rows[name](f)
				mu.Lock()
				fmt.Fprintf(&corefile, "federation %s {\nname %[2]s,%[3]s\nowner %[2]s %[3]s\ntls %s %s %s\nowner_id %s\nsettle %v\n}\n",
					zone, f.address, f.replica, f.files.Cert, f.files.Key, f.files.CA, ownerID, settle)
				mu.Unlock()
				once.Do(prepared.Done)
				<-started
				if f.d = d; d == nil {
					return // startCoreDNS has failed the test
				}
				story(watch(t, d.address, zone, first))
				f.until(func() string {
					if place.Scrape(t, metrics).Sum("coredns_federation_owner_state", f.address, `state="synced"`) != 1 {
						return "the owner is not synced in the end"
					}
					return ""
				})
			})
		})
	}
	prepared.Wait()
	func() {
		defer close(started)
		d = startCoreDNS(t, corefile.String()+"}\n")
	}()
	d.awaitAnswer(t, "web.healthy.example", dns.TypeA, "NOERROR 192.0.2.0")

	// The healthy owner changes its service until all rows have ended.
	done := make(chan struct{})
	go func() {
		running.Wait()
		close(done)
	}()
	pace := time.NewTicker(200 * time.Millisecond)
	defer pace.Stop()
	for i := 1; ; i++ {
		select {
		case <-done:
			return
		case <-pace.C:
		}
		address := netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}).String()
		mustUpsert(t, healthy, simpleService(t, "web", "web.healthy.example", address))
		start := time.Now()
		d.awaitAnswer(t, "web.healthy.example", dns.TypeA, "NOERROR "+address)
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("an update of a healthy owner took %v", took)
		}
	}
}
