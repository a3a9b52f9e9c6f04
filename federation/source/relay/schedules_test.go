package relay

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/race"
)

var (
	firstSeed = flag.Uint64("seed", 1, "the first `seed` of TestSchedules")
	schedules = flag.Int("schedules", 0, "`number` of schedules of TestSchedules; 0 for the usual one")
)

// mutant is a relay that is wrong, to show that the judge finds it.
type mutant string

const (
	right          mutant = ""
	staysAvailable mutant = "stays available while its owner is lost"
	publishesEarly mutant = "publishes before its owner has told everything"
	trustsItsFile  mutant = "publishes what it has restored"
	trustsRenewals mutant = "looks at a path only after a loss"
)

// TestSchedules runs chains of tiers through random faults, and judges them all the time.
func TestSchedules(t *testing.T) {
	t.Parallel()
	n := 1_000 // TestJudge finds what is wrong in far fewer
	switch {
	case *schedules > 0:
		n = *schedules
	case race.Enabled:
		n = 500
	case os.Getenv("NIGHTLY") == "true":
		n = 5_000
	}
	const shards = 4
	sums := make([]figures, shards)
	t.Run("all", func(t *testing.T) {
		for shard := range shards {
			t.Run(strconv.Itoa(shard), func(t *testing.T) {
				t.Parallel()
				for i := shard; i < n && !t.Failed(); i += shards {
					w := simulate(t, *firstSeed+uint64(i), right)
					sums[shard].add(w.figures)
					if w.failure != "" {
						t.Errorf("%s\nrun it again with: go test ./federation/source/relay -run TestSchedules -schedules 1 -seed %d\n%s",
							w.failure, w.seed, strings.Join(w.trace, "\n"))
					}
				}
			})
		}
	})
	var sum figures
	for _, s := range sums {
		sum.add(s)
	}
	t.Logf("%d schedules: %v", n, &sum)
}

// TestJudge has the judge find relays that are wrong.
func TestJudge(t *testing.T) {
	t.Parallel()
	for _, m := range []mutant{staysAvailable, publishesEarly, trustsItsFile, trustsRenewals} {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(200) {
				if w := simulate(t, seed, m); w.failure != "" {
					t.Logf("seed %d: %s", seed, w.failure)
					return
				}
			}
			t.Error("it was not found in 200 schedules")
		})
	}
}

// figures count what a simulation did.
type figures struct {
	steps, faults, losses, answers, stale, syncs int
	simulated                                    time.Duration
}

func (f *figures) add(g figures) {
	f.steps += g.steps
	f.faults += g.faults
	f.losses += g.losses
	f.answers += g.answers
	f.stale += g.stale
	f.syncs += g.syncs
	f.simulated += g.simulated
}

func (f *figures) String() string {
	return fmt.Sprintf("%v simulated in %d steps, %d faults and changes, %d streams lost, %d catalogs complete at the end, %d answers judged, %d of them stale",
		f.simulated.Round(time.Hour), f.steps, f.faults, f.losses, f.syncs, f.answers, f.stale)
}

// step is how often the world is judged.
const step = 500 * time.Millisecond

// revision is a version of a service at the origin.
type revision struct {
	name   string
	number int
	born   int       // the number with which the name came to the origin
	ended  time.Time // when it was changed, withdrawn, or lost with the origin; zero while it holds
}

// world is one schedule while it runs.
type world struct {
	figures

	seed   uint64
	random *rand.Rand
	mutant mutant

	retention time.Duration // of the last consumer
	detect    time.Duration // until a peer that is silent is noticed
	delay     time.Duration // of each link
	kinds     []func()      // of faults that there are
	strict    bool          // nothing lags behind so that another way could be older

	tiers    []*tier // the origin first, the last consumer last
	services map[string]*wire.Encoded
	current  map[string]*revision // at the origin
	all      []*revision          // by number
	died     time.Time            // when the origin did; zero while it lives
	forGood  bool                 // it does not come back
	spans    spans

	seen    map[string]*revision // what the last consumer has
	unsync  time.Time            // since when no stream is synced; zero while one is
	lagged  time.Time            // see lags
	started time.Time
	trace   []string
	failure string
}

