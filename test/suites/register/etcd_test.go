package register

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
	"github.com/hamlet-federation/coredns-federation/test/suites/register/fleet"
)

// oneEtcd starts an etcd of one member, and returns the store of owners in it.
func oneEtcd(t testing.TB) string {
	t.Helper()
	return storeIn(realserver.StartEtcd(t))
}

// storeIn returns the store of owners in an etcd of some members.
func storeIn(members ...*realserver.Etcd) string {
	var urls []string
	for _, e := range members {
		urls = append(urls, e.URL)
	}
	return fmt.Sprintf(`{etcd: {endpoints: ["%s"], prefix: /registrations}}`, strings.Join(urls, `", "`))
}

// leader returns the member of an etcd that leads, once there is one.
func leader(t testing.TB, members ...*realserver.Etcd) *realserver.Etcd {
	t.Helper()
	var found *realserver.Etcd
	eventually(t, func() string {
		for _, e := range members {
			if leads, err := e.Leads(t.Context()); err == nil && leads {
				found = e
				return ""
			}
		}
		return "no member leads"
	})
	return found
}

// TestOwnersShareEtcd has three owners on an etcd of three members, with the providers
// spread over them. The owner that CoreDNS follows is killed, and then members of etcd are,
// the leader first: providers move, nothing blinks, and in the end all owners
// publish the same.
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
	members := realserver.StartEtcdCluster(t, t.TempDir(), t.TempDir(), t.TempDir())
	w := start(t, options{owners: 3, store: storeIn(members...), convergence: convergence})
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

	// Members of etcd die, first the leader. Somebody registers meanwhile.
	newcomer := w.open(t, w.owners[1], "fleet") // it sends no heartbeats
	for i := range 2 {
		e := members[i]
		if i == 0 {
			e = leader(t, members...)
		}
		e.Kill()
		begin := time.Now()
		name, at := fmt.Sprintf("late-%d.%s", i, zone), fleet.Address(1<<21+i)
		newcomer.active(t, name, node(at), time.Minute)
		newcomer.grants(t, node(at))
		t.Logf("a node was registered %v after a member of etcd was killed", time.Since(begin).Round(time.Millisecond))
		resolvedTo(t, w, name, short([]string{at.String()}))
		more(t, p)
		must.Do(t, e.Start(t.Context()))
	}

	for i := range 2 {
		newcomer.clear(t, fmt.Sprintf("late-%d.%s", i, zone), node(fleet.Address(1<<21+i)))
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
		if gone := f.withdrawals(); len(gone) != 2*victims+2 {
			t.Errorf("%s has withdrawn %q, want the %d services of the providers that were killed, and 2 that were cleared", w.owners[i+1].Name, gone, 2*victims)
		}
	}
	for _, o := range w.owners[1:] {
		if n := o.metric(t, "expired_total"); n > 2*victims+2 {
			t.Errorf("%s counts %v nodes that have expired", o.Name, n)
		}
	}
}
