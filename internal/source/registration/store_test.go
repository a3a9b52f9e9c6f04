package registration_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/source/registration"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
	registrationv1 "github.com/hamlet-federation/coredns-federation/proto/registration/v1"
)

// A store that is away withdraws nothing and takes nothing new; afterwards it has what is
// wanted.
func TestStoreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCluster().store(true)
		w := newOwner(t, registration.Config{Store: s, Convergence: 10 * time.Minute})
		p, gone := w.connect("web"), w.connect("gone")
		p.active(web, one)
		p.active(web, two)
		gone.active(web, three)
		p.expect(granted(web, one), granted(web, two))
		gone.expect(granted(web, three))
		const all = "web.acme.example 192.0.2.1:8443 192.0.2.2:8443 192.0.2.3:8443"
		w.expect("all", all)

		s.setAway(true, false)
		synctest.Wait()
		if w.part.away == nil || !w.source.Stats().StoreAway {
			t.Error("the part does not know that the store is away")
		}
		p.clear(web, two)
		p.active("new.acme.example", one)
		gone.breakStream()
		for range 10 {
			time.Sleep(10 * time.Second)
			p.active(web, one) // heartbeats go on
			p.active("new.acme.example", one)
		}
		for range 10 {
			p.active("new.acme.example", one, func(a *registrationv1.Active) { a.Description = "again" })
		}
		w.expect("away", all)
		got := p.told()
		if len(got) != 10 {
			t.Errorf("told %q", got)
		}
		if s := w.source.Stats(); s.Pending != 3 {
			t.Errorf("%+v", s)
		}

		s.setAway(false, false)
		time.Sleep(time.Second)
		w.expect("back", "new.acme.example 192.0.2.1:8443", "web.acme.example 192.0.2.1:8443")
		p.expect(granted("new.acme.example", one))
		if w.part.away != nil || w.source.Stats().StoreAway || w.source.Stats().Pending != 0 {
			t.Errorf("%+v", w.source.Stats())
		}
	})
}

// What the store has lost meanwhile of providers that live is put again, and stays
// published.
func TestStoreLosesNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCluster().store(true)
		w := settled(t, registration.Config{Store: s})
		p := w.connect("web")
		p.active(web, one)
		p.active(web, two)
		p.expect(granted(web, one), granted(web, two))
		s.drop(func(n *node.Node) bool { return n.URI.String() == one })
		w.expect("lost and told", "web.acme.example 192.0.2.1:8443 192.0.2.2:8443")
		s.setAway(true, false)
		synctest.Wait()
		s.drop(func(*node.Node) bool { return true })
		s.setAway(false, true)
		time.Sleep(time.Second)
		w.expect("lost in a gap", "web.acme.example 192.0.2.1:8443 192.0.2.2:8443")
		if len(w.part.lost) > 0 || s.has() != 2 {
			t.Errorf("withdrawn were %q, the store has %d", w.part.lost, s.has())
		}
		p.breakStream()
		time.Sleep(15 * time.Second)
		w.expect("the provider is gone")
		if s.has() != 0 {
			t.Errorf("the store has %d", s.has())
		}
	})
}

// The node of a provider whose stream has broken stays for its ttl, also when the store
// loses it before.
func TestStoreLosesBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCluster().store(true)
		w := settled(t, registration.Config{Store: s})
		p := w.connect("web")
		p.active(web, one)
		p.expect(granted(web, one))
		p.breakStream()
		time.Sleep(5 * time.Second)
		s.drop(func(*node.Node) bool { return true })
		time.Sleep(5*time.Second - time.Nanosecond)
		w.expect("just before the end of the ttl", "web.acme.example 192.0.2.1:8443")
		time.Sleep(time.Second)
		w.expect("after it")
		if s.has() != 0 || w.source.Stats().Expired["broken"] != 1 {
			t.Errorf("the store has %d, %+v", s.has(), w.source.Stats())
		}
	})
}