// simulate runs the schedule of a seed.
func simulate(t *testing.T, seed uint64, m mutant) *world {
	t.Helper()
	w := &world{
		seed: seed, random: rand.New(rand.NewPCG(seed, 0)), mutant: m,
		services: make(map[string]*wire.Encoded), current: make(map[string]*revision), seen: make(map[string]*revision),
	}
	synctest.Test(t, func(*testing.T) { w.run() })
	return w
}

func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

func (w *world) run() {
	w.started = time.Now()
	r := w.random
	w.retention = pick(r, 5*time.Second, 10*time.Second, 20*time.Second)
	w.detect = pick(r, time.Second, 3*time.Second, 6*time.Second)
	w.delay = pick(r, 0, 0, 0, step)
	every := []func(){w.change, w.cut, w.restart, w.death, w.rewire, w.renew, w.hang, w.mute}
	lagging := r.IntN(2) == 0
	if !lagging {
		every, w.delay = every[:6], 0
	}
	w.strict = !lagging
	for _, kind := range every {
		if r.IntN(3) > 0 {
			w.kinds = append(w.kinds, kind)
		}
	}
	w.kinds = append(w.kinds, w.change)
	relays := 1 + r.IntN(4)
	w.tiers = []*tier{{name: "origin", world: w}}
	for i := range relays {
		w.tiers = append(w.tiers, &tier{name: fmt.Sprintf("relay %d", i+1), world: w, relay: true, persist: r.IntN(2) == 0})
	}
	w.tiers = append(w.tiers, &tier{name: "consumer", world: w, persist: r.IntN(2) == 0})
	w.tree()
	for range 2 + r.IntN(12) {
		w.change()
	}
	for range len(w.tiers) - 1 {
		w.spans = append(w.spans, span{from: w.started, what: slow})
	}
	w.notef("%d relays, retention %v, a silent peer is noticed after %v, delay %v", relays, w.retention, w.detect, w.delay)
	for _, t := range w.tiers {
		t.start()
	}
	w.complete()
	w.faults(40 + r.IntN(40))
	w.heal()
	w.complete()
	w.faults(r.IntN(20))
	w.die()
	w.forGood = true
	w.faults(40)
	w.judgeEnd()
	for _, t := range slices.Backward(w.tiers) {
		t.stop(false)
	}
	synctest.Wait()
	w.simulated = time.Since(w.started)
}

// backoff is how long a tier waits before it tries again.
func (w *world) backoff() time.Duration { return time.Duration(w.random.IntN(4)) * step }

func (w *world) notef(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%8v  ", time.Since(w.started))+fmt.Sprintf(format, args...))
}

func (w *world) wrongf(format string, args ...any) {
	if w.failure == "" {
		w.failure = fmt.Sprintf("seed %d, after %v: ", w.seed, time.Since(w.started)) + fmt.Sprintf(format, args...)
		w.notef("WRONG: "+format, args...)
	}
}

// last is the consumer that answers.
func (w *world) last() *tier { return w.tiers[len(w.tiers)-1] }

// faults lets steps pass with faults in them.
func (w *world) faults(steps int) {
	for range steps {
		if w.failure != "" {
			return
		}
		for w.random.IntN(3) == 0 {
			pick(w.random, w.kinds...)()
			w.figures.faults++
		}
		w.step()
	}
}

// step lets every tier do what it has to, judges, and lets time pass.
func (w *world) step() {
	now := time.Now()
	for progress := true; progress; {
		progress = false
		synctest.Wait()
		for _, t := range w.tiers {
			if t.work(now) {
				progress = true
			}
		}
	}
	for _, t := range w.tiers {
		if w.random.IntN(4) == 0 && t.runs() {
			t.save()
		}
	}
	w.lags(now)
	w.judge(now)
	w.steps++
	time.Sleep(step)
}

