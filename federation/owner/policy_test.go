package owner

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/policy"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/testlog"
)

// policyOf returns the policy of the rules, which must be without mistakes.
func policyOf(tb testing.TB, rules ...policy.Rule) *policy.Policy {
	tb.Helper()
	p, mistakes := policy.New(rules)
	if len(mistakes) > 0 {
		tb.Fatalf("the policy has mistakes: %v", mistakes)
	}
	return p
}

// of returns a rule that tells the identities of the services with these names, as
// service makes them.
func of(names string, ids ...string) policy.Rule {
	r := policy.Rule{To: ids}
	for name := range strings.FieldsSeq(names) {
		r.FQDNs = append(r.FQDNs, name+".example.org")
	}
	return r
}

// stripped returns the rule without descriptions. Show renders an upsert by it as
// "upsert a".
func stripped(r policy.Rule) policy.Rule {
	r.Strip = []string{"description"}
	return r
}

// TestPolicyIsEnforcedForOpenSubscriptions changes the policy, and services under it. A
// subscriber that is told everything never notices.
func TestPolicyIsEnforcedForOpenSubscriptions(t *testing.T) {
	r := NewRegistry()
	for _, name := range []string{"a", "b", "c", "d"} {
		upsert(t, r, service(name, 1))
	}
	one, two, whole := r.SubscribeAs([]federation.ID{idOf(t, consumerID)}), r.SubscribeAs([]federation.ID{idOf(t, strangerID)}), r.Subscribe()
	if got := [][]string{drain(one), drain(two)}; len(got[0]) != 5 || len(got[1]) != 5 {
		t.Errorf("without a policy the catalogs are %v, expected four services and their end", got)
	}
	drain(whole)
	for _, step := range []struct {
		name       string
		do         func()
		one, two   []string
		everything []string
	}{
		{
			"a policy comes", func() {
				r.SetPolicy(policyOf(t, of("a b", consumerID), stripped(of("b c", strangerID))))
			},
			[]string{"delete c", "delete d"},
			[]string{"upsert b", "upsert c", "delete a", "delete d"},
			nil,
		},
		{
			"services change", func() {
				upsert(t, r, service("a", 2))
				upsert(t, r, service("b", 2))
				r.Delete("c")
				upsert(t, r, service("d", 2))
			},
			[]string{"upsert a 2", "upsert b 2"},
			[]string{"delete c"}, // the description of b is not told, so nothing has changed
			[]string{"upsert a 2", "upsert b 2", "upsert d 2", "delete c"},
		},
		{
			"a service moves into another view", func() {
				moved := service("a", 3)
				moved.FQDN = service("c", 1).FQDN
				upsert(t, r, moved)
			},
			[]string{"delete a"},
			[]string{"upsert a"},
			[]string{"upsert a 3"},
		},
		{
			"the same policy in another order", func() {
				r.SetPolicy(policyOf(t, stripped(of("b c", strangerID)), of("a b", consumerID)))
			},
			nil, nil, nil,
		},
		{
			"another shape, and something new", func() {
				r.SetPolicy(policyOf(t, stripped(of("b", consumerID)), of("b d", strangerID), of("d", consumerID)))
			},
			[]string{"upsert d 2", "upsert b"},
			[]string{"upsert d 2", "upsert b 2", "delete a"},
			nil,
		},
		{"nothing for anyone", func() { r.SetPolicy(policyOf(t)) }, []string{"delete b", "delete d"}, []string{"delete b", "delete d"}, nil},
		{
			"a new catalog that is for nobody", func() { set(t, r, []*federation.Service{service("b", 3), service("x", 1)}) },
			nil, nil,
			[]string{"upsert x 1", "upsert b 3", "delete a", "delete d"},
		},
		{"no policy", func() { r.SetPolicy(nil) }, []string{"upsert b 3", "upsert x 1"}, []string{"upsert b 3", "upsert x 1"}, nil},
	} {
		step.do()
		for i, told := range []struct {
			s    *Subscription
			want []string
		}{{one, step.one}, {two, step.two}, {whole, step.everything}} {
			if diff := cmp.Diff(told.want, drain(told.s)); diff != "" {
				t.Errorf("%s: unexpected events of subscriber %d (-want +got):\n%s", step.name, i, diff)
			}
		}
	}
	for _, s := range []*Subscription{one, two, whole} {
		s.Close()
	}
	if len(r.classes) != 0 {
		t.Errorf("%d classes are left behind", len(r.classes))
	}
}

