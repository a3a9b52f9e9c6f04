package relay

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

var (
	faultsFor  = flag.Duration("faults", 45*time.Second, "for how long TestFaults has faults")
	faultsSeed = flag.Uint64("seed", 0, "`seed` of TestFaults; 0 for one of its own")
)

const (
	// noticed is how long it takes until a peer that is silent is noticed: a ping is sent
	// after 30s, and waited for 20s.
	noticed = 51 * time.Second

	lasting = 10 * time.Second // the retention
	pace    = 20 * time.Millisecond

	// recovery is how long it may take until all is well again: a tier that was without the
	// one before for long waits up to a minute before it tries again, and so does the next.
	recovery = 3 * time.Minute

	chains = 2 // of four tiers, at the same time: they wait for most of it
)

// version is an address that a service has had at the origin.
type version struct {
	number int
	born   int       // the number with which the name came
	ended  time.Time // when it was changed, withdrawn or lost with the origin; zero while it holds
}

// address returns one of its own.
func (v *version) address() string {
	return netip.AddrFrom4([4]byte{10, 0, byte(v.number >> 8), byte(v.number)}).String()
}

// span is a time in which a tier was stopped, or its connections were stalled.
type span struct{ from, to time.Time } // to is zero while it lasts

// drama is four tiers that are disturbed at random, and asked all the time.
type drama struct {
	t      *testing.T
	random *rand.Rand
	world  *world
	begun  time.Time
	tiers  []*tierProcess // the origin first, CoreDNS last

	mu       sync.Mutex
	current  map[string]*version // at the origin
	all      []*version          // by number
	died     time.Time           // when the origin was killed; zero while it lives
	spans    []span              // since all was well
	restarts time.Time           // when CoreDNS was started last
	trace    []string

	// Of the answers of the CoreDNS that runs now.
	seen     map[string]*version
	lastLive time.Time // when an answer was live; zero before the first

	counts map[string]int
	live   time.Duration // how long after its end a version was answered as live at most
	worst  time.Duration // and as live or stale
	wrong  []string
}

func (d *drama) notef(format string, args ...any) {
	d.trace = append(d.trace, fmt.Sprintf("%8v  ", time.Since(d.begun).Round(time.Millisecond))+fmt.Sprintf(format, args...))
}

func (d *drama) wrongf(format string, args ...any) {
	if len(d.wrong) < 10 {
		d.wrong = append(d.wrong, fmt.Sprintf(format, args...))
	}
	d.notef("WRONG: "+format, args...)
}

// TestFaults cuts, stalls, kills, stops and restarts four tiers at random, and judges every
// answer of the last one.
func TestFaults(t *testing.T) {
	t.Parallel()
	long(t)
	seed := *faultsSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	for i := range uint64(chains) {
		t.Run(fmt.Sprintf("chain=%d", i), func(t *testing.T) {
			t.Parallel()
			disturbed(t, seed, i)
		})
	}
}

func disturbed(t *testing.T, seed, chain uint64) {
	t.Helper()
	t.Logf("seed %d", seed)
	d := &drama{
		t: t, random: rand.New(rand.NewPCG(seed, chain)), world: newWorld(t), begun: time.Now(),
		current: make(map[string]*version), seen: make(map[string]*version), counts: make(map[string]int),
	}
	for range 20 {
		d.edit()
	}
	origin := d.world.origin(t, d.file())
	first := d.world.relay(t, "first", origin, ownerID, "")
	second := d.world.relay(t, "second", first, relayID, "")
	d.tiers = []*tierProcess{origin, first, second, d.world.coreDNS(t, "coredns", second, relayID, zone, lasting)}
	t.Cleanup(func() {
		for _, n := range d.tiers {
			n.Signal(syscall.SIGCONT)
		}
		if t.Failed() {
			t.Logf("run it again with: REAL_SERVERS=required go test ./test/suites/relay -run TestFaults -seed %d\n%s", seed, strings.Join(d.trace, "\n"))
		}
	})
	d.complete()
	var asking sync.WaitGroup
	stop := make(chan struct{})
	asking.Go(func() { d.ask(stop) })
	for end := time.Now().Add(*faultsFor); time.Now().Before(end); {
		d.disturb()
		if d.random.IntN(4) > 0 {
			d.well(20 * time.Second)
		}
		passes(t, time.Duration(500+d.random.IntN(1000))*time.Millisecond)
	}
	d.complete()
	d.hang(1+d.random.IntN(2), noticed+2*time.Second) // so long that everybody notices it
	d.complete()
	d.kill(0)
	d.mu.Lock()
	died := d.died
	d.mu.Unlock()
	eventually(t, func() string {
		for name := range d.current {
			if a, err := d.last().ask(t.Context(), name+"."+zone); err != nil || a.rcode != dns.RcodeNameError {
				return fmt.Sprintf("%v after the origin was killed for good %s is %v, %v", time.Since(died), name, a, err)
			}
		}
		return ""
	})
	close(stop)
	asking.Wait()
	if len(d.wrong) > 0 {
		t.Errorf("%d answers are wrong; the first ones:\n%s", len(d.wrong), strings.Join(d.wrong, "\n"))
	}
	for _, kind := range []string{"live", "stale", "gone"} {
		if d.counts[kind] == 0 {
			t.Errorf("no answer was %s: %v", kind, d.counts)
		}
	}
	t.Logf("%d faults and changes in %v; answers: %v; after its end a version was answered as live for %v at most, and in all for %v, with a retention of %v",
		len(d.trace), time.Since(d.begun).Round(time.Second), d.counts, d.live.Round(time.Millisecond), d.worst.Round(time.Millisecond), lasting)
}