// any returns one of the tiers that subscribe.
func (w *world) any() *tier { return w.tiers[1+w.random.IntN(len(w.tiers)-1)] }

// tree gives every tier one before it.
func (w *world) tree() {
	for i, t := range w.tiers[1:] {
		from := w.tiers[i]
		if w.random.IntN(4) == 0 {
			from = w.tiers[w.random.IntN(i+1)]
		}
		if t.from != from {
			w.connect(t, from)
		}
	}
}

// change changes a service at the origin, or in its file while it is down.
func (w *world) change() {
	name := fmt.Sprintf("s%d", w.random.IntN(16))
	before := w.current[name]
	if before != nil {
		before.ended = time.Now()
		delete(w.current, name)
		delete(w.services, name)
	}
	origin := w.tiers[0]
	if before != nil && w.random.IntN(2) == 0 {
		w.notef("%s is withdrawn", name)
		if origin.registry != nil {
			origin.registry.Delete(name)
		}
		return
	}
	next := &revision{name: name, number: len(w.all), born: len(w.all)}
	if before != nil {
		next.born = before.born
	}
	if !w.died.IsZero() {
		next.ended = w.died
	}
	w.all, w.current[name] = append(w.all, next), next
	w.notef("%s is now %d", name, next.number)
	e := encode(name, next.number)
	w.services[name] = e
	if origin.registry != nil {
		origin.registry.UpdateEncoded([]*wire.Encoded{e}, nil)
	}
}

// encode returns a service, which says which revision it is.
func encode(name string, revision int) *wire.Encoded {
	fqdn, err := federation.ParseFQDN(name + ".fed.example")
	if err != nil {
		panic(err)
	}
	address, err := federation.ParseAddress("192.0.2.1")
	if err != nil {
		panic(err)
	}
	e, err := wire.NewEncoded(&federation.Service{
		Name: name, FQDN: fqdn, Description: strconv.Itoa(revision),
		Endpoints: []federation.Endpoint{{Address: address, Port: 80}},
		Instances: []federation.Instance{{ID: "v1", Protocol: federation.HTTP}},
	})
	if err != nil {
		panic(err)
	}
	return e
}

// cut closes the connection of a link, or lets there be one again.
func (w *world) cut() {
	t := w.any()
	t.cut = !t.cut
	w.notef("%s is cut: %t", t.name, t.cut)
	if t.to != nil {
		t.close(errReset)
	}
}

// mute has a link swallow what is sent, or let it pass again.
func (w *world) mute() {
	if t := w.any(); t.mute.IsZero() {
		w.notef("the link of %s is silent", t.name)
		t.mute = time.Now()
		w.spans = append(w.spans, span{from: t.mute, what: silent})
	} else {
		w.unmute(t)
	}
}

func (w *world) unmute(t *tier) {
	w.notef("the link of %s is not silent any more", t.name)
	w.spans.over(t.mute, silent)
	t.mute = time.Time{}
}

// hang stops a process, or lets it go on.
func (w *world) hang() {
	switch t := pick(w.random, w.tiers...); {
	case t.end == nil:
	case t.hung.IsZero():
		w.notef("%s hangs", t.name)
		t.hung = time.Now()
		w.spans = append(w.spans, span{from: t.hung})
	default:
		w.resume(t)
	}
}

func (w *world) resume(t *tier) {
	now := time.Now()
	t.deaf = now.Add(time.Duration(w.random.Int64N(int64(w.detect/step)+1)) * step)
	w.notef("%s goes on, and reads nothing for %v", t.name, t.deaf.Sub(now))
	if t.to != nil && now.Sub(t.hung) >= w.detect && w.random.IntN(3) > 0 {
		t.close(errReset) // by the other end
	}
	w.spans.over(t.hung, hanging)
	t.hung = time.Time{}
}

