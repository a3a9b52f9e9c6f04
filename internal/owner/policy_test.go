package owner

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

// TestStreamsSeeTheirClass opens streams of several consumers, and looks at what they
// get, at the figures, and at the audit.
func TestStreamsSeeTheirClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		audit := &testlog.Buffer{}
		f := start(t, func(c *Config) {
			c.Window = 16
			c.Audit = audit.Logger()
		})
		for _, name := range []string{"a", "b", "c"} {
			upsert(t, f.registry, service(name, 1))
		}
		f.registry.SetPolicy(policyOf(t, of("a", "*"), of("b", consumerID)))
		conn := f.dial(t, consumerID)
		one, same, other := subscribe(t, conn), subscribe(t, conn), subscribe(t, f.dial(t, strangerID))
		ones := []string{"upsert a 1", "upsert b 1", "end"}
		for i, c := range []struct {
			*client
			want []string
		}{{one, ones}, {same, ones}, {other, []string{"upsert a 1", "end"}}} {
			if diff := cmp.Diff(c.want, c.nextN(len(c.want))); diff != "" {
				t.Errorf("unexpected catalog of stream %d (-want +got):\n%s", i, diff)
			}
		}
		expect := func(step string, want []registry.ClassStats) {
			t.Helper()
			synctest.Wait()
			if diff := cmp.Diff(want, f.server.Stats().Catalogs[""].Classes); diff != "" {
				t.Errorf("%s: unexpected classes (-want +got):\n%s", step, diff)
			}
		}
		expect("two classes", []registry.ClassStats{{Rules: []int{1}, Consumers: 1, Services: 1}, {Rules: []int{1, 2}, Consumers: 2, Services: 2}})
		must.Do(t, same.stream.CloseSend())
		same.status()
		f.registry.SetPolicy(policyOf(t, of("b c", consumerID)))
		if diff := cmp.Diff([]string{"upsert c 1", "delete a"}, one.nextN(2)); diff != "" {
			t.Errorf("another policy: unexpected events (-want +got):\n%s", diff)
		}
		if got := other.next(); got != "delete a" {
			t.Errorf("another policy: %q for the other consumer, expected delete a", got)
		}
		f.registry.Delete("b")
		if got := one.next(); got != "delete b" {
			t.Errorf("a service that is gone: %q, expected delete b", got)
		}
		expect("one of them is told nothing", []registry.ClassStats{{Consumers: 1}, {Rules: []int{1}, Consumers: 1, Services: 1}})
		f.registry.SetPolicy(nil)
		if got := one.next() + " " + other.next(); got != "upsert a 1 upsert a 1" {
			t.Errorf("no policy: %q, expected both to be told a", got)
		}
		expect("no policy", nil)
		synctest.Wait()
		const who = "level=INFO msg=\"service %s\" catalog=\"\" consumer=%s service=%s %s"
		for _, line := range []struct {
			count int
			text  string
		}{
			{2, fmt.Sprintf(who, "told", consumerID, "a", "fqdn=a.example.org rule=1\n")},
			{2, fmt.Sprintf(who, "told", consumerID, "b", "fqdn=b.example.org rule=2\n")},
			{1, fmt.Sprintf(who, "told", strangerID, "a", "fqdn=a.example.org rule=1\n")},
			{1, fmt.Sprintf(who, "told", consumerID, "c", "fqdn=c.example.org rule=1\n")},
			{1, fmt.Sprintf(who, "withdrawn", consumerID, "a", "reason=\"the policy does not tell it\"\n")},
			{1, fmt.Sprintf(who, "withdrawn", strangerID, "a", "reason=\"the policy does not tell it\"\n")},
			{1, fmt.Sprintf(who, "withdrawn", consumerID, "b", "reason=\"it is gone from the catalog\"\n")},
			{1, fmt.Sprintf(who, "told", consumerID, "a", "fqdn=a.example.org rule=0\n")},
			{1, fmt.Sprintf(who, "told", strangerID, "a", "fqdn=a.example.org rule=0\n")},
			{1, fmt.Sprintf(who, "told", strangerID, "c", "fqdn=c.example.org rule=0\n")},
		} {
			if n := audit.Count(line.text); n != line.count {
				t.Errorf("the audit has %d lines %q, expected %d", n, line.text, line.count)
			}
		}
		if n := audit.Count("\n"); n != 12 {
			t.Errorf("the audit has %d lines, expected 12:\n%s", n, audit)
		}
	})
}