// A provider has moved here, and the store does not take that, as etcd does not whose disk
// is full. Its node stays when the lease of the owner that it was connected to before ends.
func TestFormerOwnerEnds(t *testing.T) {
	for _, missed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster()
			sb := c.store(true)
			a := settled(t, registration.Config{Store: c.store(true), Owner: "a"})
			b := settled(t, registration.Config{Store: sb, Owner: "b"})
			p := a.connect("web")
			p.active(web, one)
			p.expect(granted(web, one))
			a.stop()
			p = b.connect("web")
			sb.fail(1000)
			p.active(web, one)
			synctest.Wait()
			if missed { // just cut off
				sb.setAway(true, false)
				synctest.Wait()
			}
			c.drop(func(*node.Node) bool { return true })
			sb.setAway(false, missed)
			for range 20 {
				b.expect("the provider is here", "web.acme.example 192.0.2.1:8443")
				time.Sleep(4 * time.Second)
				p.active(web, one)
			}
			sb.fail(0)
			time.Sleep(10 * time.Second)
			b.expect("stored", "web.acme.example 192.0.2.1:8443")
			if s := b.source.Stats(); len(b.part.lost) > 0 || s.Pending != 0 || c.has() != 1 {
				t.Errorf("withdrawn were %q, %+v", b.part.lost, s)
			}
			p.breakStream()
			time.Sleep(15 * time.Second)
			b.expect("the provider is gone")
		})
	}
}

// A provider clears with one owner what another one has stored, and is gone before the
// store has taken that.
func TestClearElsewhereAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		sb := c.store(true)
		a := settled(t, registration.Config{Store: c.store(true), Owner: "a"})
		b := settled(t, registration.Config{Store: sb, Owner: "b"})
		old := a.connect("web")
		old.active(web, one)
		old.expect(granted(web, one))
		p, other := b.connect("web"), b.connect("other")
		sb.fail(3)
		other.active(web, two)
		synctest.Wait() // the next attempt is later
		p.clear(web, one)
		synctest.Wait()
		p.breakStream()
		time.Sleep(5 * time.Second)
		a.expect("cleared", "web.acme.example 192.0.2.2:8443")
		b.expect("cleared", "web.acme.example 192.0.2.2:8443")
		if sb.count() > 10 || c.has() != 1 {
			t.Errorf("%d commits, the store has %d", sb.count(), c.has())
		}
	})
}

// What another owner has stored while a change of the same node waits here is not deleted by
// whatever ends that change.
func TestSomebodyElseWasFirst(t *testing.T) {
	for _, rival := range []string{"web", "rival"} {
		for end, do := range map[string]func(p *provider){
			"cleared": func(p *provider) { p.clear(web, one) },
			"refused": func(p *provider) {
				p.active(web, one, func(a *registrationv1.Active) { a.Instance = "no label" })
			},
			"silent": func(*provider) { time.Sleep(4 * time.Second) },
		} {
			t.Run(rival+" "+end, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newCluster()
					sa := c.store(true)
					a := settled(t, registration.Config{Store: sa, Owner: "a", Linger: 5 * time.Second})
					b := settled(t, registration.Config{Store: c.store(true), Owner: "b"})
					sa.fail(mostCommits)
					p := a.connect("web")
					for tried := 0; tried < 10; tried = sa.count() { // so that the next attempt is seconds later
						p.active(web, one, ttl(2*time.Second))
						time.Sleep(200 * time.Millisecond)
					}
					first := b.connect(rival)
					first.active(web, one)
					first.expect(granted(web, one))
					do(p)
					sa.fail(0)
					for range 20 {
						time.Sleep(4 * time.Second)
						first.active(web, one)
						a.expect("kept up at b", "web.acme.example 192.0.2.1:8443")
						b.expect("kept up at b", "web.acme.example 192.0.2.1:8443")
					}
					if s := a.source.Stats(); len(a.part.lost)+len(b.part.lost) > 0 || s.Pending != 0 || c.has() != 1 {
						t.Errorf("withdrawn were %q %q, %+v", a.part.lost, b.part.lost, s)
					}
				})
			})
		}
	}
}

// Leases end while the store hangs. No owner withdraws what another one is about to put
// again; what nobody puts again is gone after the convergence period.
func TestLeasesEndInAnAbsence(t *testing.T) {
	for _, listed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster()
			sa, sb := c.store(true), c.store(true)
			a := newOwner(t, registration.Config{Store: sa, Owner: "a", Convergence: time.Minute})
			b := newOwner(t, registration.Config{Store: sb, Owner: "b", Convergence: time.Minute})
			p, q := a.connect("web"), b.connect("web")
			p.active(web, one)
			q.active(web, two)
			const both = "web.acme.example 192.0.2.1:8443 192.0.2.2:8443"
			a.expect("both", both)
			b.expect("both", both)
			absent := func() {
				sa.setAway(true, false)
				sb.setAway(true, false)
				time.Sleep(4 * time.Second)
				p.active(web, one)
				q.active(web, two)
				if listed {
					c.drop(func(*node.Node) bool { return true })
				}
				sa.setAway(false, listed)
				synctest.Wait()
				c.drop(func(*node.Node) bool { return true })
				a.expect("b has not put its node again yet", both)
			}
			absent()
			sb.setAway(false, listed)
			time.Sleep(time.Second)
			for _, w := range []*testOwner{a, b} {
				w.expect("put again", both)
				if s := w.source.Stats(); len(w.part.lost) > 0 || s.Old != 0 || s.Pending != 0 || c.has() != 2 {
					t.Errorf("withdrawn were %q, %+v, the store has %d", w.part.lost, s, c.has())
				}
			}
			absent()
			for range 10 {
				time.Sleep(5 * time.Second)
				p.active(web, one)
			}
			a.expect("b stays away", both)
			time.Sleep(7 * time.Second)
			p.active(web, one)
			time.Sleep(4 * time.Second)
			a.expect("after the convergence", "web.acme.example 192.0.2.1:8443")
		})
	}
}

