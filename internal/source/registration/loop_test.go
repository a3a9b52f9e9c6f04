package registration_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/source/registration"
)

// loop is an owner that does not live for as long as it converges, beside one that is well.
type loop struct {
	*cluster

	t    *testing.T
	sick *testOwner // nil while it is not there
	well *testOwner
	sb   *fakeStore
}

func newLoop(t *testing.T) *loop {
	t.Helper()
	c := newCluster()
	l := &loop{cluster: c, t: t, sb: c.store(true)}
	l.well = newOwner(t, registration.Config{Store: l.sb, Owner: "b", Convergence: 8 * time.Second})
	l.start()
	return l
}

func (l *loop) start() {
	l.sick = newOwner(l.t, registration.Config{Store: l.store(true), Owner: "a", Convergence: 8 * time.Second})
	synctest.Wait()
}

// crash ends the owner, whose providers lose their streams. The next one of its name renews what
// it has left behind, again and again.
func (l *loop) crash() {
	for _, p := range l.sick.open {
		p.breakStream()
	}
	l.sick.open = nil
	l.sick.stop()
	l.start()
	l.begin("a")
}

const both = "web.acme.example 192.0.2.1:8443 192.0.2.2:8443"

// What an owner in a crash loop has left behind goes from the others when its providers had one
// convergence period to come back, and comes back with them.
func TestLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		dead, alive := l.sick.connect("dead"), l.sick.connect("alive")
		dead.active(web, one)
		alive.active(web, two)
		l.well.expect("both", both)
		register := func() {
			alive = l.sick.connect("alive")
			alive.active(web, two)
			alive.expect(granted(web, two))
		}
		l.crash()
		time.Sleep(4 * time.Second)
		register() // in half of the time that it has
		time.Sleep(time.Second)
		l.crash()
		time.Sleep(3*time.Second - time.Millisecond)
		l.well.expect("just before the end of the first convergence period", both)
		register()
		time.Sleep(time.Second)
		l.well.expect("after it", "web.acme.example 192.0.2.2:8443")
		l.sick.expect("with the owner itself, which has just begun", both)
		for range 20 {
			l.crash()
			l.well.expect("in the loop", "web.acme.example 192.0.2.2:8443")
			time.Sleep(4 * time.Second)
			register()
			time.Sleep(time.Second)
		}
		if s := l.well.source.Stats(); s.Expired["convergence"] != 1 || s.Old != 0 || len(l.well.part.lost) != 1 {
			t.Errorf("%+v, withdrawn were %q", s, l.well.part.lost)
		}
		dead = l.sick.connect("dead")
		dead.active(web, one)
		dead.expect(granted(web, one))
		l.well.expect("it was not dead", both)
	})
}

// An owner that begins itself, was suspended or had lost the store has not heard the providers
// of another one that is in a crash loop: they have the whole convergence period then.
func TestLeftBehindUnheard(t *testing.T) {
	for name, miss := range map[string]func(l *loop){
		"it begins": func(l *loop) {
			l.well.stop()
			l.well = newOwner(l.t, registration.Config{Store: l.store(true), Owner: "b", Convergence: 8 * time.Second})
		},
		"the store was away": func(l *loop) {
			l.sb.setAway(true, true)
			time.Sleep(20 * time.Second)
			l.sb.setAway(false, true)
		},
		"the store was away for a moment": func(l *loop) {
			time.Sleep(2500 * time.Millisecond)
			l.sb.setAway(true, false)
			time.Sleep(600 * time.Millisecond)
			l.sb.setAway(false, false)
		},
		"an older copy of the store is in its place": func(l *loop) {
			time.Sleep(10 * time.Second)
			l.well.expect("gone")
			l.restore()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLoop(t)
				p := l.sick.connect("web")
				p.active(web, one)
				p.expect(granted(web, one))
				l.crash()
				time.Sleep(5 * time.Second)
				miss(l)
				synctest.Wait()
				time.Sleep(8*time.Second - time.Millisecond)
				l.well.expect("just before the end of the convergence period", "web.acme.example 192.0.2.1:8443")
				time.Sleep(time.Second)
				l.well.expect("after it")
			})
		})
	}
}