// TestPolicyChangesWhileACatalogIsTaken changes the policy when a part of the catalog is
// taken. Each service that is told then is told once.
func TestPolicyChangesWhileACatalogIsTaken(t *testing.T) {
	r := NewRegistry()
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		upsert(t, r, service(name, 1))
	}
	r.SetPolicy(policyOf(t, of("a b d", consumerID)))
	s := r.SubscribeAs([]federation.ID{idOf(t, consumerID)})
	defer s.Close()
	unsent := func(want int) {
		t.Helper()
		if got := r.stats(CatalogStats{}).Unsent; got != want {
			t.Errorf("%d services are unsent, expected %d", got, want)
		}
	}
	unsent(3)
	got := takeN(t, s, 1) // a
	unsent(2)
	r.SetPolicy(policyOf(t, of("a b c e", consumerID)))
	unsent(4)                            // b, c and e; and d, which will be passed over
	got = append(got, takeN(t, s, 2)...) // b and the end marker
	r.SetPolicy(policyOf(t, of("d", consumerID)))
	unsent(2) // that a and b are gone; d counts only for who has not passed over it
	r.SetPolicy(policyOf(t, of("a d", consumerID)))
	got = append(got, drain(s)...)
	want := []string{"upsert a 1", "upsert b 1", "end", "upsert d 1", "delete b"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unexpected events (-want +got):\n%s", diff)
	}
	unsent(0)
}

// TestHiddenAndShownAgain hides services that are pending. What was never told is
// forgotten, and what was told is withdrawn.
func TestHiddenAndShownAgain(t *testing.T) {
	r := NewRegistry()
	upsert(t, r, service("told", 1))
	shown, hidden := policyOf(t, of("told untold", consumerID)), policyOf(t)
	r.SetPolicy(shown)
	s := r.SubscribeAs([]federation.ID{idOf(t, consumerID)})
	defer s.Close()
	drain(s)
	upsert(t, r, service("told", 2))
	upsert(t, r, service("untold", 1))
	r.SetPolicy(hidden)
	if diff := cmp.Diff([]string{"delete told"}, drain(s)); diff != "" {
		t.Errorf("hidden: unexpected events (-want +got):\n%s", diff)
	}
	r.SetPolicy(shown)
	r.SetPolicy(hidden)
	if got := drain(s); got != nil {
		t.Errorf("shown and hidden again: told %v, expected nothing", got)
	}
}

// TestManyHiddenServices takes from a catalog of which nearly nothing is for the
// subscriber. Each call of take is short, and Next waits for none of that.
func TestManyHiddenServices(t *testing.T) {
	r := NewRegistry()
	services := catalogOf(3*maxSkipped + 10)
	set(t, r, services)
	const only = "only"
	upsert(t, r, service(only, 1))
	r.SetPolicy(policyOf(t, of(only, consumerID)))
	s := r.SubscribeAs([]federation.ID{idOf(t, consumerID)})
	defer s.Close()
	empty := 0
	var got []string
	for len(got) < 2 {
		updates := s.take(nil, 10)
		for _, u := range updates {
			got = append(got, show(u.decoded()))
		}
		if len(updates) > 0 {
			continue
		}
		empty++
		select {
		case <-s.wake:
		default:
			t.Fatal("nothing says that there may be more")
		}
	}
	if empty < 2 {
		t.Errorf("%d calls passed over all hidden services, expected 2 at least", empty)
	}
	if diff := cmp.Diff([]string{"upsert " + only + " 1", "end"}, got); diff != "" {
		t.Errorf("unexpected events (-want +got):\n%s", diff)
	}
}

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
		expect := func(step string, want []ClassStats) {
			t.Helper()
			synctest.Wait()
			if diff := cmp.Diff(want, f.server.Stats().Catalogs[""].Classes); diff != "" {
				t.Errorf("%s: unexpected classes (-want +got):\n%s", step, diff)
			}
		}
		expect("two classes", []ClassStats{{Rules: []int{1}, Consumers: 1, Services: 1}, {Rules: []int{1, 2}, Consumers: 2, Services: 2}})
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
		expect("one of them is told nothing", []ClassStats{{Consumers: 1}, {Rules: []int{1}, Consumers: 1, Services: 1}})
		f.registry.SetPolicy(nil)
		if got := one.next() + " " + other.next(); got != "upsert a 1 upsert a 1" {
			t.Errorf("no policy: %q, expected both to be told a", got)
		}
		expect("no policy", nil)
		f.server.SetAudit(nil)
		f.registry.Delete("a")
		one.next()
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

