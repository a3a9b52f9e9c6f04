package relay

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/nightly"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
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
	n := *schedules
	if n == 0 {
		n = nightly.Cases(5_000, 400) // TestJudge finds what is wrong in far fewer
	}
	const shards = 4
	for shard := range shards {
		t.Run(strconv.Itoa(shard), func(t *testing.T) {
			t.Parallel()
			for i := shard; i < n && !t.Failed(); i += shards {
				if s := simulate(t, *firstSeed+uint64(i), right); s.failure != "" {
					t.Errorf("%s\nrun it again with: go test ./internal/source/relay -run TestSchedules -schedules 1 -seed %d\n%s",
						s.failure, s.seed, strings.Join(s.trace, "\n"))
				}
			}
		})
	}
}

// TestJudge has the judge find relays that are wrong.
func TestJudge(t *testing.T) {
	t.Parallel()
	for _, m := range []mutant{staysAvailable, publishesEarly, trustsItsFile, trustsRenewals} {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(200) {
				if s := simulate(t, seed, m); s.failure != "" {
					t.Logf("seed %d: %s", seed, s.failure)
					return
				}
			}
			t.Error("it was not found in 200 schedules")
		})
	}
}

// step is how often a simulation is judged.
const step = 500 * time.Millisecond

// revision is a version of a service at the origin.
type revision struct {
	name   string
	number int
	born   int       // the number with which the name came to the origin
	ended  time.Time // when it was changed, withdrawn, or lost with the origin; zero while it holds
}

// simulation is one schedule while it runs.
type simulation struct {
	seed   uint64
	random *rand.Rand
	mutant mutant

	retention time.Duration // of the last consumer
	detect    time.Duration // until a peer that is silent is noticed
	delay     time.Duration // of each link
	kinds     []func()      // of faults that there are
	strict    bool          // nothing lags behind so that another way could be older

	tiers    []*tier // the origin first, the last consumer last
	services map[string]*wire.EncodedService
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
func simulate(t *testing.T, seed uint64, m mutant) *simulation {
	t.Helper()
	s := &simulation{
		seed: seed, random: rand.New(rand.NewPCG(seed, 0)), mutant: m,
		services: make(map[string]*wire.EncodedService), current: make(map[string]*revision), seen: make(map[string]*revision),
	}
	synctest.Test(t, func(*testing.T) { s.run() })
	return s
}

func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

func (s *simulation) run() {
	s.started = time.Now()
	r := s.random
	s.retention = pick(r, 5*time.Second, 10*time.Second, 20*time.Second)
	s.detect = pick(r, time.Second, 3*time.Second, 6*time.Second)
	s.delay = pick(r, 0, 0, 0, step)
	every := []func(){s.change, s.cut, s.restart, s.death, s.rewire, s.renew, s.hang, s.mute}
	lagging := r.IntN(2) == 0
	if !lagging {
		every, s.delay = every[:6], 0
	}
	s.strict = !lagging
	for _, kind := range every {
		if r.IntN(3) > 0 {
			s.kinds = append(s.kinds, kind)
		}
	}
	s.kinds = append(s.kinds, s.change)
	relays := 1 + r.IntN(4)
	s.tiers = []*tier{{name: "origin", simulation: s}}
	for i := range relays {
		s.tiers = append(s.tiers, &tier{name: fmt.Sprintf("relay %d", i+1), simulation: s, relay: true, persist: r.IntN(2) == 0})
	}
	s.tiers = append(s.tiers, &tier{name: "consumer", simulation: s, persist: r.IntN(2) == 0})
	s.tree()
	for range 2 + r.IntN(12) {
		s.change()
	}
	for range len(s.tiers) - 1 {
		s.spans = append(s.spans, span{from: s.started, what: slow})
	}
	s.notef("%d relays, retention %v, a silent peer is noticed after %v, delay %v", relays, s.retention, s.detect, s.delay)
	for _, t := range s.tiers {
		t.start()
	}
	s.complete()
	s.faults(40 + r.IntN(40))
	s.heal()
	s.complete()
	s.faults(r.IntN(20))
	s.die()
	s.forGood = true
	s.faults(40)
	s.judgeEnd()
	for _, t := range slices.Backward(s.tiers) {
		t.stop(false)
	}
	synctest.Wait()
}

// backoff is how long a tier waits before it tries again.
func (s *simulation) backoff() time.Duration { return time.Duration(s.random.IntN(4)) * step }

func (s *simulation) notef(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf("%8v  ", time.Since(s.started))+fmt.Sprintf(format, args...))
}

