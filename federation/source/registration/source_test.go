package registration_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/source/registration"
)

// A convergence that is over at once, for tests of other things.
const none = time.Nanosecond

// settled returns a world whose convergence is over.
func settled(t testing.TB, config registration.Config) *world {
	t.Helper()
	config.Convergence = none
	w := newWorld(t, config)
	time.Sleep(2 * time.Second)
	w.expect("at first")
	return w
}

func TestRegisterAndClear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := settled(t, registration.Config{})
		p := w.connect("web")
		p.active(web, one)
		p.expect(granted(web, one))
		w.expect("one node", "web.acme.example 192.0.2.1:8443")
		p.active(web, two)
		p.active(web, one)
		p.expect(granted(web, one), granted(web, two))
		w.expect("two nodes", "web.acme.example 192.0.2.1:8443 192.0.2.2:8443")
		p.clear(web, one)
		w.expect("one cleared", "web.acme.example 192.0.2.2:8443")
		p.clear(web, two)
		w.expect("both cleared")
		p.expect()
	})
}