// TestAuditOfAVersionThatCannotExpress tells a consumer of v1alpha1 of a service, which
// then becomes one that this version cannot express.
func TestAuditOfAVersionThatCannotExpress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		audit := &testlog.Buffer{}
		f := start(t, func(c *Config) {
			c.Window = 16
			c.Audit = audit.Logger()
		})
		set(t, f.registry, []*federation.Service{expressible("a", 1), service("b", 1)}) // so the catalog is never complete
		c := subscribe1(t, f.dial(t, consumerID))
		got := c.nextN(1)
		upsert(t, f.registry, service("a", 2))
		got = append(got, c.nextN(1)...)
		f.registry.Delete("a")
		upsert(t, f.registry, expressible("a", 3))
		got = append(got, c.nextN(1)...)
		if diff := cmp.Diff([]string{"CREATE a 1", "DELETE a", "CREATE a 3"}, got); diff != "" {
			t.Errorf("unexpected messages (-want +got):\n%s", diff)
		}
		synctest.Wait()
		told, withdrawn := audit.Count("service told"), audit.Count("reason=\"the version of the API cannot express it\"")
		if told != 2 || withdrawn != 1 || audit.Count("\n") != 3 {
			t.Errorf("the audit has other lines than that the service is told, withdrawn and told:\n%s", audit)
		}
	})
}

// TestRefusalOfWhatIsWithdrawn refuses services that the policy then withdraws, once from
// an open stream and once while the consumer is away. No refusal stands after that.
func TestRefusalOfWhatIsWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told listener
		f := start(t, func(c *Config) { c.Registry.OnRefusal(told.hear) })
		f.registry.SetPolicy(policyOf(t, stripped(of("a b c", "*"))))
		set(t, f.registry, []*federation.Service{service("a", 1), service("b", 1), service("c", 1)})
		conn := f.dial(t, consumerID)
		c := subscribe(t, conn)
		for range 3 {
			c.refuse("name: not mine")
		}
		c.next()
		refused := func(name string) Refusal { return Refusal{name, consumerID, "name", `"name: not mine"`} }
		told.expect(t, "another shape is refused", refused("a"), refused("b"), refused("c"))
		f.registry.SetPolicy(policyOf(t, of("b c", "*")))
		if diff := cmp.Diff([]string{"upsert b 1", "upsert c 1"}, []string{c.next(), c.next()}); diff != "" {
			t.Errorf("unexpected events (-want +got):\n%s", diff)
		}
		told.expect(t, "taken", Refusal{Service: "b", Consumer: consumerID}, Refusal{Service: "c", Consumer: consumerID})
		c.next()
		told.expect(t, "withdrawn", Refusal{Service: "a", Consumer: consumerID})

		upsert(t, f.registry, service("b", 2))
		c.refuse("name: not mine")
		told.expect(t, "refused again", refused("b"))
		must.Do(t, c.stream.CloseSend())
		c.status()
		f.registry.SetPolicy(policyOf(t, of("c", "*")))
		told.expect(t, "gone")
		subscribe(t, conn).nextN(2)
		told.expect(t, "withdrawn while it was away", Refusal{Service: "b", Consumer: consumerID})
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
		"by trouble": {func(f *fixture) { f.registry.SetUnavailable("test") }, codes.Unavailable},
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
					event := must.Get(wire.Decode(m.GetResponse(), wire.AnyAddress()))(t)
					switch event.Operation {
					case federation.Upsert:
						held[event.Name] = true
						told++
					case federation.Delete:
						if !held[event.Name] {
							t.Errorf("%s is withdrawn, which was never told", event.Name)
						}
						delete(held, event.Name)
					}
					if tc.code == codes.OK && event.Operation == federation.Delete && len(held) == 0 {
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

// TestHold changes the catalog and the policy in one edit. Nobody is told of what is true in the
// middle of it, not even of what was taken before and is not sent yet.
func TestHold(t *testing.T) {
	r := NewRegistry()
	upsert(t, r, service("a", 1))
	upsert(t, r, service("b", 1))
	r.SetPolicy(policyOf(t, of("b", consumerID)))
	s := r.SubscribeAs([]federation.ID{idOf(t, consumerID)})
	defer s.Close()
	drain(s)
	upsert(t, r, service("b", 2))
	taken := s.take(nil, 1)

	release := r.Hold()
	r.SetPolicy(policyOf(t, of("a b c", consumerID)))
	upsert(t, r, service("c", 1))
	late := r.SubscribeAs([]federation.ID{idOf(t, consumerID)})
	defer late.Close()
	if got := drain(s); len(got) > 0 {
		t.Errorf("during the edit %q is told", got)
	}
	if diff := cmp.Diff([]string{"upsert b 2", "end"}, drain(late)); diff != "" {
		t.Errorf("one that comes during the edit is told (-want +got):\n%s", diff)
	}
	if s.withdrawn(&taken[0]) || show(taken[0].decoded()) != "upsert b 2" {
		t.Error("during the edit the policy of its middle is in force")
	}
	r.Delete("a")
	select { // what there was to take before the edit
	case <-s.wake:
	default:
	}
	release()
	<-s.wake
	if diff := cmp.Diff([]string{"upsert c 1"}, drain(s)); diff != "" {
		t.Errorf("after the edit (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"upsert c 1"}, drain(late)); diff != "" {
		t.Errorf("after the edit one that came during it is told (-want +got):\n%s", diff)
	}
}