func (d *drama) last() *tierProcess { return d.tiers[len(d.tiers)-1] }

// file is the text of the origin's catalog.
func (d *drama) file() string {
	addresses := make(map[string]string)
	for name, v := range d.current {
		addresses[name] = v.address()
	}
	return services(addresses)
}

// edit changes or withdraws a service in the origin's file, which it follows.
func (d *drama) edit() { d.put(d.random.IntN(3) > 0) }

// put gives a service another address, or withdraws it, and returns what it is now.
func (d *drama) put(keep bool) (name, address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	name = fmt.Sprintf("s%d", d.random.IntN(12))
	before := d.current[name]
	delete(d.current, name)
	if before == nil || keep {
		next := &version{number: len(d.all), born: len(d.all), ended: d.died}
		if before != nil {
			next.born = before.born
		}
		d.all, d.current[name] = append(d.all, next), next
		address = next.address()
		d.notef("%s is now at %s", name, address)
	} else {
		d.notef("%s is withdrawn", name)
	}
	d.world.Put(d.t, "catalog.yaml", d.file())
	if before != nil && before.ended.IsZero() {
		before.ended = time.Now()
	}
	return name, address
}

// disturb does something at random.
func (d *drama) disturb() {
	some := func(from, to int) time.Duration {
		return time.Duration(from+d.random.IntN(to-from)) * time.Millisecond
	}
	i := d.random.IntN(len(d.tiers))
	gate := d.tiers[i%(len(d.tiers)-1)].gate
	switch d.random.IntN(9) {
	case 0, 1, 2:
		d.edit()
	case 3:
		d.sayf("the connections to %s are cut", d.tiers[i%(len(d.tiers)-1)].Name)
		gate.Cut()
	case 4:
		d.sayf("there is no way to %s", d.tiers[i%(len(d.tiers)-1)].Name)
		gate.Refuse(true)
		gate.Cut()
		passes(d.t, some(500, 5_000))
		gate.Refuse(false)
		d.sayf("there is one again")
	case 5:
		end := d.span()
		d.sayf("the way to %s swallows everything", d.tiers[i%(len(d.tiers)-1)].Name)
		gate.Stall(true)
		passes(d.t, some(500, 6_000))
		gate.Stall(false)
		end()
		d.sayf("it does not any more")
	case 6:
		d.hang(i, some(500, 6_000))
	default:
		d.kill(i)
		passes(d.t, some(0, 5_000))
		d.start(i)
	}
}

func (d *drama) sayf(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notef(format, args...)
}

// span begins one, and returns what ends it.
func (d *drama) span() (end func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := len(d.spans)
	d.spans = append(d.spans, span{from: time.Now()})
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.spans[i].to = time.Now()
	}
}

// notice returns how long it may take CoreDNS in all to notice what has happened at a time.
// A tier that was stopped since reads on as if nothing had happened until it notices, and so
// do those that subscribe to it. d.mu is held.
func (d *drama) notice(since, now time.Time) (sum time.Duration) {
	for _, s := range d.spans {
		to := s.to
		if to.IsZero() {
			to = now
		}
		if !to.Add(noticed).Before(since) {
			sum += min(to.Sub(s.from), max(0, to.Sub(since))) + 2*noticed
		}
	}
	return sum
}

// hang stops a tier for a while.
func (d *drama) hang(i int, lasts time.Duration) {
	end := d.span()
	d.sayf("%s hangs for %v", d.tiers[i].Name, lasts)
	d.tiers[i].Signal(syscall.SIGSTOP)
	passes(d.t, lasts)
	d.tiers[i].Signal(syscall.SIGCONT)
	end()
	d.sayf("%s goes on", d.tiers[i].Name)
}

