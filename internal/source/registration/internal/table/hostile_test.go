package table

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/rules"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

func rulesFor(t *testing.T, services string) *rules.Rules {
	t.Helper()
	r, problems := rules.Parse([]byte("rules:\n- name: all\n  providers: [\"spiffe://acme.example/**\"]\n  services: [\"" + services +
		"\"]\n  addresses: [\"192.0.2.0/24\", \"127.0.0.0/8\"]\n"))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return r
}

func configOf(r *rules.Rules) Config {
	return Config{Owner: "owner-1", Epoch: 9, Rules: r, Expired: func(*node.Node, string) {}}
}

// opened returns a table that knows nothing yet, and a stream with its last answer.
func opened(t *testing.T, r *rules.Rules) (table *Table, s *Stream, last **registrationv1.RegisterResponse) {
	t.Helper()
	id := must.Get(federation.ParseID("spiffe://acme.example/web"))(t)
	table, last = New(configOf(r), time.Now()), new(*registrationv1.RegisterResponse)
	return table, table.OpenStream([]federation.ID{id}, netip.MustParseAddr("192.0.2.1"), func(m *registrationv1.RegisterResponse) { *last = m }), last
}

// activeOf returns an Active of a node, with a change.
func activeOf(service, node string, change func(*registrationv1.Active)) *registrationv1.Active {
	a := &registrationv1.Active{Service: service, Node: node}
	change(a)
	return a
}

// register registers a node that may be registered.
func register(t *testing.T, table *Table, s *Stream, a *registrationv1.Active) {
	t.Helper()
	if refusal := table.Register(s, a, time.Now()); refusal != nil {
		t.Fatal(refusal)
	}
}

// What no rule can allow is refused by the word for it.
func TestRefusedWhateverTheRules(t *testing.T) {
	for name, tt := range map[string]struct {
		active *registrationv1.Active
		rule   string
	}{
		"service":     {activeOf("web..example", "tcp://192.0.2.1:1", func(*registrationv1.Active) {}), rules.Malformed},
		"node":        {activeOf("web.acme.example", "192.0.2.1:1", func(*registrationv1.Active) {}), rules.Malformed},
		"description": {activeOf("web.acme.example", "tcp://192.0.2.1:1", func(a *registrationv1.Active) { a.Description = strings.Repeat("x", 1000) }), rules.Malformed},
		"instance":    {activeOf("web.acme.example", "tcp://192.0.2.1:1", func(a *registrationv1.Active) { a.Instance = "a..b" }), rules.Malformed},
		"metadata": {activeOf("web.acme.example", "tcp://192.0.2.1:1", func(a *registrationv1.Active) {
			a.Metadata = map[string]string{"a": strings.Repeat("x", 5000)}
		}), rules.Malformed},
		"address": {activeOf("web.acme.example", "tcp://127.0.0.1:1", func(*registrationv1.Active) {}), rules.Address},
	} {
		table, s, last := opened(t, rulesFor(t, "*.acme.example"))
		refusal := table.Register(s, tt.active, time.Now())
		if refusal == nil || refusal.Rule != tt.rule || (*last).GetRefused().GetRule() != tt.rule || table.Numbers().Pending != 0 {
			t.Errorf("%s: %v, told %v", name, refusal, *last)
		}
	}
}

// A node that is refused while it is published, as it is stored, is not granted afterwards.
func TestRefusedBeforeGranted(t *testing.T) {
	table, s, last := opened(t, rulesFor(t, "*.acme.example"))
	active := &registrationv1.Active{Service: "web.acme.example", Node: "tcp://192.0.2.1:1"}
	register(t, table, s, active)
	table.StoreLocally(time.Now())
	waiting := table.TakeAnswers()
	active.Ttl = durationpb.New(time.Hour)
	if table.Register(s, active, time.Now()) == nil {
		t.Fatal("a ttl of an hour is taken")
	}
	table.DeliverAnswers(waiting)
	if (*last).GetRefused() == nil {
		t.Errorf("the provider was told %v", *last)
	}
}

