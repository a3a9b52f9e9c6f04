package register

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
	"github.com/hamlet-federation/coredns-federation/test/suites/register/fleet"
)

// oneEtcd starts an etcd of one member, and returns the store of owners in it.
func oneEtcd(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf(`{etcd: {endpoints: [%q], prefix: /registrations}}`, realserver.StartEtcd(t).URL)
}

// TestOwnersShareEtcd has three owners on an etcd, with the providers spread over them. The owner that
// CoreDNS follows is killed, and then some providers are: the others move, nothing blinks, and in the end
// all owners publish the same. What members of etcd do that die, the tests of the store show.
func TestOwnersShareEtcd(t *testing.T) {
	enabled(t)
	const (
		nodes       = 600
		services    = 300
		victims     = 5
		convergence = 8 * time.Second
		ttl         = 10 * time.Second
		tolerance   = 2 * time.Second
		busy        = 20 * time.Second // by which one of the victims may be late on a busy machine
	)
	w := start(t, options{owners: 3, store: oneEtcd(t), convergence: convergence})
	all := w.register(t, fleet.Config{Nodes: nodes, Services: services, Streams: 59, TTL: ttl})
	var dying []*providers
	for i := range victims {
		dying = append(dying, w.register(t, fleet.Config{First: 1<<20 + 2*i, Nodes: 2, Services: 1 << 21, TTL: ttl}))
	}
	var followers []*follower
	for _, o := range w.owners {
		followers = append(followers, w.follow(t, o.address))
	}
	for _, f := range followers {
		f.synced(t, services+2*victims)
	}
	resolved(t, w.dns, all.answers())
	p := probe(t, w.dns, all.answers())
	more(t, p)

	// An owner dies. Its providers go to the others, and what is left of it in etcd,
	// the leases of its streams, runs out without an effect.
	w.owners[0].Kill()
	killed := time.Now()
	lost := all.Streams / len(w.owners)
	eventually(t, func() string {
		if s, _ := all.now(); s.Lost < lost || s.Granted != nodes {
			return fmt.Sprintf("providers have not moved: %+v", s)
		}
		return ""
	})
	t.Logf("all providers of the owner that was killed were with others after %v", time.Since(killed).Round(time.Millisecond))
	passes(t, killed.Add(convergence+ttl))
	more(t, p)

	// Providers die, one after the other: the owner that one is with tells the others by way
	// of etcd.
	var gone []time.Time
	for _, victim := range dying {
		gone = append(gone, victim.kill())
		passes(t, gone[0].Add(time.Duration(len(gone))*time.Second))
	}
	var late []time.Duration
	for i, victim := range dying {
		for name := range victim.answers() {
			for _, f := range followers[1:] {
				took := f.gone(t, name).Sub(gone[i])
				if took < ttl-time.Second || took > ttl+busy {
					t.Errorf("%s was withdrawn %v after its provider was killed, want %v", name, took, ttl)
				}
				late = append(late, took-ttl)
			}
		}
	}
	slices.Sort(late)
	if late[len(late)/2] > tolerance {
		t.Errorf("most nodes were withdrawn more than %v after their ttl: %v", tolerance, late)
	}

	// The owner comes back, to nodes that are all with others.
	must.Do(t, w.owners[0].Start(t.Context()))
	passes(t, time.Now().Add(convergence+ttl))
	more(t, p)
	p.Check(t)
	want := followers[1].synced(t, services)
	for i, f := range followers {
		eventually(t, func() string {
			got := f.synced(t, services)
			for name, s := range want {
				if got[name] == nil || !s.Equal(got[name]) {
					return fmt.Sprintf("%s is %+v at %s, and %+v at %s", name, got[name], w.owners[i].Name, s, w.owners[1].Name)
				}
			}
			return ""
		})
	}
	for i, f := range followers[1:] {
		if gone := f.withdrawals(); len(gone) != 2*victims {
			t.Errorf("%s has withdrawn %q, want the %d services of the providers that were killed", w.owners[i+1].Name, gone, 2*victims)
		}
	}
	for _, o := range w.owners[1:] {
		if n := o.metric(t, "expired_total"); n > 2*victims {
			t.Errorf("%s counts %v nodes that have expired", o.Name, n)
		}
	}
}
