package agent_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// witness asks for names all the time, and after every change of the zone.
type witness struct {
	wrong []string
	asked int
	done  chan struct{}
	end   chan struct{}
}

// ask asks the block for the names, and why they are answered so, until stop is called. Each of
// them must have the answer.
func ask(b *agent.Block, want map[string]string) *witness {
	c := &witness{done: make(chan struct{}), end: make(chan struct{})}
	go func() {
		defer close(c.done)
		for {
			for name, want := range want {
				c.asked++
				if got := look(b, name); got != want {
					c.wrong = append(c.wrong, fmt.Sprintf("%s is %s, want %s", name, got, want))
				}
				explain(b, name)
			}
			timer := time.NewTimer(100 * time.Millisecond)
			select {
			case <-c.end:
				timer.Stop()
				return
			case <-b.Changed():
			case <-timer.C:
			}
			timer.Stop()
		}
	}()
	return c
}

func (c *witness) stop(t *testing.T) {
	t.Helper()
	close(c.end)
	<-c.done
	if len(c.wrong) > 0 || c.asked == 0 {
		t.Errorf("%d wrong answers of %d, the first: %s", len(c.wrong), c.asked, c.wrong[0])
	}
}

func prefixes(t *testing.T, list ...string) (all []netip.Prefix) {
	t.Helper()
	for _, s := range list {
		prefix := must.Get(netip.ParsePrefix(s))(t)
		all = append(all, prefix)
	}
	return all
}

// A reload that allows more brings what was refused, by a new subscription, while
// everything else is answered live.
func TestReloadWidens(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		narrow, wide func(*agent.BlockConfig)
		refused      *federation.Service
		after        string // its answer
	}{
		"addresses": {
			func(*agent.BlockConfig) {},
			func(b *agent.BlockConfig) { b.Owners[0].Policy.AllowAddresses = prefixes(t, "127.0.0.0/8") },
			services.At("zz.fed.example", "127.0.0.1"), "127.0.0.1 60",
		},
		"share, with which services count more": {
			func(b *agent.BlockConfig) {
				b.Owners[0].Rules.MaxCatalog, b.Zone.Owners[0].Sharing = 2500, zone.Sharing{Names: []pattern.Name{must.Value(pattern.ParseName("*"))}, Min: 1}
			},
			func(b *agent.BlockConfig) { b.Owners[0].Rules.MaxCatalog = 2500 },
			services.At("zz.fed.example", "192.0.2.9"), "192.0.2.9 60",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestAgent(t)
				w.Owner(ownerAddress, services.At("a.fed.example", "192.0.2.1"), services.At("b.fed.example", "192.0.2.2"), tc.refused)
				config := w.block(1, w.owner(ownerAddress))
				tc.narrow(&config)
				before := w.attach(config)
				time.Sleep(time.Minute)
				if w.state() != "synced 2/0" {
					t.Fatalf("owner is %s", w.state())
				}

				// A reload that fails changes nothing.
				config = w.block(2, w.owner(ownerAddress))
				tc.wide(&config)
				failed := w.attach(config)
				w.agent.RetainConfigurations(func(c any) bool { return c == 1 })
				<-failed.Detached()
				time.Sleep(time.Minute)
				if w.attempts() != 1 || w.state() != "synced 2/0" {
					t.Errorf("%d attempts after a reload that failed, owner is %s", w.attempts(), w.state())
				}

				config.Configuration = 3
				after := w.attach(config)
				asking := ask(after, map[string]string{"a.fed.example": "192.0.2.1 60", "b.fed.example": "192.0.2.2 60"})
				w.agent.Detach(before)
				start := time.Now()
				for look(after, tc.refused.FQDN.String()) != tc.after && time.Since(start) < 10*time.Second {
					time.Sleep(time.Millisecond)
				}
				if got := look(after, tc.refused.FQDN.String()); got != tc.after || time.Since(start) > 2*time.Second {
					t.Errorf("zz is %s %v after the reload", got, time.Since(start))
				}
				time.Sleep(30 * time.Second)
				asking.stop(t)
				if w.attempts() != 2 || w.state() != "synced 3/0" {
					t.Errorf("%d attempts, owner is %s", w.attempts(), w.state())
				}
				if got := look(after, "nope.fed.example"); got != "NXDOMAIN" {
					t.Errorf("nope is %s", got)
				}
				if lines := strings.Join(w.Logged.Lines(), ""); strings.Contains(lines, "stale") {
					t.Errorf("the owner was lost in between:\n%s", lines)
				}
			})
		})
	}
}
