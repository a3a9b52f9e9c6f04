package owner

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// listener collects what a registry tells of refusals.
type listener struct {
	mu   sync.Mutex
	told []Refusal
}

func (l *listener) hear(r Refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, r)
}

// expect checks what was told since the last time, once all is quiet.
func (l *listener) expect(t *testing.T, step string, want ...Refusal) {
	t.Helper()
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if diff := cmp.Diff(want, l.told); diff != "" {
		t.Errorf("%s: unexpected refusals (-want +got):\n%s", step, diff)
	}
	l.told = nil
}

// refuse receives a response and refuses it.
func (c *client) refuse(reason string) {
	c.tb.Helper()
	response, _ := c.receive()
	c.request(wire.Nack(response.GetNonce(), response.GetContext(), errors.New(reason)))
}

// TestOnRefusal refuses services and takes them, over several streams.
func TestOnRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told listener
		f := start(t, func(c *Config) { c.Registry.OnRefusal(told.hear) })
		set(t, f.registry, []*federation.Service{service("a", 1), service("b", 1)})
		conn := f.dial(t, consumerID)
		c := subscribe(t, conn)
		loopback := Refusal{"a", consumerID, "endpoints", `"endpoints[0].address: loopback"`}
		c.refuse(`service "a": endpoints[0].address: loopback`)
		c.next()
		c.refuse("no end") // which is no service
		told.expect(t, "refused", loopback)

		upsert(t, f.registry, service("a", 2))
		c.refuse(strings.Repeat("\n", 1000))
		told.expect(t, "a later version", Refusal{"a", consumerID, "other", `"` + strings.Repeat(`\n`, 128) + `"... (1000 bytes)`})

		must.Do(t, c.stream.CloseSend())
		c.status()
		told.expect(t, "gone")

		// Another consumer that takes it says nothing of the first.
		other := subscribe(t, f.dial(t, strangerID))
		other.nextN(3)
		told.expect(t, "another consumer")

		c = subscribe(t, conn)
		c.refuse(`service "a": endpoints[0].address: loopback`)
		told.expect(t, "repeated", loopback)
		c.nextN(2)
		upsert(t, f.registry, service("a", 3))
		c.next()
		told.expect(t, "taken", Refusal{Service: "a", Consumer: consumerID})
		upsert(t, f.registry, service("a", 4))
		c.next()
		told.expect(t, "taken again")

		upsert(t, f.registry, service("a", 5))
		c.refuse("fqdn: taken")
		told.expect(t, "refused again", Refusal{"a", consumerID, "fqdn", `"fqdn: taken"`})
		f.registry.Delete("a")
		c.next()
		told.expect(t, "the service is gone")
		upsert(t, f.registry, service("a", 6))
		c.next()
		told.expect(t, "another service of that name")

		// A consumer may refuse that a service goes, and what has gone meanwhile.
		f.registry.Delete("a")
		c.refuse("no")
		upsert(t, f.registry, service("a", 7))
		synctest.Wait()
		f.registry.Delete("a")
		c.refuse("no")
		told.expect(t, "what has gone")
		if r := &f.registry.refusals; r.standing != 0 || len(r.consumers) != 0 {
			t.Errorf("%d refusals of %v stand, expected none", r.standing, r.consumers)
		}
	})
}

// TestOnRefusalV1Alpha1 refuses a service in the other version of the API.
func TestOnRefusalV1Alpha1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told listener
		f := start(t, func(c *Config) { c.Registry.OnRefusal(told.hear) })
		upsert(t, f.registry, expressible("a", 1))
		c := subscribe1(t, f.dial(t, consumerID))
		response, _ := c.receive()
		c.request(wire.NackV1Alpha1(response.GetNonce(), errors.New("san: unknown")))
		told.expect(t, "refused", Refusal{"a", consumerID, "san", `"san: unknown"`})
		c.nextN(1)
		upsert(t, f.registry, expressible("a", 2))
		c.nextN(1)
		told.expect(t, "taken", Refusal{Service: "a", Consumer: consumerID})
	})
}

// TestStandingRefusalsAreBounded refuses more services than are remembered. One that
// is not remembered is not told, so that all that is told can be taken back.
func TestStandingRefusalsAreBounded(t *testing.T) {
	r := NewRegistry()
	var told listener
	r.OnRefusal(told.hear)
	var changed []*wire.Encoded
	var names []string
	for i := range maxStanding/2 + 1 {
		s := encoded(t, service(fmt.Sprintf("s%d", i), 1))
		changed, names = append(changed, s), append(names, s.Name())
	}
	r.UpdateEncoded(changed, nil)
	for _, name := range names {
		r.refused("a", name, "")
		r.refused("b", name, "")
	}
	if r.refusals.standing != maxStanding || len(told.told) != maxStanding {
		t.Errorf("%d refusals stand of %d that were told, expected %d", r.refusals.standing, len(told.told), maxStanding)
	}
	last := names[len(names)-1]
	r.accepted("a", last)
	r.refused("b", names[0], "") // stands already
	if n := len(told.told); n != maxStanding+1 {
		t.Errorf("%d were told, expected the repeated one and no other", n)
	}
	r.accepted("a", names[0])
	r.refused("a", last, "")
	if n := len(told.told); n != maxStanding+3 {
		t.Errorf("%d were told, expected one for which there is room again", n)
	}
	r.UpdateEncoded(nil, names)
	if r.refusals.standing != 0 || len(r.refusals.consumers) != 0 {
		t.Errorf("%d refusals of services that are gone stand", r.refusals.standing)
	}
	r.refused("a", last, "")
	if n := len(told.told); n != maxStanding+3 {
		t.Error("a refusal of a service that is gone was told")
	}
}

// TestRefusalsWhileServicesComeAndGo refuses and takes services over several streams
// while these come and go. What stands in the end is counted, and none of it is of a
// service that has gone.
func TestRefusalsWhileServicesComeAndGo(t *testing.T) {
	const services = 20
	r := NewRegistry()
	var told listener
	r.OnRefusal(told.hear)
	var all sync.WaitGroup
	for _, consumer := range []string{"a", "b", "c"} {
		all.Go(func() {
			for i := range 5000 {
				name := fmt.Sprintf("s%d", i*7%services)
				if i%3 > 0 {
					r.refused(consumer, name, "")
				} else {
					r.accepted(consumer, name)
				}
			}
		})
	}
	all.Go(func() {
		for i := range 5000 {
			name := fmt.Sprintf("s%d", i%services)
			upsert(t, r, service(name, i))
			if i%2 > 0 {
				r.Delete(name)
			}
		}
	})
	all.Wait()
	standing := 0
	for name, those := range r.refusals.consumers {
		standing += len(those)
		if r.Lookup(name) == nil || len(those) == 0 {
			t.Errorf("%d refusals of %s stand, which is gone or is not refused", len(those), name)
		}
	}
	if standing != r.refusals.standing {
		t.Errorf("%d refusals stand, and %d are counted", standing, r.refusals.standing)
	}
}