func (s *simulation) wrongf(format string, args ...any) {
	if s.failure == "" {
		s.failure = fmt.Sprintf("seed %d, after %v: ", s.seed, time.Since(s.started)) + fmt.Sprintf(format, args...)
		s.notef("WRONG: "+format, args...)
	}
}

// last is the consumer that answers.
func (s *simulation) last() *tier { return s.tiers[len(s.tiers)-1] }

// faults lets steps pass with faults in them.
func (s *simulation) faults(steps int) {
	for range steps {
		if s.failure != "" {
			return
		}
		for s.random.IntN(3) == 0 {
			pick(s.random, s.kinds...)()
		}
		s.step()
	}
}

// step lets every tier do what it has to, judges, and lets time pass.
func (s *simulation) step() {
	now := time.Now()
	for progress := true; progress; {
		progress = false
		synctest.Wait()
		for _, t := range s.tiers {
			if t.work(now) {
				progress = true
			}
		}
	}
	for _, t := range s.tiers {
		if s.random.IntN(4) == 0 && t.runs() {
			t.save()
		}
	}
	s.lags(now)
	s.judge(now)
	time.Sleep(step)
}

// any returns one of the tiers that subscribe.
func (s *simulation) any() *tier { return s.tiers[1+s.random.IntN(len(s.tiers)-1)] }

// tree gives every tier one before it.
func (s *simulation) tree() {
	for i, t := range s.tiers[1:] {
		from := s.tiers[i]
		if s.random.IntN(4) == 0 {
			from = s.tiers[s.random.IntN(i+1)]
		}
		if t.from != from {
			s.connect(t, from)
		}
	}
}

// change changes a service at the origin, or in its file while it is down.
func (s *simulation) change() {
	name := fmt.Sprintf("s%d", s.random.IntN(16))
	before := s.current[name]
	if before != nil {
		before.ended = time.Now()
		delete(s.current, name)
		delete(s.services, name)
	}
	origin := s.tiers[0]
	if before != nil && s.random.IntN(2) == 0 {
		s.notef("%s is withdrawn", name)
		if origin.registry != nil {
			origin.registry.Delete(name)
		}
		return
	}
	next := &revision{name: name, number: len(s.all), born: len(s.all)}
	if before != nil {
		next.born = before.born
	}
	if !s.died.IsZero() {
		next.ended = s.died
	}
	s.all, s.current[name] = append(s.all, next), next
	s.notef("%s is now %d", name, next.number)
	e := encode(name, next.number)
	s.services[name] = e
	if origin.registry != nil {
		origin.registry.UpdateEncoded([]*wire.EncodedService{e}, nil)
	}
}

// encode returns a service, which says which revision it is.
func encode(name string, revision int) *wire.EncodedService {
	s := services.At(name+".fed.example", "192.0.2.1")
	s.Description = strconv.Itoa(revision)
	return must.Value(wire.NewEncoded(s))
}

// cut closes the connection of a link, or lets there be one again.
func (s *simulation) cut() {
	t := s.any()
	t.cut = !t.cut
	s.notef("%s is cut: %t", t.name, t.cut)
	if t.to != nil {
		t.close(errReset)
	}
}

// mute has a link swallow what is sent, or let it pass again.
func (s *simulation) mute() {
	if t := s.any(); t.mute.IsZero() {
		s.notef("the link of %s is silent", t.name)
		t.mute = time.Now()
		s.spans = append(s.spans, span{from: t.mute, what: silent})
	} else {
		s.unmute(t)
	}
}

func (s *simulation) unmute(t *tier) {
	s.notef("the link of %s is not silent any more", t.name)
	s.spans.over(t.mute, silent)
	t.mute = time.Time{}
}

