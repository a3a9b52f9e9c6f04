package registration_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/source/registration"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration/node"
)

// What an owner in a crash loop has left behind goes when its lease ends, at the others and at the
// owner itself, although that begins anew again and again and would wait for its providers.
func TestCrashLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		start := func(name string) *testOwner {
			return newOwner(t, registration.Config{Store: c.store(true), Owner: name, Convergence: 8 * time.Second})
		}
		well, sick := start("b"), start("a")
		dead, alive := sick.connect("dead"), sick.connect("alive")
		dead.active(web, one)
		alive.active(web, two)
		const both = "web.acme.example 192.0.2.1:8443 192.0.2.2:8443"
		well.expect("both", both)
		crash := func() {
			for _, p := range sick.open {
				p.breakStream()
			}
			sick.open = nil
			sick.stop()
			sick = start("a")
			alive = sick.connect("alive")
			alive.active(web, two)
			alive.expect(granted(web, two))
		}
		crash()
		time.Sleep(5 * time.Second)
		crash()
		well.expect("before the lease has ended", both)
		sick.expect("before the lease has ended", both)
		c.drop(func(n *node.Node) bool { return n.URI.String() == one })
		const left = "web.acme.example 192.0.2.2:8443"
		well.expect("the lease has ended", left)
		sick.expect("the lease has ended for an owner that has just begun", both)
		for range 10 {
			crash()
			sick.expect("in the loop", left)
			well.expect("in the loop", left)
			time.Sleep(5 * time.Second)
		}
		if len(well.part.lost) != 1 {
			t.Errorf("withdrawn were %q", well.part.lost)
		}
		dead = sick.connect("dead")
		dead.active(web, one)
		dead.expect(granted(web, one))
		well.expect("it was not dead", both)
	})
}
