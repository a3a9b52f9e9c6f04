package agent_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

func ids(t *testing.T, names ...string) (ids []federation.ID) {
	t.Helper()
	for _, name := range names {
		id := must.Get(federation.ParseID(name))(t)
		ids = append(ids, id)
	}
	return ids
}

// gone are the log lines on owners that a reload has dropped.
func (w *testAgent) gone() (lines []string) {
	for _, line := range w.Logged.Lines() {
		if strings.Contains(line, "has left the configuration") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// A reload keeps the records of an owner that is away while its name stays, whatever else
// of it changes, and for no longer than the retention. Another name is another owner, and
// the log says what that takes away.
func TestReloadWithoutOwnerKeepsItsName(t *testing.T) {
	t.Parallel()
	const other = "other.example:8008"
	const dropped = `level=WARN msg="owner has left the configuration with a reload, and its records are gone" owner=`
	for name, tc := range map[string]struct {
		before, after func(c *agent.OwnerConfig)
		gone          string // the log line; empty where the records stay
	}{
		"second address": {after: func(c *agent.OwnerConfig) { c.Subscription.Addresses = append(c.Subscription.Addresses, other) }},
		"other address with a name": {
			before: func(c *agent.OwnerConfig) { c.Name = "shop" },
			after:  func(c *agent.OwnerConfig) { c.Name, c.Subscription.Addresses = "shop", []string{other} },
		},
		"another name": {
			before: func(c *agent.OwnerConfig) { c.Name = "shop" },
			after:  func(c *agent.OwnerConfig) { c.Name = "store" },
			gone:   dropped + "shop services=2",
		},
		"another first address": {
			after: func(c *agent.OwnerConfig) { c.Subscription.Addresses = []string{other, ownerAddress} },
			gone:  dropped + ownerAddress + " services=2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestAgent(t)
				_, stop := w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"), services.At("api.fed.example", "192.0.2.2"))
				before := w.owner(ownerAddress)
				before.Rules.Retention = 20 * time.Minute
				if tc.before != nil {
					tc.before(&before)
				}
				old := w.attach(w.block(1, before))
				time.Sleep(time.Minute)
				stop()
				synctest.Wait()
				time.Sleep(10 * time.Minute)

				after := w.owner(ownerAddress)
				after.Rules.Retention = 20 * time.Minute
				tc.after(&after)
				b := w.attach(w.block(2, after))
				w.agent.DetachReplaced(old)
				synctest.Wait()
				if tc.gone != "" {
					if got := look(b, "web.fed.example"); got != "SERVFAIL" {
						t.Errorf("web is %s", got)
					}
					if got := w.gone(); !slices.Equal(got, []string{tc.gone}) {
						t.Errorf("logged is %q, want %q", got, tc.gone)
					}
					return
				}
				time.Sleep(9 * time.Minute)
				if got := look(b, "web.fed.example"); got != "192.0.2.1 30 stale" {
					t.Errorf("web is %s, owner is %s", got, w.state())
				}
				time.Sleep(2 * time.Minute)
				if got := look(b, "web.fed.example"); got != "NXDOMAIN" {
					t.Errorf("web is %s after the retention", got)
				}
				if got := w.gone(); got != nil {
					t.Errorf("logged is %q", got)
				}
			})
		})
	}
}

// Another identity under the same name leaves the records stale until an owner with that
// identity has said what its catalog is.
func TestReloadWithAnotherIdentity(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"), services.At("old.fed.example", "192.0.2.2"))
		c := w.owner(ownerAddress)
		c.Name, c.Consumer.IDs = "shop", ids(t, "owner.example")
		before := w.attach(w.block(1, c))
		time.Sleep(time.Minute)

		c.Consumer.IDs, c.Subscription.Addresses = ids(t, "next.example"), []string{ownerAddress, "next.example:8008"}
		b := w.attach(w.block(2, c))
		if got := look(b, "web.fed.example"); got != "192.0.2.1 60" || w.attempts() != 1 {
			t.Errorf("web is %s before the reload is over, after %d attempts", got, w.attempts())
		}
		w.agent.DetachReplaced(before)
		time.Sleep(10 * time.Minute)
		if got := look(b, "web.fed.example"); got != "192.0.2.1 30 stale" {
			t.Errorf("web is %s while only the old identity is there, owner is %s", got, w.state())
		}
		if w.attempts() < 3 {
			t.Errorf("%d attempts", w.attempts())
		}
		w.Owner("next.example:8008", services.At("web.fed.example", "192.0.2.3"))
		time.Sleep(2 * time.Minute)
		if web, old := look(b, "web.fed.example"), look(b, "old.fed.example"); web != "192.0.2.3 60" || old != "NXDOMAIN" {
			t.Errorf("web is %s and old is %s, owner is %s", web, old, w.state())
		}
		if got := w.gone(); got != nil {
			t.Errorf("logged is %q", got)
		}
	})
}
