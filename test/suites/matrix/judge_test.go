package matrix

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/reply"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/peers/faultowner"
)

// tick waits until all goroutines are idle, and then checks all answers and states.
func (r *run) tick() {
	if r.dead {
		return
	}
	synctest.Wait()
	mine, other := r.status(r.config.Name), r.status(neighbour)
	attempts := r.network.attempts(r.config.Subscription.Addresses...)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.judgeState(mine, now, attempts)
	r.judgeNeighbour(other, now)
	if n := r.network.connections(r.config.Subscription.Addresses...); n > 1 {
		r.wrongf("%d connections with one owner", n)
	}
	allowed := make(map[string][]option, len(r.names))
	for _, name := range r.names {
		allowed[name] = r.oracle.allowed(name, now)
		for _, b := range r.blocks {
			if got := r.look(b, name); !permits(allowed[name], got) {
				r.wrongf("%s is %v, may be %v", name, got, allowed[name])
			}
		}
	}
	if !r.fresh {
		for _, s := range r.samples {
			if !permits(r.previous[s.name], s.answer) && !permits(allowed[s.name], s.answer) && !permits(r.oracle.allowed(s.name, s.at), s.answer) {
				r.wrongf("%s was %v at %s, %s, may be %v or %v", s.name, s.answer, s.at.Format("15:04:05.000"), s.what,
					r.previous[s.name], allowed[s.name])
			}
		}
	}
	r.samples, r.fresh = r.samples[:0], false
	r.previous = allowed
}

// permits reports whether one of the options is the answer.
func permits(options []option, a answer) bool {
	return slices.ContainsFunc(options, func(o option) bool { return o.allows(a) })
}

// judgeState compares the state of the owner with what it must be.
func (r *run) judgeState(s status.FollowedOwner, now time.Time, attempts int) {
	o := r.oracle
	o.advance(now)
	synced, lost := o.open != nil && o.open.synced, now.After(o.grace.Add(slack))
	switch {
	case s.State == "synced" && !synced && !lost && !s.LastSync.After(o.lostAt): // within the grace
	case s.State == "synced" && !synced:
		from, _, ok := o.window()
		if !ok || s.LastSync.Before(from.Add(-slack)) {
			r.wrongf("owner is synced with %d services, although its catalog may not be complete", s.Services)
			return
		}
		o.complete(false)
	case s.State != "synced" && synced:
		r.wrongf("owner is %v, although its catalog is complete", s.State)
	case s.State != "synced" && now.Before(o.grace.Add(-slack)):
		r.wrongf("owner is %v, although it was lost a moment ago", s.State)
	}
	if r.blind && o.open != nil {
		r.wrongf("a stream is open, although the process has never had a certificate")
	}
	must := len(o.refusedBy) == len(r.config.Subscription.Addresses)
	switch {
	case s.State == "parked" && !must:
		r.wrongf("owner is parked, although only %v of %v have refused", o.refusedBy, r.config.Subscription.Addresses)
	case s.State != "parked" && must && lost:
		r.wrongf("owner is not parked, although all replicas have refused")
	}
	switch {
	case s.State != "parked":
		r.parked = -1
	case r.parked < 0:
		r.parked = attempts
	case attempts > r.parked:
		r.wrongf("%d attempts although the owner is parked", attempts-r.parked)
		r.parked = attempts
	}
	// A good replica must be found beside a bad one, unless the bad one is heard. The
	// return of all replicas is what recover waits for.
	if r.fault && !r.blind && !r.healthy.IsZero() && (o.open == nil || !o.open.said) && s.State != "parked" {
		since := o.lastSaid
		if r.healthy.After(since) {
			since = r.healthy
		}
		// This covers a connection that is not made, a silent stream, and a delay.
		bound := 35 * time.Second
		if r.state == "stale" {
			bound += time.Minute // after many failed attempts the delay is longer
		}
		if now.Sub(since) > bound {
			r.wrongf("a good replica has been up for %v, and nothing was heard for %v", now.Sub(r.healthy), now.Sub(since))
		}
	}
}

// judgeNeighbour checks that the neighbour was not affected: neither its state nor
// its one connection, nor the answers for its names.
func (r *run) judgeNeighbour(s status.FollowedOwner, now time.Time) {
	if s.State != "synced" || s.Stale != 0 {
		r.wrongf("neighbour is %v, %d stale", s.State, s.Stale)
	}
	if n := r.network.attempts(neighbour); n != r.lives {
		r.wrongf("neighbour was dialed %d times by %d processes", n, r.lives)
	}
	ttl := uint32(60)
	if r.config.Rules.Retention > 0 {
		ttl = min(ttl, uint32(r.config.Rules.Retention/time.Second))
	}
	for _, b := range r.blocks {
		for name, address := range map[string]string{"n0": "198.51.100.1", "v1.n0": "198.51.100.1", "n1": fmt.Sprintf("198.51.100.%d", 2+r.version%200), "n2": "198.51.100.250"} {
			want := []option{{kind: zone.Success, address: address, live: true, from: ttl, to: ttl}}
			if name == "n2" && r.version%2 == 0 {
				want = []option{{kind: zone.NameError}}
				if r.oracle.shared {
					want = r.oracle.negative(now)
				}
			}
			if got := r.look(b, name+"."+r.next+"."); !permits(want, got) {
				r.wrongf("neighbour: %s is %v, may be %v", name, got, want)
			}
		}
	}
}