// A provider that registers and clears again and again, while the store is away, takes no
// more memory than its nodes do.
func TestQueueIsBounded(t *testing.T) {
	table, s, _ := opened(t, rulesFor(t, "*.acme.example"))
	a := &registrationv1.Active{Service: "web.acme.example", Node: "tcp://192.0.2.1:1"}
	other := &registrationv1.Active{Service: "web.acme.example", Node: "tcp://192.0.2.2:1"}
	for range 20_000 {
		register(t, table, s, other)
		register(t, table, s, a)
		table.ClearNode(s, NodeText{a.Service, a.Node})
		table.DeliverAnswers(table.TakeAnswers())
	}
	if n := table.queue.Len(); n > 2 {
		t.Errorf("%d entries wait for two nodes", n)
	}
	table.SetState(nil, true, time.Now())
	if changes := table.TakeChanges(10, time.Now()); len(changes) != 1 || changes[0].Key.URI.String() != other.Node {
		t.Errorf("to be stored: %+v", changes)
	}
}

// A commit that fails may have stored a node: that it is cleared is said to the store all the same.
func TestClearAfterAFailure(t *testing.T) {
	table, s, _ := opened(t, rulesFor(t, "*.acme.example"))
	table.SetState(nil, true, time.Now())
	a := &registrationv1.Active{Service: "web.acme.example", Node: "tcp://192.0.2.1:1"}
	register(t, table, s, a)
	table.TakeChanges(10, time.Now())
	table.RetryTaken()
	table.ClearNode(s, NodeText{a.Service, a.Node})
	if changes := table.TakeChanges(10, time.Now()); len(changes) != 1 || changes[0].Node != nil {
		t.Errorf("to be stored: %+v", changes)
	}
}

// What somebody else has written to the store is published only where the rules of this
// owner and its policy allow it, and is left where it is.
func TestStoreThatLies(t *testing.T) {
	id := must.Get(federation.ParseID("spiffe://acme.example/web"))(t)
	stored := func(version int64, service, uri string) store.VersionedNode {
		name, wrong := federation.ParseFQDN(service)
		at, invalid := node.ParseURI(uri, netip.Addr{})
		must.Do(t, cmp.Or(wrong, invalid))
		return store.VersionedNode{Version: version, Node: &node.Node{
			Key: node.Key{Service: name, URI: at}, TTL: 100 * time.Hour, Provider: id, Rule: "all", Owner: "owner-2", Stream: 7, Since: time.Unix(1, 0).UTC(),
		}}
	}
	state := []store.VersionedNode{
		stored(1, "web.acme.example", "tcp://192.0.2.1:1"), stored(2, "web.acme.example", "tcp://127.0.0.1:1"),
		stored(3, "web.acme.example", "tcp://10.0.0.1:1"), stored(4, "bank.example", "tcp://192.0.2.1:1"),
	}
	published := func(table *Table) (uris []string) {
		for _, s := range table.TakeDirty() {
			for _, n := range s.Nodes {
				uris = append(uris, s.Name.String()+" "+n.URI.String())
			}
		}
		return uris
	}
	allowed := []string{"web.acme.example. tcp://192.0.2.1:1"}
	table := New(configOf(rulesFor(t, "*.acme.example")), time.Now())
	table.SetState(state, true, time.Now())
	if got := published(table); !slices.Equal(got, allowed) {
		t.Errorf("published: %q", got)
	}
	if changes := table.TakeChanges(10, time.Now()); len(changes) > 0 {
		t.Errorf("what others have stored is changed: %+v", changes)
	}
	table.SetRules(rulesFor(t, "*.other.example"), nil)
	if got := published(table); len(got) > 0 || len(table.entries) != len(state) {
		t.Errorf("with other rules: %q", got)
	}
	table.SetRules(rulesFor(t, "*.acme.example"), nil)
	if got := published(table); !slices.Equal(got, allowed) {
		t.Errorf("with the first rules again: %q", got)
	}
}