// kill ends a tier, mostly as a crash does.
func (d *drama) kill(i int) {
	n := d.tiers[i]
	gracefully := d.random.IntN(3) == 0
	d.sayf("%s ends (gracefully: %t)", n.Name, gracefully)
	if gracefully {
		must.Do(d.t, n.Stop())
	} else {
		n.Kill()
	}
	if i > 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.died = time.Now()
	for _, v := range d.current {
		v.ended = d.died
	}
}

// start starts a tier again.
func (d *drama) start(i int) {
	n := d.tiers[i]
	d.mu.Lock()
	d.notef("%s starts", n.Name)
	if i == 0 {
		d.died = time.Time{}
		for _, v := range d.current {
			v.ended = time.Time{}
		}
	}
	if i == len(d.tiers)-1 {
		clear(d.seen)
		d.lastLive, d.restarts = time.Time{}, time.Now()
	}
	d.mu.Unlock()
	must.Do(d.t, n.Start(d.t.Context()))
}

// well changes a service and waits until CoreDNS answers with that as live, which takes an
// open stream to each tier. What was stopped before matters no more then: each tier has read
// on. It reports whether that was so in time.
func (d *drama) well(limit time.Duration) bool {
	name, address := d.put(true)
	for end := time.Now().Add(limit); time.Now().Before(end); passes(d.t, tick) {
		if a, err := d.last().ask(d.t.Context(), name+"."+zone); err == nil && a.address == address && !a.stale() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.spans = nil
			d.notef("all is well")
			return true
		}
	}
	return false
}

// complete waits until CoreDNS answers with what the origin has.
func (d *drama) complete() {
	d.sayf("all faults end")
	if !d.well(recovery) {
		d.t.Fatalf("a change at the origin has not arrived after %v", recovery)
	}
	eventually(d.t, func() string {
		for i := range 12 {
			name := fmt.Sprintf("s%d", i)
			want := ""
			if v := d.current[name]; v != nil {
				want = v.address()
			}
			a, err := d.last().ask(d.t.Context(), name+"."+zone)
			if err != nil || a.address != want || a.stale() || a.rcode == dns.RcodeServerFailure {
				return fmt.Sprintf("%s is %v, %v, want %q", name, a, err, want)
			}
		}
		return ""
	})
}

// ask asks for all names, over and over, and judges what is answered.
func (d *drama) ask(stop <-chan struct{}) {
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		name := fmt.Sprintf("s%d", i%12)
		a, err := d.last().ask(d.t.Context(), name+"."+zone)
		d.mu.Lock()
		if err != nil {
			d.counts["none"]++
		} else {
			d.judge(name, a)
		}
		d.mu.Unlock()
	}
}

// judge judges an answer. d.mu is held.
func (d *drama) judge(name string, a answer) {
	if a.asked.Before(d.restarts) {
		return // perhaps of the process before
	}
	before := d.seen[name]
	switch {
	case a.rcode == dns.RcodeSuccess && a.address != "":
		kind := "live"
		if a.stale() {
			kind = "stale"
		}
		d.counts[kind]++
		i := slices.IndexFunc(d.all, func(v *version) bool { return v.address() == a.address })
		if i < 0 {
			d.wrongf("%s is at %s, which the origin has never said", name, a.address)
			return
		}
		v := d.all[i]
		if before != nil && v.number < before.number {
			d.wrongf("%s goes back from %s to %s", name, before.address(), a.address)
		}
		d.seen[name] = v
		if !a.stale() {
			d.lastLive = a.asked
		}
		if !v.ended.IsZero() {
			late := a.asked.Sub(v.ended)
			d.worst = max(d.worst, late)
			allowed := d.notice(v.ended, a.asked) + slack
			if a.stale() {
				allowed += lasting
			} else {
				d.live = max(d.live, late)
			}
			if late > allowed {
				d.wrongf("%s is at %s %v after that has ended, with a bound of %v: %v", name, a.address, late, allowed, a)
			}
			if a.stale() && late+a.ttl > allowed {
				d.wrongf("%s is at %s with a TTL of %v, %v after that has ended", name, a.address, a.ttl, late)
			}
		}
	case a.rcode == dns.RcodeNameError:
		d.counts["gone"]++
		delete(d.seen, name)
		v := d.current[name]
		if v != nil && before != nil && v.born <= before.number && !d.lastLive.IsZero() && a.at.Before(d.lastLive.Add(lasting-time.Second)) {
			d.wrongf("%s is gone, which the origin has, %v after the last answer that was live", name, a.at.Sub(d.lastLive))
		}
	default:
		d.counts[dns.RcodeToString[a.rcode]]++
	}
}
