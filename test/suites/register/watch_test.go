package register

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/place/domain"
)

// short returns the answer with these addresses, in the form of domain.Short.
func short(addresses []string) string {
	slices.Sort(addresses)
	return strings.Join(append([]string{"NOERROR"}, addresses...), " ")
}

// prober asks a CoreDNS for all of some names, again and again, and notes each answer
// that is wrong.
type prober struct {
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	until  time.Time // what is answered later is not judged; zero: all is
	asked  int
	rounds int      // in which all names were asked for
	wrong  []string // the first answers that were wrong
	wrongs int
}

const (
	keptWrong = 10
	askers    = 4 // how many queries are asked at a time
)

// probe begins to ask for names, each with its answer in the form of domain.Short,
// until check.
func probe(t testing.TB, d *domain.DNS, want map[string]string) *prober {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &prober{cancel: cancel}
	names := slices.Sorted(maps.Keys(want))
	work := make(chan string)
	t.Cleanup(func() { cancel(); p.running.Wait() })
	p.running.Go(func() {
		defer close(work)
		for {
			for _, name := range names {
				select {
				case work <- name:
				case <-ctx.Done():
					return
				}
			}
			p.mu.Lock()
			p.rounds++
			p.mu.Unlock()
		}
	})
	for range askers {
		p.running.Go(func() {
			pace := time.NewTicker(time.Millisecond) // leaves the processors to others
			defer pace.Stop()
			for name := range work {
				<-pace.C
				p.judge(ctx, d, name, want[name])
			}
		})
	}
	return p
}

// judge asks for one name.
func (p *prober) judge(ctx context.Context, d *domain.DNS, name, want string) {
	begin := time.Now()
	got := d.Answer(ctx, name, dns.TypeA)
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.until.IsZero() && time.Now().After(p.until) {
		return
	}
	p.asked++
	if got == want {
		return
	}
	p.wrongs++
	if len(p.wrong) < keptWrong {
		p.wrong = append(p.wrong, fmt.Sprintf("%s %s: %q, want %q", begin.Format(time.TimeOnly), name, got, want))
	}
}

// judges says until when the answers have to be right.
func (p *prober) judges(until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until = until
}

// more waits until every name was asked for once more, from now on.
func (p *prober) more(t testing.TB) {
	t.Helper()
	rounds := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.rounds
	}
	before := rounds()
	eventually(t, func() string {
		if rounds() < before+2 { // the one that is under way may have passed a name
			return "not all names were asked for"
		}
		return ""
	})
}

// check ends the queries, and fails the test if an answer was wrong.
func (p *prober) check(t testing.TB) {
	t.Helper()
	p.cancel()
	p.running.Wait()
	if p.asked == 0 {
		t.Error("no query was answered")
	}
	if p.wrongs > 0 {
		t.Errorf("%d of %d answers were wrong, the first of them:", p.wrongs, p.asked)
		for _, wrong := range p.wrong {
			t.Error(wrong)
		}
	}
	t.Logf("%d queries were answered, %d rounds", p.asked, p.rounds)
}

// resolved waits until a CoreDNS answers for each name as it should.
func resolved(t testing.TB, d *domain.DNS, want map[string]string) {
	t.Helper()
	for name, answer := range want {
		eventually(t, func() string {
			if got := d.Answer(t.Context(), name, dns.TypeA); got != answer {
				return fmt.Sprintf("%s is %q, want %q", name, got, answer)
			}
			return ""
		})
	}
}

// follower is one more consumer of an owner, with the times at which it was told of
// what.
type follower struct {
	mu        sync.Mutex
	services  map[string]*federation.Service
	withdrawn map[string]time.Time // by fqdn: when it was withdrawn last
	changed   map[string]time.Time // by fqdn: when it was announced or changed last
	withdraws []string             // fqdns, each time
	status    consumer.Status
}

// follow subscribes to owners until the end of the test.
func (w *world) follow(t testing.TB, addresses ...string) *follower {
	t.Helper()
	source := must.Get(mtls.Load(w.Files("coredns"), slog.New(slog.DiscardHandler)))(t)
	id := must.Get(federation.ParseID(ownerID))(t)
	f := &follower{
		services: make(map[string]*federation.Service), withdrawn: make(map[string]time.Time), changed: make(map[string]time.Time),
	}
	m := must.Get(consumer.New(consumer.Config{
		Subscription: consumer.Subscription{Addresses: addresses, Identity: mtls.Consumer{Source: source, IDs: []federation.ID{id}}},
		Rules:        catalog.Rules{Settle: time.Minute, Retention: time.Hour},
		Publish:      f.publish,
	}))(t)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = source.Run(ctx) })
	running.Go(func() { _ = m.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return f
}

func (f *follower) publish(c consumer.Changes) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status = c.Status
	for _, change := range c.Services {
		if change.Op() == catalog.Gone {
			if s := f.services[change.Name]; s != nil {
				f.withdrawn[fqdn(s)] = now
				f.withdraws = append(f.withdraws, fqdn(s))
			}
			delete(f.services, change.Name)
			continue
		}
		s := change.Service()
		f.services[change.Name] = s
		if change.Op() == catalog.Offered {
			f.changed[fqdn(s)] = now
		}
	}
}

func fqdn(s *federation.Service) string { return strings.TrimSuffix(s.FQDN.String(), ".") }

// gone waits until a service is withdrawn, and returns when the follower was told.
func (f *follower) gone(t testing.TB, name string) time.Time {
	t.Helper()
	var at time.Time
	eventually(t, func() string {
		f.mu.Lock()
		defer f.mu.Unlock()
		if at = f.withdrawn[name]; at.IsZero() {
			return name + " is not withdrawn"
		}
		return ""
	})
	return at
}

// withdrawals returns what was withdrawn so far, each time that it was.
func (f *follower) withdrawals() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.withdraws)
}

// synced waits until the follower has the catalog of an open stream with n services,
// and returns it by name.
func (f *follower) synced(t testing.TB, n int) map[string]*federation.Service {
	t.Helper()
	var all map[string]*federation.Service
	eventually(t, func() string {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.status.State != catalog.Synced || len(f.services) != n {
			return fmt.Sprintf("the catalog is %s with %d services, want %d: %v", f.status.StateName(), len(f.services), n, f.status.Failure)
		}
		all = maps.Clone(f.services)
		return ""
	})
	return all
}
