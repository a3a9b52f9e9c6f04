package register

import (
	"fmt"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/peers/realserver"
	"github.com/hamlet-federation/coredns-federation/test/suites/register/fleet"
)

// An owner is upgraded from the former version, rolled back and upgraded again. Each time it
// publishes what both versions have stored in etcd before, and nobody registers that again.
func TestUpgrade(t *testing.T) {
	enabled(t)
	_, former := realserver.BuildFormer(t)
	w := start(t, options{store: oneEtcd(t), convergence: 20 * time.Second}) // nothing expires between two starts
	o := w.owners[0]
	w.follow(t, o.address).synced(t, 0) // until then the store is none that an owner relies on
	now := o.Path
	for i, path := range []string{former, now, former, now} {
		must.Do(t, o.Stop())
		o.Path = path
		must.Do(t, o.Start(t.Context()))
		w.follow(t, o.address).synced(t, i)
		service, at := fmt.Sprintf("version-%d.%s", i, zone), node(fleet.Address(i))
		provider := w.open(t, o, "fleet") // it sends no heartbeats
		provider.active(t, service, at, time.Hour)
		provider.grants(t, at)
	}
}
