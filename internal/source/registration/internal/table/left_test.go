package table

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/store"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// What another owner has left behind is published for a convergence period, for another one
// where the process was suspended, and while its provider is about to be stored here.
func TestLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rulesFor(t, "*.acme.example")
		config := configOf(r)
		config.Convergence = 8 * time.Second
		table := New(config, time.Now())
		id := must.Get(federation.ParseID("spiffe://acme.example/web"))(t)
		n := &node.Node{
			Key: node.Key{Service: must.Get(federation.ParseFQDN("web.acme.example"))(t), URI: must.Get(node.ParseURI("tcp://192.0.2.1:1", netip.Addr{}))(t)},
			TTL: 30 * time.Second, Provider: id, Rule: "all", Owner: "owner-2", Stream: 7, Since: time.Unix(0, 0).UTC(),
		}
		table.SetState([]store.VersionedNode{{Node: n, Version: 1}}, true, time.Now())
		published := 0
		expect := func(when string, want int) {
			t.Helper()
			table.ExpireDue(time.Now())
			for _, s := range table.TakeDirty() {
				published = len(s.Nodes)
			}
			if published != want {
				t.Errorf("%s: %d nodes are published, want %d", when, published, want)
			}
		}
		table.OwnerRestarted(config.Owner, 2, time.Now())
		table.OwnerRestarted("owner-2", 2, time.Now())
		time.Sleep(7 * time.Second)
		table.OwnerRestarted("owner-2", 2, time.Now()) // again
		table.OwnerRestarted("owner-2", 3, time.Now())
		expect("in the convergence period", 1)
		table.NoteSuspension(time.Now())
		time.Sleep(7 * time.Second)
		expect("after a pause", 1)
		time.Sleep(time.Second)
		expect("when it is over", 0)

		table.SetRules(rulesFor(t, "web.acme.example"), nil)
		expect("after other rules", 0)
		s := table.OpenStream([]federation.ID{id}, netip.MustParseAddr("192.0.2.1"), func(Answer) {})
		offer := table.JudgeActive(table.config.Rules, s, &Active{NodeText: NodeText{"web.acme.example", "tcp://192.0.2.1:1"}})
		must.Do(t, table.Register(s, offer, time.Now()))
		table.OwnerRestarted("owner-2", 4, time.Now())
		for range 10 {
			time.Sleep(time.Second)
			expect("its provider is here", 1)
		}
		table.CloseStream(s, time.Now())
		time.Sleep(30 * time.Second)
		expect("its provider is gone", 1)
		table.TakeChanges(10, time.Now()) // what another owner has stored is not deleted
		expect("and the node is left to the other owner", 0)
	})
}
