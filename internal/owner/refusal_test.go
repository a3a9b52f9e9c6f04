package owner

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// listener collects what a registry tells of refusals.
type listener struct {
	mu   sync.Mutex
	told []registry.Refusal
}

func (l *listener) hear(r registry.Refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, r)
}

// expect checks what was told since the last time, once all is quiet.
func (l *listener) expect(t *testing.T, step string, want ...registry.Refusal) {
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
	c.request(wire.Answer(response.GetNonce(), response.GetContext(), &federation.InvalidError{Rule: reason}))
}

// TestOnRefusal refuses services and takes them, over several streams.
func TestOnRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told listener
		f := start(t, func(c *Config) { c.Catalogs[""].OnRefusal(told.hear) })
		set(t, f.registry, []*federation.Service{service("a", 1), service("b", 1)})
		conn := f.dial(t, consumerID)
		c := subscribe(t, conn)
		loopback := registry.Refusal{Service: "a", Consumer: consumerID, Rule: "endpoints[0].address: loopback"}
		c.refuse(`service "a": endpoints[0].address: loopback`)
		c.next()
		c.refuse("no end") // which is no service
		told.expect(t, "refused", loopback)

		upsert(t, f.registry, service("a", 2))
		c.refuse(strings.Repeat("\n", 1000))
		told.expect(t, "a later version", registry.Refusal{Service: "a", Consumer: consumerID, Rule: strings.Repeat(`\n`, 256) + `... (1000 bytes)`})

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
		told.expect(t, "taken", registry.Refusal{Service: "a", Consumer: consumerID})
		upsert(t, f.registry, service("a", 4))
		c.next()
		told.expect(t, "taken again")

		upsert(t, f.registry, service("a", 5))
		c.refuse("fqdn: taken")
		told.expect(t, "refused again", registry.Refusal{Service: "a", Consumer: consumerID, Rule: "fqdn: taken"})
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
		if refused := f.registry.RefusedServices(consumerID); len(refused) != 0 {
			t.Errorf("refusals of %v stand, expected none", refused)
		}
	})
}