// TestRefusalOfWhatIsWithdrawn refuses services that the policy then withdraws, once from
// an open stream and once while the consumer is away. No refusal stands after that.
func TestRefusalOfWhatIsWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told listener
		f := start(t, func(c *Config) { c.Catalogs[""].OnRefusal(told.hear) })
		f.registry.SetPolicy(policyOf(t, stripped(of("a b c", "*"))))
		set(t, f.registry, []*federation.Service{service("a", 1), service("b", 1), service("c", 1)})
		conn := f.dial(t, consumerID)
		c := subscribe(t, conn)
		for range 3 {
			c.refuse("name: not mine")
		}
		c.next()
		refused := func(name string) registry.Refusal {
			return registry.Refusal{Service: name, Consumer: consumerID, Rule: "name: not mine"}
		}
		told.expect(t, "another shape is refused", refused("a"), refused("b"), refused("c"))
		f.registry.SetPolicy(policyOf(t, of("b c", "*")))
		if diff := cmp.Diff([]string{"upsert b 1", "upsert c 1"}, []string{c.next(), c.next()}); diff != "" {
			t.Errorf("unexpected events (-want +got):\n%s", diff)
		}
		told.expect(t, "taken", registry.Refusal{Service: "b", Consumer: consumerID}, registry.Refusal{Service: "c", Consumer: consumerID})
		c.next()
		told.expect(t, "withdrawn", registry.Refusal{Service: "a", Consumer: consumerID})

		upsert(t, f.registry, service("b", 2))
		c.refuse("name: not mine")
		told.expect(t, "refused again", refused("b"))
		must.Do(t, c.stream.CloseSend())
		c.status()
		f.registry.SetPolicy(policyOf(t, of("c", "*")))
		told.expect(t, "gone")
		subscribe(t, conn).nextN(2)
		told.expect(t, "withdrawn while it was away", registry.Refusal{Service: "b", Consumer: consumerID})
	})
}

// TestSlowConsumers has consumers that do not read while much is on its way to them. What
// they lose meanwhile is not told when they read at last, but for the few messages that
// the transport held already.
func TestSlowConsumers(t *testing.T) {
	const services, sent = 500, 100
	for name, tc := range map[string]struct {
		lose func(f *fixture)
		code codes.Code
	}{
		"by policy":  {func(f *fixture) { f.registry.SetPolicy(policyOf(t)) }, codes.OK},
		"by allow":   {func(f *fixture) { f.server.SetAllow(nil) }, codes.Unauthenticated},
		"by trouble": {func(f *fixture) { f.registry.SetUnavailable("test", time.Time{}) }, codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, func(c *Config) { c.Window = MaxWindow })
				for i := range services {
					s := service(fmt.Sprintf("s%03d", i), 1)
					s.Description = strings.Repeat("d", 4<<10)
					upsert(t, f.registry, s)
				}
				c := subscribe(t, f.dial(t, consumerID))
				synctest.Wait()
				tc.lose(f)
				synctest.Wait()
				held, told := map[string]bool{}, 0
			reading:
				for {
					m, err := c.stream.Recv()
					if err != nil {
						if code := status.Code(err); code != tc.code {
							t.Errorf("the stream ended with %v, expected %v", code, tc.code)
						}
						break
					}
					event := must.Get(wire.Decode(m.GetResponse()))(t)
					switch event.Operation {
					case wire.Upsert:
						held[event.Name] = true
						told++
					case wire.Delete:
						if !held[event.Name] {
							t.Errorf("%s is withdrawn, which was never told", event.Name)
						}
						delete(held, event.Name)
					}
					if tc.code == codes.OK && event.Operation == wire.Delete && len(held) == 0 {
						break reading
					}
				}
				if told == 0 || told > sent || tc.code == codes.OK && len(held) > 0 {
					t.Errorf("%d services are told after they are lost, and %d are left", told, len(held))
				}
			})
		})
	}
}