// restart ends a process, and mostly starts it again, or starts one that is down.
func (w *world) restart() {
	t := w.any()
	if t.end == nil {
		w.start(t)
		return
	}
	gracefully := w.random.IntN(2) == 0 && t.hung.IsZero()
	w.notef("%s ends (gracefully: %t)", t.name, gracefully)
	w.stop(t, gracefully)
	if w.random.IntN(3) > 0 {
		w.start(t)
	}
}

func (w *world) start(t *tier) {
	w.notef("%s starts", t.name)
	if t == w.last() {
		clear(w.seen)
		w.unsync = time.Now()
		if t.persist && t.saved != nil {
			w.unsync = t.saved.lastUp
		}
	}
	t.start()
}

func (w *world) stop(t *tier, gracefully bool) {
	if !t.hung.IsZero() {
		w.spans.over(t.hung, hanging)
	}
	t.stop(gracefully)
	t.hung = time.Time{}
}

// death ends the origin, or starts it again.
func (w *world) death() {
	if w.forGood {
		return
	}
	if w.died.IsZero() {
		w.die()
		return
	}
	w.notef("the origin is back")
	w.died = time.Time{}
	for _, rev := range w.current {
		rev.ended = time.Time{}
	}
	w.tiers[0].start()
}

func (w *world) die() {
	if !w.died.IsZero() {
		return
	}
	w.notef("the origin dies")
	w.died = time.Now()
	for _, rev := range w.current {
		rev.ended = w.died
	}
	w.stop(w.tiers[0], false)
}

// rewire has a tier subscribe to another one: perhaps to itself, or in a circle.
func (w *world) rewire() {
	if t := w.any(); t.hung.IsZero() {
		w.connect(t, w.tiers[w.random.IntN(len(w.tiers)-1)])
	}
}

// renew has a tier subscribe once more while its stream is well. Its address may lead to
// another tier by now.
func (w *world) renew() {
	t := w.any()
	if !t.renew() {
		return
	}
	w.spans = append(w.spans, span{from: time.Now(), to: time.Now(), what: renewing})
	if w.random.IntN(2) == 0 {
		t.from = w.tiers[w.random.IntN(len(w.tiers)-1)]
	}
	w.notef("%s subscribes once more, to %s", t.name, t.from.name)
}

func (w *world) connect(t, from *tier) {
	w.notef("%s subscribes to %s", t.name, from.name)
	t.from = from
	if t.replica != nil {
		t.lose(errRewired)
	}
}

// heal ends all faults.
func (w *world) heal() {
	w.notef("all faults end")
	for _, t := range w.tiers {
		t.cut = false
		if !t.mute.IsZero() {
			w.unmute(t)
		}
		if !t.hung.IsZero() {
			w.resume(t)
		}
	}
	if !w.died.IsZero() {
		w.death()
	}
	w.tree()
	for _, t := range w.tiers {
		if t.end == nil {
			w.start(t)
		}
	}
}

// complete waits until every tier has what the origin has.
func (w *world) complete() {
	why := ""
	for range 20 + 10*len(w.tiers) + int(w.detect/step) {
		if w.failure != "" {
			return
		}
		if why = w.incomplete(); why == "" {
			w.syncs++
			return
		}
		w.step()
	}
	w.wrongf("nothing is wrong any more, but %s", why)
}

// incomplete says what is missing; "" for nothing.
func (w *world) incomplete() string {
	for _, t := range w.tiers[1:] {
		if t.replica == nil || t.replica.catalog.Summary().State != catalog.Synced {
			return t.name + " is not synced"
		}
		if t.relay && t.catalog.Status().Unavailable != "" {
			return t.name + " is not available: " + t.catalog.Status().Unavailable
		}
		n := 0
		for p := range t.replica.catalog.All() {
			rev := w.current[p.Name()]
			if rev == nil || strconv.Itoa(rev.number) != p.Unpack().Description {
				return t.name + " has another " + p.Name()
			}
			n++
		}
		if n != len(w.current) || t.relay && t.registry.Len() != n {
			return fmt.Sprintf("%s has %d services of %d", t.name, n, len(w.current))
		}
	}
	return ""
}