// An owner that is cut off from the store of several sends its providers to the others, before
// these withdraw what it has.
func TestCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		sa := c.store(true)
		a := newOwner(t, registration.Config{Store: sa, Owner: "a", Convergence: time.Minute})
		b := newOwner(t, registration.Config{Store: c.store(true), Owner: "b", Convergence: time.Minute})
		p, q := a.connect("web"), a.connect("back")
		p.active(web, one)
		q.active(web, two)
		p.expect(granted(web, one))
		q.expect(granted(web, two))
		const both = "web.acme.example 192.0.2.1:8443 192.0.2.2:8443"
		sa.setAway(true, false)
		for range 3 {
			time.Sleep(4 * time.Second)
			p.active(web, one)
			q.active(web, two)
		}
		if told := append(p.told(), q.told()...); len(told) != 6 || strings.Contains(strings.Join(told, ""), "Close") {
			t.Errorf("told %q", told)
		}
		time.Sleep(3 * time.Second)
		const away = "Close PARTING_FRIENDS this owner cannot reach the store that owners share"
		p.expect(away)
		q.expect(away)
		p = b.connect("web")
		p.active(web, one)
		p.expect(granted(web, one))
		for range 30 { // for much longer than the ttl, and the convergence
			time.Sleep(4 * time.Second)
			p.active(web, one)
		}
		a.expect("cut off", both)
		c.drop(func(n *node.Node) bool { return n.Owner == "a" }) // its leases end
		b.expect("the leases of a have ended", "web.acme.example 192.0.2.1:8443")
		sa.setAway(false, true)
		for range 10 {
			time.Sleep(4 * time.Second)
			p.active(web, one)
		}
		a.expect("the other provider has time to come back", both)
		if s := a.source.Stats(); s.Old != 1 {
			t.Errorf("%+v", s)
		}
		q = a.connect("back")
		q.active(web, two)
		q.expect(granted(web, two))
		q.breakStream()
		time.Sleep(4 * time.Second)
		p.active(web, one)
		time.Sleep(7 * time.Second)
		a.expect("killed", "web.acme.example 192.0.2.1:8443")
		b.expect("killed", "web.acme.example 192.0.2.1:8443")
		if len(a.part.lost) != 1 {
			t.Errorf("withdrawn were %q", a.part.lost)
		}
	})
}

