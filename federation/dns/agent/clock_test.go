package agent_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// The retention goes on while the machine is suspended, which its timers do not
// know of.
func TestRetentionWhileSuspended(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, stop := w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		b := w.attach(w.block(1, w.owner(ownerAddress)))
		time.Sleep(time.Hour)
		stop()
		time.Sleep(10 * time.Minute)
		w.setClock(23 * time.Hour)
		if got := w.look(b, "web.fed.example"); got != "192.0.2.1 30 stale" {
			t.Errorf("web is %s within the retention", got)
		}
		time.Sleep(time.Minute)
		w.setClock(time.Hour)
		if got := w.look(b, "web.fed.example"); got != "NXDOMAIN" {
			t.Errorf("web is %s on the first query after the retention", got)
		}
		time.Sleep(time.Second)
		if got := w.state(); got != "expired 0/0" {
			t.Errorf("owner is %s", got)
		}
	})
}