// shown takes what becomes visible at the last consumer. What the origin still has may
// not go before the retention is over.
func (w *world) shown(c consumer.Changes) {
	now := time.Now()
	if lost := c.Status.Lost; !lost.IsZero() && (w.unsync.IsZero() || lost.Before(w.unsync)) {
		w.unsync = lost
		w.losses++
	}
	strict := w.strict && !w.lags(now)
	for _, change := range c.Services {
		before := w.seen[change.Name]
		if change.Op() != catalog.Gone {
			number, err := strconv.Atoi(change.Packed.Unpack().Description)
			if err != nil {
				panic(err)
			}
			if strict && before != nil && number < before.number {
				w.wrongf("%s goes back from %d to %d", change.Name, before.number, number)
			}
			w.seen[change.Name] = w.all[number]
			continue
		}
		delete(w.seen, change.Name)
		still := w.current[change.Name]
		if strict && before != nil && still != nil && still.born <= before.number &&
			(w.unsync.IsZero() || now.Before(w.unsync.Add(w.retention))) {
			w.wrongf("%s is withdrawn, which the origin has", change.Name)
		}
	}
	if c.Status.State == catalog.Synced {
		w.unsync = time.Time{}
	}
}

// lags reports whether a relay has lost its owner, and goes on with what it has, or did so only just:
// another way could then be newer.
func (w *world) lags(now time.Time) bool {
	for _, t := range w.tiers[1 : len(w.tiers)-1] {
		if t.replica != nil && t.replica.catalog.Summary().State == catalog.Synced && !t.replica.catalog.Complete() {
			w.lagged = now
		}
	}
	return now.Sub(w.lagged) <= step
}

// hidden is how much later a loss may be noticed because each relay goes on for the grace: whose
// stream ends meanwhile for another reason counts from then.
func (w *world) hidden() time.Duration { return time.Duration(len(w.tiers)-2) * catalog.Grace }

// judge checks what must hold at every moment.
func (w *world) judge(now time.Time) {
	if w.last().runs() {
		for _, rev := range w.seen {
			w.answers++
			if rev.ended.IsZero() {
				continue
			}
			w.stale++
			if until := rev.ended.Add(w.retention + w.hidden()); now.After(until) && now.After(until.Add(w.spans.notice(rev.ended, now, w.detect, w.delay))) {
				w.wrongf("%s is still %d, which ended %v ago", rev.name, rev.number, now.Sub(rev.ended))
			}
		}
	}
	if w.died.IsZero() {
		return
	}
	for _, t := range w.tiers[1 : len(w.tiers)-1] {
		if t.runs() && t.catalog.Status().Unavailable == "" && now.After(w.died.Add(w.hidden()+w.spans.notice(w.died, now, w.detect, w.delay))) {
			w.wrongf("%s is available, %v after the origin has died", t.name, now.Sub(w.died))
		}
	}
}

// judgeEnd lets all tiers run on without the origin: nothing may be left, however they
// are connected.
func (w *world) judgeEnd() {
	for _, t := range w.tiers[1:] {
		if !t.hung.IsZero() {
			w.resume(t)
		}
	}
	wait := w.retention + w.hidden() + w.spans.notice(w.died, time.Now(), w.detect, w.delay)
	for range int(wait/step) + 1 {
		if w.failure != "" || !w.last().runs() {
			return
		}
		w.step()
	}
	if n := len(w.seen); n > 0 {
		w.wrongf("%d services are left at the end", n)
	}
}
