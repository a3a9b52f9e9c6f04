package agent

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/zone"
)

// told counts the updates that were announced as visible.
type told struct {
	Observer

	visible int
}

func (t *told) Visible(time.Duration) { t.visible++ }

// writer runs an agent with one block and its owners, which have no consumers, until
// the test ends.
func writer(tb testing.TB, names ...string) (*Agent, *Block, []*owner, *told) {
	tb.Helper()
	counts := new(told)
	a := New(Config{Logger: slog.New(slog.DiscardHandler), Observer: counts})
	config := BlockConfig{}
	origin, err := federation.ParseFQDN("fed.example")
	if err != nil {
		tb.Fatal(err)
	}
	owners := make([]*owner, len(names))
	for i, name := range names {
		c := OwnerConfig{Addresses: []string{name}, Retention: time.Hour, Settle: 5 * time.Second}
		owners[i] = newOwner(a, &c)
		config.Owners = append(config.Owners, c)
		config.Zone.Owners = append(config.Zone.Owners, zone.Owner{ID: name, Origins: []federation.FQDN{origin}, TTL: 60, NegativeTTL: 5})
	}
	b := a.newBlock(config)
	b.owners = owners
	a.start()
	tb.Cleanup(a.stop)
	_ = a.do(func(now time.Time) error {
		a.attached, a.active = []*Block{b}, owners
		b.publish(now)
		for i, o := range owners {
			o.join(b, i)
			o.configure(now)
		}
		return nil
	})
	for _, o := range owners {
		if err := o.Opened(tb.Context()); err != nil {
			tb.Fatal(err)
		}
	}
	return a, b, owners, counts
}

// large returns a service with as many endpoints and labels of them as an owner may
// publish, all of which change with the number.
func large(tb testing.TB, name string, n int) *federation.Service {
	tb.Helper()
	fqdn, err := federation.ParseFQDN(name + ".fed.example")
	if err != nil {
		tb.Fatal(err)
	}
	s := &federation.Service{Name: name, FQDN: fqdn}
	for i := range 1000 {
		address, err := federation.ParseAddress(fmt.Sprintf("10.%d.%d.%d", n%200, i/250, i%250+1))
		if err != nil {
			tb.Fatal(err)
		}
		s.Endpoints = append(s.Endpoints, federation.Endpoint{Address: address, Port: 443, Labels: []string{fmt.Sprint("l", i)}})
		s.Instances = append(s.Instances, federation.Instance{
			ID: fmt.Sprint("v", i), Protocol: federation.HTTPS, EndpointSelector: []string{fmt.Sprint("l", i)},
		})
	}
	return s
}

func upsert(s *federation.Service) []consumer.Update {
	return []consumer.Update{{
		Event:    federation.Event{Operation: federation.Upsert, Name: s.Name, Service: s},
		Received: time.Now(),
	}}
}

// firstAddress returns the first address of a name.
func firstAddress(b *Block, name string) string {
	result := b.Zone().Lookup(name, dns.TypeA, time.Now())
	if result.Kind != zone.Success {
		return ""
	}
	var all []string
	for _, rr := range result.Answer(name) {
		all = append(all, rr.(*dns.A).A.String())
	}
	slices.Sort(all)
	return all[0]
}

// TestAnswerAfterPublication acknowledges nothing that queries do not show.
func TestAnswerAfterPublication(t *testing.T) {
	_, b, owners, _ := writer(t, "a")
	for i := range 50 {
		if err := owners[0].Apply(t.Context(), upsert(large(t, "web", i))); err != nil {
			t.Fatal(err)
		}
		if got, want := firstAddress(b, "web.fed.example."), fmt.Sprintf("10.%d.0.1", i); got != want {
			t.Fatalf("web is %q when %q is acknowledged", got, want)
		}
	}
}

// TestOrder holds the writer up while it answers: what is answered is published
// by then, all of a batch together, and nothing is announced yet.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, owners, counts := writer(t, "a", "b")
		synctest.Wait()
		// Answers that nobody takes stop the writer.
		held := make([]chan error, len(owners))
		waiting := make(chan struct{})
		for i, o := range owners {
			held[i] = make(chan error)
			name := string(rune('c' + i))
			go func() {
				a.ops <- op{func(now time.Time) error {
					if i == 0 {
						<-waiting
					}
					update := upsert(large(t, name, 0))
					a.received = append(a.received, update[0].Received)
					return o.catalog.Apply(update[0].Event, now)
				}, held[i]}
			}()
			synctest.Wait()
		}
		close(waiting) // the other op is there for the same batch
		synctest.Wait()
		for i, h := range held {
			for _, name := range []string{"c", "d"} {
				if firstAddress(b, name+".fed.example.") == "" {
					t.Errorf("%s is not published before answer %d", name, i)
				}
			}
			if status := owners[0].status.Load(); counts.visible > 0 || status.Services > 0 {
				t.Errorf("announced before answer %d: %d updates, %d services", i, counts.visible, status.Services)
			}
			if err := <-h; err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
		if status := owners[0].status.Load(); counts.visible != 2 || status.Services != 1 {
			t.Errorf("announced in the end: %d updates, %d services", counts.visible, status.Services)
		}
	})
}

// TestExpensiveService compiles a service without the writer, which is held up,
// for every block that publishes it, and once only.
func TestExpensiveService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, owners, _ := writer(t, "a")
		held := make(chan error)
		a.ops <- op{func(time.Time) error { return nil }, held}
		s, tiny := large(t, "web", 1), large(t, "tiny", 1)
		tiny.Endpoints, tiny.Instances = tiny.Endpoints[:1], tiny.Instances[:1]
		ready := owners[0].prepare(slices.Values([]*federation.Service{s, tiny}))
		if len(ready) != 1 || ready[target{b, s}] == nil {
			t.Fatalf("prepared without the writer: %v", ready)
		}
		<-held
		if err := owners[0].Apply(t.Context(), upsert(s)); err != nil {
			t.Fatal(err)
		}
		if got := firstAddress(b, "web.fed.example."); got != "10.1.0.1" {
			t.Errorf("web is %q", got)
		}
		again := *s
		if ready := owners[0].prepare(slices.Values([]*federation.Service{&again})); len(ready) > 0 {
			t.Error("prepared what is there already")
		}
		other := a.newBlock(b.config)
		other.owners = owners
		if ready := other.prepare(); len(ready) != 1 || ready[target{other, s}] == nil {
			t.Errorf("prepared for another block: %v", ready)
		}
	})
}
