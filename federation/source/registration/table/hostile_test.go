package table

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration/rules"
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

// opened returns a table that knows nothing yet, and a stream with its last answer.
func opened(t *testing.T, r *rules.Rules) (table *Table, s *Stream, last *Answer) {
	t.Helper()
	id, err := mtls.ParseID("spiffe://acme.example/web")
	if err != nil {
		t.Fatal(err)
	}
	table, last = New(Config{Owner: "owner-1", Rules: r}, time.Now()), &Answer{}
	return table, table.Open(1, []mtls.ID{id}, netip.MustParseAddr("192.0.2.1"), func(a Answer) { *last = a }), last
}

// What is wrong with an Active stays wrong when the rules change between its two
// judgements, whatever the rules before have said of it.
func TestRulesChangeBetweenJudgements(t *testing.T) {
	for _, before := range []string{"*.acme.example", "*.other.example"} {
		for name, tt := range map[string]struct {
			active Active
			rule   string
		}{
			"description": {Active{Text: Text{"web.acme.example", "tcp://192.0.2.1:1"}, Description: strings.Repeat("x", 1000)}, rules.Malformed},
			"instance":    {Active{Text: Text{"web.acme.example", "tcp://192.0.2.1:1"}, Instance: "a..b"}, rules.Malformed},
			"metadata":    {Active{Text: Text{"web.acme.example", "tcp://192.0.2.1:1"}, Metadata: map[string]string{"a": strings.Repeat("x", 5000)}}, rules.Malformed},
			"address":     {Active{Text: Text{"web.acme.example", "tcp://127.0.0.1:1"}}, rules.Address},
		} {
			first, second := rulesFor(t, before), rulesFor(t, "web.acme.example")
			table, s, last := opened(t, first)
			offer := table.Judge(first, s, &tt.active)
			table.SetRules(second, nil)
			err := table.Register(s, offer, time.Now())
			if last.Kind != Refused || last.Refusal.Rule != tt.rule || table.Numbers().Pending != 0 {
				t.Errorf("%s, %s before: %v, told %+v", name, before, err, *last)
			}
		}
	}
}

// A provider that registers and clears again and again, while the store is away, takes no
// more memory than its nodes do.
func TestQueueIsBounded(t *testing.T) {
	r := rulesFor(t, "*.acme.example")
	table, s, _ := opened(t, r)
	a := Active{Text: Text{"web.acme.example", "tcp://192.0.2.1:1"}}
	other := Active{Text: Text{"web.acme.example", "tcp://192.0.2.2:1"}}
	for range 20_000 {
		for _, active := range []*Active{&other, &a} {
			if err := table.Register(s, table.Judge(r, s, active), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		table.Clear(s, a.Text)
		table.Deliver(table.Answers())
	}
	if n := len(table.queue); n > 5000 {
		t.Errorf("%d entries wait for two nodes", n)
	}
	table.State(nil, true, time.Now())
	if changes := table.Take(10, time.Now()); len(changes) != 1 || changes[0].Key.URI.String() != other.Node {
		t.Errorf("to be stored: %+v", changes)
	}
}