// When the store has lost its data, each owner keeps the nodes of the others until these
// had time to put them again.
func TestStoreLosesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		sa, sb := c.store(true), c.store(false)
		a := newOwner(t, registration.Config{Store: sa, Owner: "a", Convergence: time.Minute})
		b := newOwner(t, registration.Config{Store: sb, Owner: "b", Convergence: 10 * time.Minute})
		p, q := a.connect("web"), b.connect("web")
		p.active(web, one)
		q.active(web, two)
		q.active(web, three)
		const all = "web.acme.example 192.0.2.1:8443 192.0.2.2:8443 192.0.2.3:8443"
		a.expect("all", all)
		b.expect("all", all)
		p.told()

		sb.setAway(true, true) // b cannot put its nodes again
		synctest.Wait()
		c.lose()
		a.expect("lost", all)
		if s := a.source.Stats(); s.Old != 2 || s.Convergence != time.Minute {
			t.Errorf("%+v", s)
		}
		for range 5 {
			time.Sleep(9 * time.Second)
			p.active(web, one)
			q.active(web, two)
			q.active(web, three)
		}
		if got := p.told(); len(got) != 5 {
			t.Errorf("told %q", got)
		}
		c.lose() // which is not another convergence
		sb.setAway(false, true)
		synctest.Wait()
		sb.setAway(true, true)
		q.clear(web, three)
		p.active(web, three) // the provider has moved
		a.expect("put again", all)
		b.expect("put again", all)
		if s := a.source.Stats(); s.Old != 0 || s.Pending != 0 || c.has() != 3 {
			t.Errorf("the store has %d, %+v", c.has(), s)
		}

		c.lose()
		synctest.Wait()
		for range 6 {
			time.Sleep(9 * time.Second)
			p.active(web, one)
			p.active(web, three)
		}
		time.Sleep(6*time.Second - time.Nanosecond)
		a.expect("just before the end of the convergence", all)
		time.Sleep(time.Second)
		a.expect("after it", "web.acme.example 192.0.2.1:8443 192.0.2.3:8443")
		if s := a.source.Stats(); s.Old != 0 || s.Expired["convergence"] != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestTwoOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		a := settled(t, registration.Config{Store: c.store(true), Owner: "a"})
		b := settled(t, registration.Config{Store: c.store(false), Owner: "b"})
		p := a.connect("web")
		p.active(web, one)
		p.expect(granted(web, one))
		b.expect("what another owner has", "web.acme.example 192.0.2.1:8443")

		// The provider moves.
		moved := b.connect("web")
		moved.active(web, one)
		moved.expect(granted(web, one))
		p.clear(web, one) // which comes too late
		b.expect("not cleared", "web.acme.example 192.0.2.1:8443")
		p.active(web, one)
		p.expect(granted(web, one))
		moved.active(web, one)
		moved.expect(granted(web, one))
		p.breakStream()
		for range 10 {
			time.Sleep(7 * time.Second)
			moved.active(web, one)
		}
		a.expect("kept up at b", "web.acme.example 192.0.2.1:8443")
		if len(a.part.lost)+len(b.part.lost) > 0 {
			t.Errorf("withdrawn: %q %q", a.part.lost, b.part.lost)
		}
		moved.told()

		// Another provider may not have it, at any owner, and both may not at once.
		other := a.connect("other")
		other.active(web, one)
		other.expect("Refused web.acme.example https://192.0.2.1:8443 taken")
		rival := b.connect("rival")
		other.active(web, two)
		rival.active(web, two)
		told := append(other.told(), rival.told()...)
		if len(told) != 2 || (told[0] == granted(web, two)) == (told[1] == granted(web, two)) {
			t.Errorf("of two one has the node: %q", told)
		}

		// It goes back, clears, and is gone for both.
		back := a.connect("web")
		back.active(web, one)
		back.expect(granted(web, one))
		back.clear(web, one)
		a.expect("cleared", "web.acme.example 192.0.2.2:8443")
		b.expect("cleared", "web.acme.example 192.0.2.2:8443")
		moved.active(web, one)
		moved.expect(granted(web, one))
	})
}

// A node that lingers is not one that lives: the next one to expire is the last one, and
// takes its place.
func TestLingeringIsNotAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCluster().store(true)
		w := newOwner(t, registration.Config{Store: s, Linger: time.Minute, Convergence: 10 * time.Minute})
		p, q := w.connect("web"), w.connect("gone")
		p.active(web, one)
		q.active(web, two)
		const both = "web.acme.example 192.0.2.1:8443 192.0.2.2:8443"
		w.expect("both", both)
		s.setAway(true, false)
		synctest.Wait()
		p.clear(web, one)
		synctest.Wait()
		q.breakStream()
		time.Sleep(11 * time.Second) // two lingers, as one is about to be deleted
		p.active(web, one)
		synctest.Wait()
		p.breakStream()
		time.Sleep(11 * time.Second)
		w.expect("the store is away", both)
		s.setAway(false, false)
		time.Sleep(10 * time.Second)
		w.expect("the last one to expire lingers", "web.acme.example 192.0.2.1:8443")
		time.Sleep(time.Minute)
		w.expect("for its time")
	})
}