// hang stops a process, or lets it go on.
func (s *simulation) hang() {
	switch t := pick(s.random, s.tiers...); {
	case t.end == nil:
	case t.hung.IsZero():
		s.notef("%s hangs", t.name)
		t.hung = time.Now()
		s.spans = append(s.spans, span{from: t.hung})
	default:
		s.resume(t)
	}
}

func (s *simulation) resume(t *tier) {
	now := time.Now()
	t.deaf = now.Add(time.Duration(s.random.Int64N(int64(s.detect/step)+1)) * step)
	s.notef("%s goes on, and reads nothing for %v", t.name, t.deaf.Sub(now))
	if t.to != nil && now.Sub(t.hung) >= s.detect && s.random.IntN(3) > 0 {
		t.close(errReset) // by the other end
	}
	s.spans.over(t.hung, hanging)
	t.hung = time.Time{}
}

// restart ends a process, and mostly starts it again, or starts one that is down.
func (s *simulation) restart() {
	t := s.any()
	if t.end == nil {
		s.start(t)
		return
	}
	gracefully := s.random.IntN(2) == 0 && t.hung.IsZero()
	s.notef("%s ends (gracefully: %t)", t.name, gracefully)
	s.stop(t, gracefully)
	if s.random.IntN(3) > 0 {
		s.start(t)
	}
}

func (s *simulation) start(t *tier) {
	s.notef("%s starts", t.name)
	if t == s.last() {
		clear(s.seen)
		s.unsync = time.Now()
		if t.persist && t.saved != nil {
			s.unsync = t.saved.lastUp
		}
	}
	t.start()
}

func (s *simulation) stop(t *tier, gracefully bool) {
	if !t.hung.IsZero() {
		s.spans.over(t.hung, hanging)
	}
	t.stop(gracefully)
	t.hung = time.Time{}
}

// death ends the origin, or starts it again.
func (s *simulation) death() {
	if s.forGood {
		return
	}
	if s.died.IsZero() {
		s.die()
		return
	}
	s.notef("the origin is back")
	s.died = time.Time{}
	for _, rev := range s.current {
		rev.ended = time.Time{}
	}
	s.tiers[0].start()
}

func (s *simulation) die() {
	if !s.died.IsZero() {
		return
	}
	s.notef("the origin dies")
	s.died = time.Now()
	for _, rev := range s.current {
		rev.ended = s.died
	}
	s.stop(s.tiers[0], false)
}

// rewire has a tier subscribe to another one: perhaps to itself, or in a circle.
func (s *simulation) rewire() {
	if t := s.any(); t.hung.IsZero() {
		s.connect(t, s.tiers[s.random.IntN(len(s.tiers)-1)])
	}
}

// renew has a tier subscribe once more while its stream is well. Its address may lead to
// another tier by now.
func (s *simulation) renew() {
	t := s.any()
	if !t.renew() {
		return
	}
	s.spans = append(s.spans, span{from: time.Now(), to: time.Now(), what: renewing})
	if s.random.IntN(2) == 0 {
		t.from = s.tiers[s.random.IntN(len(s.tiers)-1)]
	}
	s.notef("%s subscribes once more, to %s", t.name, t.from.name)
}

func (s *simulation) connect(t, from *tier) {
	s.notef("%s subscribes to %s", t.name, from.name)
	t.from = from
	if t.replica != nil {
		t.lose(errRewired)
	}
}

// heal ends all faults.
func (s *simulation) heal() {
	s.notef("all faults end")
	for _, t := range s.tiers {
		t.cut = false
		if !t.mute.IsZero() {
			s.unmute(t)
		}
		if !t.hung.IsZero() {
			s.resume(t)
		}
	}
	if !s.died.IsZero() {
		s.death()
	}
	s.tree()
	for _, t := range s.tiers {
		if t.end == nil {
			s.start(t)
		}
	}
}

// complete waits until every tier has what the origin has.
func (s *simulation) complete() {
	why := ""
	for range 20 + 10*len(s.tiers) + int(s.detect/step) {
		if s.failure != "" {
			return
		}
		if why = s.incomplete(); why == "" {
			return
		}
		s.step()
	}
	s.wrongf("nothing is wrong any more, but %s", why)
}

