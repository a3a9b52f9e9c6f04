package domain

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/consumer"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// Question is one that a Prober asks.
type Question struct {
	Name string
	Type uint16
}

// Prober asks a CoreDNS all the time, and notes each answer that is wrong.
type Prober struct {
	dns  *DNS
	stop func() // ends the queries, and waits for their end

	mu     sync.Mutex
	asked  int
	rounds int      // in which all was asked
	wrong  []string // the first answers that were wrong
	wrongs int
}

// keptWrong is how many wrong answers a failure shows.
const keptWrong = 10

// Probe asks a CoreDNS for all of want, again and again, so many questions at a time, until
// Check. The answers are in the form of Short. The caller does not change want.
func Probe(t testing.TB, d *DNS, askers int, want map[Question]string) *Prober {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	p := &Prober{dns: d, stop: func() { cancel(); running.Wait() }}
	t.Cleanup(p.stop)
	questions, work := slices.Collect(maps.Keys(want)), make(chan Question)
	running.Go(func() {
		defer close(work)
		for {
			for _, q := range questions {
				select {
				case work <- q:
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
		running.Go(func() {
			pace := time.NewTicker(time.Millisecond) // leaves the processors to others
			defer pace.Stop()
			for q := range work {
				<-pace.C
				p.judge(ctx, q, want[q])
			}
		})
	}
	return p
}

// judge asks one question.
func (p *Prober) judge(ctx context.Context, q Question, want string) {
	begin := time.Now()
	got := p.dns.Answer(ctx, q.Name, q.Type)
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	if got == want {
		return
	}
	p.wrongs++
	if len(p.wrong) < keptWrong {
		p.wrong = append(p.wrong, fmt.Sprintf("%s %s %s: %q, want %q", begin.Format(time.TimeOnly), q.Name, dns.TypeToString[q.Type], got, want))
	}
}

// Rounds returns how often everything was asked so far.
func (p *Prober) Rounds() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rounds
}

// Check ends the queries, and fails the test if an answer was wrong.
func (p *Prober) Check(t testing.TB) {
	t.Helper()
	p.stop()
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

// Follow tells publish what one more consumer of the owners is told, until the end of the
// test.
func Follow(t testing.TB, files mtls.Files, ownerID string, addresses []string, publish func(consumer.Changes)) {
	t.Helper()
	source := must.Get(mtls.Load(files, slog.New(slog.DiscardHandler)))(t)
	id := must.Get(federation.ParseID(ownerID))(t)
	mirror := must.Get(consumer.New(consumer.Config{
		Subscription: consumer.Subscription{Addresses: addresses, Identity: mtls.Consumer{Source: source, IDs: []federation.ID{id}}},
		Rules:        catalog.Rules{Settle: time.Minute, Retention: time.Hour},
		Publish:      publish,
	}))(t)
	must.Run(t, source.Run)
	must.Run(t, mirror.Run)
}