// look asks the block a question, as oracle.allowed has it.
func (r *run) look(b *agent.Block, question string) answer {
	r.looks++
	name, srv := strings.CutSuffix(question, " SRV")
	qtype := dns.TypeA
	if srv {
		qtype = dns.TypeSRV
	}
	z := b.Zone()
	result := z.Lookup(name, qtype, time.Now())
	a := answer{kind: result.Kind}
	if a.kind != zone.Success {
		return a
	}
	if r.oracle.sharing.shares(strings.TrimSuffix(name, ".")) {
		text := z.Lookup(name, dns.TypeTXT, time.Now())
		if all, explained := reply.AppendAnswer(nil, &text, name, 0), b.Explain(z, name, qtype, time.Now()); len(all) < 2 || explained.Holder == nil {
			r.wrongf("%s has the texts %v", name, all)
		}
	}
	var addresses []string
	for _, rr := range reply.AppendAnswer(nil, &result, name, 0) {
		a.ttl = rr.Header().Ttl
		switch rr := rr.(type) {
		case *dns.A:
			addresses = append(addresses, rr.A.String())
		case *dns.SRV:
			label, _, _ := strings.Cut(rr.Target, ".")
			addresses = append(addresses, fmt.Sprintf("%d/%s", rr.Priority, strings.ReplaceAll(label, "-", ".")))
		}
	}
	slices.Sort(addresses)
	a.address, a.stale = strings.Join(addresses, " "), result.IsStale()
	return a
}

// told takes in a fact of an owner. A service that was acknowledged must be visible
// at that moment.
func (r *run) told(address string, f faultowner.Fact) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keep(func() { r.oracle.tell(address, r.network.newest(address), f) })
	if f.What != faultowner.Answered || f.Refusal != "" || r.fresh {
		return
	}
	if r.oracle.open == nil || r.oracle.open.replica != address || r.oracle.open.number != f.Stream {
		return
	}
	if s := r.oracle.understand(f.Response); s.fqdn != "" {
		for _, b := range r.blocks {
			name := s.fqdn + "."
			got, allowed := r.look(b, name), r.oracle.allowed(name, time.Now())
			if !permits(allowed, got) && !r.theirs(name) {
				r.wrongf("%s is %v, may be %v: it was acknowledged before it was visible", name, got, allowed)
			}
		}
	}
}

// theirs reports whether a name is the neighbour's.
func (r *run) theirs(name string) bool {
	return slices.Contains([]string{"n0", "v1.n0", "n1"}, strings.TrimSuffix(name, "."+r.next+"."))
}

// closed takes in that a connection with the owner was closed.
func (r *run) closed(address string, connection int) {
	if address == neighbour {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams++
	r.keep(func() { r.oracle.closed(address, connection) })
}

// keep calls f, which changes the oracle, and adds what is allowed after it to what
// was allowed since the last tick.
func (r *run) keep(f func()) {
	f()
	now := time.Now()
	for _, name := range r.names {
		for _, o := range r.oracle.allowed(name, now) {
			if !slices.Contains(r.previous[name], o) {
				r.previous[name] = append(r.previous[name], o)
			}
		}
	}
}

// sample looks all names up while goroutines run. The answers are judged at the next
// tick.
func (r *run) sample(b *agent.Block, what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.samples) > 3000 {
		return
	}
	for _, name := range r.names {
		r.samples = append(r.samples, sample{time.Now(), name, r.look(b, name), what})
	}
}

// watch samples the versions of a block; it may miss some.
func (r *run) watch(b *agent.Block) {
	for {
		select {
		case <-b.Changed():
			r.sample(b, "after a change")
		case <-b.Detached():
			return
		}
	}
}

// wrongf reports what is wrong, with what is needed to find out why. The caller
// holds the lock.
func (r *run) wrongf(format string, args ...any) {
	r.t.Helper()
	if r.dead {
		return
	}
	r.wrong++
	o := r.oracle
	at := time.Now()
	r.t.Errorf("%s\n  seed %d, cell %v, %v after the fault; %d services, addresses %v, retention %v, settle %v, first %v, kept %v, %v\n"+
		"  what happened before:\n\t%s\n  again: go test ./test/suites/matrix -run '^TestMatrix$/^%s$' -seed %d -all",
		fmt.Sprintf(format, args...), r.seed, r.cell, at.Sub(time.Date(2000, 1, 2, 0, 0, 0, 0, time.UTC)),
		r.services, r.config.Subscription.Addresses, r.config.Rules.Retention, r.config.Rules.Settle, r.first, r.config.Subscription.File != "", &o.sharing,
		strings.Join(o.trace[max(0, len(o.trace)-25):], "\n\t"), strings.ReplaceAll(r.cell.String(), "/", "$/^"), r.seed)
	if r.wrong >= 3 {
		r.dead = true
	}
}

// observer samples answers when the agent reports an update.
type observer struct{ r *run }

// Responded implements agent.Observer.
func (observer) Responded(string, wire.Operation) {}

// Refused implements agent.Observer.
func (observer) Refused(string, federation.Reason) {}

// Ended implements agent.Observer.
func (observer) Ended(string, string) {}

// PersistFailed implements agent.Observer.
func (o observer) PersistFailed(string) {
	o.r.mu.Lock()
	defer o.r.mu.Unlock()
	o.r.wrongf("the catalog was not saved or restored")
}

// Forgotten implements agent.Observer.
func (observer) Forgotten(string) {}

// Visible implements agent.Observer.
func (o observer) Visible(time.Duration) {
	o.r.mu.Lock()
	blocks := o.r.blocks
	o.r.mu.Unlock()
	if len(blocks) > 0 {
		o.r.sample(blocks[0], "when it was published")
	}
}

// follow looks at certificate files once a minute, as mtls.Source does where the system notifies
// of nothing.
func follow(ctx context.Context, source *mtls.Source) error {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			source.Reload()
		case <-ctx.Done():
			return nil
		}
	}
}