// An owner that begins anew keeps what a provider has not come back for, although its lease ends
// before that; other owners have heard nobody meanwhile.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		run := func(owner string) (*testOwner, *fakeStore) {
			s := c.store(false)
			return newOwner(t, registration.Config{Store: s, Owner: owner, Convergence: time.Minute}), s
		}
		w, _ := run("first")
		other, _ := run("second")
		back, gone := w.connect("web"), w.connect("gone")
		back.active(web, one)
		gone.active(web, two)
		const both = "web.acme.example 192.0.2.1:8443 192.0.2.2:8443"
		w.expect("both", both)
		w.stop()

		w, s := run("first")
		w.expect("at once", both)
		if s := w.source.Stats(); s.Old != 2 {
			t.Errorf("%+v", s)
		}
		back = w.connect("web")
		back.active(web, one)
		back.expect(granted(web, one))
		s.drop(func(n *node.Node) bool { return n.URI.String() == two })
		const left = "web.acme.example 192.0.2.1:8443"
		other.expect("its lease has ended", left)
		w.expect("its lease has ended", both)
		for range 5 {
			time.Sleep(12*time.Second - time.Millisecond)
			w.expect("before the end of the convergence period", both)
			back.active(web, one)
		}
		time.Sleep(time.Second)
		w.expect("after it", left)
		if s := w.source.Stats(); s.Old != 0 || s.Expired["convergence"] != 1 {
			t.Errorf("%+v", s)
		}
		if !strings.Contains(w.log.String(), "node expired") || !strings.Contains(w.log.String(), "cause=convergence") {
			t.Errorf("the log is %s", w.log)
		}
		if s := other.source.Stats(); len(s.Expired) != 0 {
			t.Errorf("another owner counts it, too: %+v", s)
		}
	})
}

// A store that is new knows nothing of providers that live.
func TestIncompleteState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newOwner(t, registration.Config{Convergence: time.Minute})
		p := w.connect("web")
		p.active(web, one, ttl(time.Minute))
		p.expect("Granted web.acme.example https://192.0.2.1:8443 1m0s https://192.0.2.1:8443")
		w.expect("silent", "silent")
		time.Sleep(time.Minute - time.Nanosecond)
		w.expect("still silent", "silent")
		time.Sleep(time.Second)
		w.expect("complete", "web.acme.example 192.0.2.1:8443")
	})
}

func TestSetRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		w := settled(t, registration.Config{Store: c.store(false)})
		p, gone := w.connect("web"), w.connect("gone")
		p.active(web, one)
		time.Sleep(time.Second)
		p.active(web, two)
		p.active("db.acme.example", one)
		gone.active(web, three)
		gone.active("db.acme.example", three)
		synctest.Wait()
		gone.breakStream()
		p.told()
		w.source.SetRules(rulesOf(t, `
rules:
- name: web
  providers: ["spiffe://acme.example/*"]
  services: ["web.acme.example"]
  addresses: ["192.0.2.0/24"]
  ttl: {min: 1s, max: 1m, default: 20s}
  quota: 1
`))
		w.expect("others", "web.acme.example 192.0.2.1:8443 192.0.2.3:8443")
		got := p.told()
		if len(got) != 3 || got[2] != "Granted web.acme.example https://192.0.2.1:8443 20s https://192.0.2.1:8443" ||
			!slices.Contains(got, "Refused web.acme.example https://192.0.2.2:8443 quota") || !slices.Contains(got, "Refused db.acme.example https://192.0.2.1:8443 no-rule") {
			t.Errorf("told %q", got)
		}
		w.source.SetRules(rulesOf(t, "rules: []"))
		w.expect("nothing is allowed")
		p.expect("Refused web.acme.example https://192.0.2.1:8443 no-rule")
		w.source.SetRules(rulesOf(t, anyone))
		p.active(web, one)
		p.expect(granted(web, one))
	})
}

// TestSetRulesWhileTheStoreIsAway takes names from a provider while nothing can be deleted in
// the store. They are not published any more at once, and come back with the rules.
func TestSetRulesWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		fake := c.store(false)
		w := settled(t, registration.Config{Store: fake})
		p := w.connect("web")
		p.active(web, one, ttl(time.Minute))
		p.active("db.acme.example", one, ttl(time.Minute))
		p.active("mail.acme.example", one, ttl(time.Minute))
		w.expect("granted", "db.acme.example 192.0.2.1:8443", "mail.acme.example 192.0.2.1:8443", "web.acme.example 192.0.2.1:8443")
		fake.setAway(true, false)
		p.clear("mail.acme.example", one)
		synctest.Wait()
		w.source.SetRules(rulesOf(t, strings.ReplaceAll(anyone, `["*.acme.example"]`, `["web.acme.example"]`)))
		if got, want := w.part.shown(), []string{"web.acme.example 192.0.2.1:8443"}; !slices.Equal(got, want) {
			t.Errorf("when SetRules has returned, %q is published, expected %q", got, want)
		}
		w.source.SetRules(rulesOf(t, anyone))
		fake.setAway(false, false)
		time.Sleep(10 * time.Second)
		p.active("db.acme.example", one, ttl(time.Minute))
		w.expect("allowed again", "db.acme.example 192.0.2.1:8443", "web.acme.example 192.0.2.1:8443")
	})
}