// incomplete says what is missing; "" for nothing.
func (s *simulation) incomplete() string {
	for _, t := range s.tiers[1:] {
		if t.replica == nil || t.replica.catalog.Summary().State != catalog.Synced {
			return t.name + " is not synced"
		}
		if t.relay && t.catalog.Status().Unavailable != "" {
			return t.name + " is not available: " + t.catalog.Status().Unavailable
		}
		n := 0
		for p := range t.replica.catalog.All() {
			rev := s.current[p.Name()]
			if rev == nil || strconv.Itoa(rev.number) != p.Unpack().Description {
				return t.name + " has another " + p.Name()
			}
			n++
		}
		if n != len(s.current) || t.relay && t.registry.Stats().Services != n {
			return fmt.Sprintf("%s has %d services of %d", t.name, n, len(s.current))
		}
	}
	return ""
}

// shown takes what becomes visible at the last consumer. What the origin still has may
// not go before the retention is over.
func (s *simulation) shown(c consumer.Changes) {
	now := time.Now()
	if lost := c.Status.Lost; !lost.IsZero() && (s.unsync.IsZero() || lost.Before(s.unsync)) {
		s.unsync = lost
	}
	strict := s.strict && !s.lags(now)
	for _, change := range c.Services {
		before := s.seen[change.Name]
		if change.Kind() != catalog.Gone {
			number, err := strconv.Atoi(change.Packed.Unpack().Description)
			if err != nil {
				panic(err)
			}
			if strict && before != nil && number < before.number {
				s.wrongf("%s goes back from %d to %d", change.Name, before.number, number)
			}
			s.seen[change.Name] = s.all[number]
			continue
		}
		delete(s.seen, change.Name)
		still := s.current[change.Name]
		if strict && before != nil && still != nil && still.born <= before.number &&
			(s.unsync.IsZero() || now.Before(s.unsync.Add(s.retention))) {
			s.wrongf("%s is withdrawn, which the origin has", change.Name)
		}
	}
	if c.Status.State == catalog.Synced {
		s.unsync = time.Time{}
	}
}

// lags reports whether a relay has lost its owner, and goes on with what it has, or did so only just:
// another way could then be newer.
func (s *simulation) lags(now time.Time) bool {
	for _, t := range s.tiers[1 : len(s.tiers)-1] {
		if t.replica != nil && t.replica.catalog.Summary().State == catalog.Synced && !t.replica.catalog.IsComplete() {
			s.lagged = now
		}
	}
	return now.Sub(s.lagged) <= step
}

// hidden is how much later a loss may be noticed because each relay goes on for the grace: whose
// stream ends meanwhile for another reason counts from then.
func (s *simulation) hidden() time.Duration { return time.Duration(len(s.tiers)-2) * catalog.Grace }

// judge checks what must hold at every moment.
func (s *simulation) judge(now time.Time) {
	if s.last().runs() {
		for _, rev := range s.seen {
			if rev.ended.IsZero() {
				continue
			}
			if until := rev.ended.Add(s.retention + s.hidden()); now.After(until) && now.After(until.Add(s.spans.notice(rev.ended, now, s.detect, s.delay))) {
				s.wrongf("%s is still %d, which ended %v ago", rev.name, rev.number, now.Sub(rev.ended))
			}
		}
	}
	if s.died.IsZero() {
		return
	}
	for _, t := range s.tiers[1 : len(s.tiers)-1] {
		if t.runs() && t.catalog.Status().Unavailable == "" && now.After(s.died.Add(s.hidden()+s.spans.notice(s.died, now, s.detect, s.delay))) {
			s.wrongf("%s is available, %v after the origin has died", t.name, now.Sub(s.died))
		}
	}
}

// judgeEnd lets all tiers run on without the origin: nothing may be left, however they
// are connected.
func (s *simulation) judgeEnd() {
	for _, t := range s.tiers[1:] {
		if !t.hung.IsZero() {
			s.resume(t)
		}
	}
	wait := s.retention + s.hidden() + s.spans.notice(s.died, time.Now(), s.detect, s.delay)
	for range int(wait/step) + 1 {
		if s.failure != "" || !s.last().runs() {
			return
		}
		s.step()
	}
	if n := len(s.seen); n > 0 {
		s.wrongf("%d services are left at the end", n)
	}
}
