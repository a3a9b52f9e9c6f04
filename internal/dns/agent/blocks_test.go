package agent_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// What a reload changes in the zones is there at once. Other zones are fetched by another stream.
func TestReload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		registry, _ := w.Owner(ownerAddress,
			services.At("web.fed.example", "192.0.2.1"), services.At("api.other.example", "192.0.2.2"))
		before := w.attach(w.block(1, w.owner(ownerAddress)))
		time.Sleep(time.Minute)
		if got := look(before, "api.other.example"); w.state() != "synced 1/0" || got != "kind 0" {
			t.Fatalf("owner is %s, api is %s", w.state(), got)
		}

		config := w.block(2, w.owner(ownerAddress))
		config.Zone.Owners[0].TTL = 10
		config.Zone.Owners[0].Origins = append(config.Zone.Owners[0].Origins, services.FQDN("other.example"))
		after := w.attach(config)
		if got := look(after, "web.fed.example"); got != "192.0.2.1 10" {
			t.Errorf("web is %s with another TTL", got)
		}
		if got := look(after, "api.other.example"); got != "SERVFAIL" || w.attempts() != 1 {
			t.Errorf("api is %s with its zone before the reload is over, after %d attempts", got, w.attempts())
		}
		if got := look(before, "web.fed.example"); got != "192.0.2.1 60" {
			t.Errorf("web is %s in the old block", got)
		}
		w.agent.Detach(before)
		time.Sleep(2 * time.Second)
		if got := look(after, "api.other.example"); got != "192.0.2.2 10" || w.attempts() != 2 {
			t.Errorf("api is %s with its zone after %d attempts", got, w.attempts())
		}

		// Back again: the name outside is gone.
		last := w.attach(w.block(3, w.owner(ownerAddress)))
		w.agent.Detach(after)
		if got := look(last, "api.other.example"); got != "kind 0" || w.state() != "synced 1/0" {
			t.Errorf("owner is %s, api is %s", w.state(), got)
		}
		must.Get(registry.Upsert(services.At("web.fed.example", "192.0.2.3")))(t)
		time.Sleep(time.Second)
		if got := look(last, "web.fed.example"); got != "192.0.2.3 60" || w.attempts() != 3 {
			t.Errorf("web is %s after %d attempts", got, w.attempts())
		}
	})
}

// respellCertificate gives another path to the certificate file of a connection: another connection.
func respellCertificate(c *agent.OwnerConfig) {
	dir, file := filepath.Split(c.Identity.Files.Cert)
	c.Identity.Files.Cert = dir + "./" + file
}

// A reload that changes anything of the owner has another stream, and what was known is
// served meanwhile. One that changes nothing keeps the stream.
func TestReloadOfOwner(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*agent.OwnerConfig){
		"address": func(c *agent.OwnerConfig) {
			c.Subscription.Addresses = append(c.Subscription.Addresses, "other.example:8008")
		},
		"certificate": respellCertificate,
		"retention":   func(c *agent.OwnerConfig) { c.Rules.Retention = 90 * time.Minute },
		"addresses":   func(c *agent.OwnerConfig) { c.Policy.AllowAddresses = prefixes(t, "127.0.0.0/8") },
		"nothing":     func(*agent.OwnerConfig) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestAgent(t)
				w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
				before := w.attach(w.block(1, w.owner(ownerAddress)))
				time.Sleep(time.Minute)
				c := w.owner(ownerAddress)
				change(&c)
				after := w.attach(w.block(2, c))
				if w.attempts() != 1 {
					t.Errorf("%d attempts before the reload is over", w.attempts())
				}
				w.agent.Detach(before)
				if got := look(after, "web.fed.example"); !strings.HasPrefix(got, "192.0.2.1 ") {
					t.Errorf("web is %s", got)
				}
				time.Sleep(time.Second)
				attempts := 2
				if name == "nothing" {
					attempts = 1
				}
				if got := look(after, "web.fed.example"); got != "192.0.2.1 60" || w.attempts() != attempts || w.state() != "synced 1/0" {
					t.Errorf("web is %s after %d attempts, owner is %s", got, w.attempts(), w.state())
				}
			})
		})
	}
}

// Another retention counts from the loss as well, also when the owner is away
// for long already.
func TestReloadOfRetention(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		retention time.Duration
		left      time.Duration // after 15 minutes; below 0 there is no end
	}{
		"shorter":        {20 * time.Minute, 5 * time.Minute},
		"over already":   {10 * time.Minute, 0},
		"longer":         {time.Hour, 45 * time.Minute},
		"without limits": {0, -1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestAgent(t)
				_, stop := w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
				c := w.owner(ownerAddress)
				c.Rules.Retention = 30 * time.Minute
				before := w.attach(w.block(1, c))
				time.Sleep(time.Minute)
				stop()
				synctest.Wait()
				time.Sleep(15 * time.Minute)
				c.Rules.Retention = tc.retention
				b := w.attach(w.block(2, c))
				expect := func(when, want string) {
					t.Helper()
					if got := look(b, "web.fed.example"); got != want {
						t.Errorf("%s web is %s", when, got)
					}
				}
				const stale = "192.0.2.1 30 stale"
				expect("before the reload is over", stale)
				w.agent.Detach(before)
				synctest.Wait()
				if got := w.agent.OwnerReports(time.Now())[0].Retention; got != tc.retention.Seconds() {
					t.Errorf("the status says %v, want %v", got, tc.retention)
				}
				switch {
				case tc.left < 0:
					time.Sleep(time.Hour)
					expect("long after the loss", stale)
					return
				case tc.left > 0:
					time.Sleep(tc.left - time.Minute)
					expect("before the end", stale)
					time.Sleep(time.Minute)
				}
				expect("at the end", "NXDOMAIN")
			})
		})
	}
}

// Reloads neither prolong a life nor complete a catalog, wherever an owner
// stands.
func TestReloadsChangeNothing(t *testing.T) {
	t.Parallel()
	const retention = 5 * time.Minute
	for name, tc := range map[string]struct {
		script string // of the owner that comes after the loss
		state  string // in the middle, with 12 services before
		end    string // of s11, after the retention
	}{
		"stale":             {"status Unavailable", "stale 12/12", "NXDOMAIN"},
		"part of a catalog": {"announce\nservices 0 2 fed.example\nhang", "syncing 12/10", "NXDOMAIN"},
		"held":              {"services 0 2 fed.example\nhang", "synced 12/10", "NXDOMAIN"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestAgent(t)
				_, stop := w.Misbehave(ownerAddress, "services 0 12 fed.example\nhang")
				c := w.owner(ownerAddress)
				c.Rules.Retention = retention
				b := w.attach(w.block(0, c))
				time.Sleep(time.Minute)
				stop()
				synctest.Wait()
				lost := time.Now()
				w.Misbehave(ownerAddress, tc.script)
				for i := 1; time.Since(lost) < retention-time.Second; i++ {
					time.Sleep(30 * time.Second)
					next := w.attach(w.block(i, c))
					w.agent.Detach(b)
					b = next
					if got := w.state(); time.Since(lost) == retention/2 && got != tc.state {
						t.Errorf("owner is %s, want %s", got, tc.state)
					}
					if got := look(b, "s11.fed.example"); time.Since(lost) < retention && !strings.HasPrefix(got, "10.0.0.11 ") {
						t.Fatalf("s11 is %s %v after the loss", got, time.Since(lost))
					}
				}
				time.Sleep(time.Second)
				if got := look(b, "s11.fed.example"); got != tc.end {
					t.Errorf("s11 is %s %v after the loss, want %s", got, time.Since(lost), tc.end)
				}
			})
		})
	}
}

// Several server blocks with one owner are one stream.
func TestSharedOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		registry, _ := w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"), services.At("api.other.example", "192.0.2.2"))
		first := w.attach(w.block(1, w.owner(ownerAddress)))
		config := w.block(1, w.owner(ownerAddress))
		config.Zone.Owners[0].Origins[0] = services.FQDN("other.example")
		second := w.attach(config)
		time.Sleep(time.Minute)
		if w.state() != "synced 2/0" {
			t.Fatalf("owner is %s", w.state())
		}
		if one, two := look(first, "web.fed.example"), look(second, "api.other.example"); one != "192.0.2.1 60" || two != "192.0.2.2 60" {
			t.Errorf("web is %s, api is %s", one, two)
		}
		if one, two := look(first, "api.other.example"), look(second, "web.fed.example"); one != "kind 0" || two != "kind 0" {
			t.Errorf("a block answers for the zone of the other: %s, %s", one, two)
		}

		other := w.owner(ownerAddress)
		other.Rules.Settle = time.Second
		_, err := w.agent.Attach(w.block(1, other))
		if err == nil || !strings.Contains(err.Error(), "two blocks with different properties") {
			t.Errorf("error of another wish for the same owner: %v", err)
		}

		// Also within one server block.
		config = w.block(1, w.owner(ownerAddress), w.owner(ownerAddress))
		config.Zone.Owners[1].Origins[0] = services.FQDN("other.example")
		both := w.attach(config)
		if one, two := look(both, "web.fed.example"), look(both, "api.other.example"); one != "192.0.2.1 60" || two != "192.0.2.2 60" {
			t.Errorf("web is %s, api is %s", one, two)
		}
		w.agent.Detach(both)

		w.agent.Detach(first)
		must.Get(registry.Upsert(services.At("api.other.example", "192.0.2.3")))(t)
		time.Sleep(time.Second)
		if got := look(second, "api.other.example"); got != "192.0.2.3 60" {
			t.Errorf("api is %s", got)
		}
	})
}

// Names that another owner has are logged once, with the first of them and how many there are, and
// again only after there was none.
func TestConflictsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		const second = "other.example:8008"
		one, _ := w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"), services.At("api.fed.example", "192.0.2.1"))
		other, _ := w.Owner(second, services.At("web.fed.example", "192.0.2.2"), services.At("api.fed.example", "192.0.2.2"), services.At("own.fed.example", "192.0.2.2"))
		w.attach(w.block(1, w.owner(ownerAddress), w.owner(second)))
		const line = `level=WARN msg="names of the owner are not answered from its services, because other owners have them" owner=other.example:8008 services=2 fqdn=api.fed.example. service=api by=owner.example:8008`
		const over = `level=INFO msg="the owner has all of its names again" owner=other.example:8008`
		expect := func(when string, warnings, ends int) {
			t.Helper()
			time.Sleep(time.Minute)
			if w.Logged.Count(line) != warnings || w.Logged.Count("are not answered from") != warnings || w.Logged.Count(over) != ends || w.Logged.Count("all of its names again") != ends {
				t.Errorf("%s, not %d times %s, and %d times %s:\n%s", when, warnings, line, ends, over, w.Logged.String())
			}
		}
		expect("at first", 1, 0)
		for i := range 10 {
			must.Get(one.Upsert(services.At("web.fed.example", fmt.Sprint("192.0.2.", 3+i))))(t)
			must.Get(other.Upsert(services.At(fmt.Sprintf("s%d.fed.example", i), "192.0.2.3")))(t)
			time.Sleep(time.Second)
		}
		expect("after changes", 1, 0)
		one.Delete("web")
		expect("with one left", 1, 0)
		one.Delete("api")
		expect("without any", 1, 1)
		must.Get(one.Upsert(services.At("web.fed.example", "192.0.2.1")))(t)
		must.Get(one.Upsert(services.At("api.fed.example", "192.0.2.1")))(t)
		expect("again", 2, 1)
	})
}

// A block that cannot be attached leaves everything as it was.
func TestAttachFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		broken := w.owner("b.example:8008")
		broken.Subscription.File = w.files.CA
		if _, err := w.agent.Attach(w.block(1, w.owner(ownerAddress), broken)); err == nil {
			t.Fatal("attached with a file of the certificate to write over")
		}
		time.Sleep(time.Hour)
		if n := len(w.agent.OwnerReports(time.Now())); n != 0 || w.attempts() != 0 {
			t.Fatalf("%d owners, %d attempts", n, w.attempts())
		}

		b := w.attach(w.block(2, w.owner(ownerAddress)))
		time.Sleep(time.Minute)
		lines := w.Logged.Lines()
		_, err := w.agent.Attach(w.block(3, w.owner(ownerAddress), w.owner("c.example:8008"), broken))
		if want := "owner b.example:8008: persist: \"" + w.files.CA; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error is %v, want %s", err, want)
		}
		time.Sleep(time.Hour)
		if got := look(b, "web.fed.example"); w.state() != "synced 1/0" || w.attempts() != 1 || got != "192.0.2.1 60" {
			t.Errorf("owner is %s after %d attempts, web is %s", w.state(), w.attempts(), got)
		}
		if diff := cmp.Diff(lines, w.Logged.Lines()); diff != "" {
			t.Errorf("logged (-before +after):\n%s", diff)
		}
	})
}

// A configuration that failed to start leaves its blocks behind. They go, and
// what they alone had.
func TestRetain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		w.Owner("b.example:8008", services.At("api.fed.example", "192.0.2.2"))
		running := w.attach(w.block(1, w.owner(ownerAddress)))
		time.Sleep(time.Minute)
		abandoned := w.attach(w.block(2, w.owner("b.example:8008"), w.owner(ownerAddress)))
		time.Sleep(time.Minute)
		if n := len(w.agent.OwnerReports(time.Now())); n != 2 {
			t.Fatalf("%d owners", n)
		}
		w.agent.RetainConfigurations(func(c any) bool { return c == 1 || c == nil })
		<-abandoned.Detached()
		time.Sleep(time.Minute)
		if got := look(running, "web.fed.example"); w.state() != "synced 1/0" || got != "192.0.2.1 60" || w.attempts() != 2 {
			t.Errorf("owner is %s after %d attempts, web is %s", w.state(), w.attempts(), got)
		}
		if diff := cmp.Diff([]string{"b.example:8008"}, w.Details("forgotten")); diff != "" {
			t.Errorf("forgotten (-want +got):\n%s", diff)
		}
		w.agent.Detach(abandoned) // a second time changes nothing
	})
}

// Wherever owners stand, they are gone with the last block that names them, together within the
// second that each has to end its stream, and leave no goroutine: the bubble sees to that.
func TestDetach(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		w.Owner("synced.example:1", services.At("web.fed.example", "192.0.2.1"))
		w.Listen("handshake.example:1") // where nobody answers
		for address, script := range map[string]string{
			"hung.example:1":     "hang",
			"partial.example:1":  "announce\nservices 0 20 fed.example",
			"refused.example:1":  "wait 1s\nresend a a.other.example 192.0.2.1",
			"refusing.example:1": "status Unauthenticated",
		} {
			w.Misbehave(address, script)
		}
		var blocks []*agent.Block
		for _, name := range []string{"synced", "handshake", "hung", "partial", "refused", "refusing", "absent"} {
			blocks = append(blocks, must.Get(w.agent.Attach(w.block(1, w.owner(name+".example:1"))))(t))
		}
		time.Sleep(900 * time.Millisecond)
		before := time.Now()
		w.agent.Detach(blocks...)
		if took := time.Since(before); took > 1100*time.Millisecond {
			t.Errorf("took %v", took)
		}
		if n := len(w.agent.OwnerReports(time.Now())); n != 0 || len(w.Records("forgotten")) != len(blocks) {
			t.Errorf("%d owners are left, forgotten are %v", n, w.Details("forgotten"))
		}
		attempts := w.attempts()
		time.Sleep(time.Hour)
		if w.attempts() != attempts {
			t.Errorf("%d attempts after the end", w.attempts()-attempts)
		}
	})
}

func TestReady(t *testing.T) {
	t.Parallel()
	const second = "b.example:8008"
	for name, tc := range map[string]struct {
		run   func(w *testAgent) (blocks []*agent.Block)
		after time.Duration // when all blocks are ready
	}{
		"owner is there": {func(w *testAgent) []*agent.Block {
			w.Owner(ownerAddress)
			return []*agent.Block{w.attach(w.block(1, w.owner(ownerAddress)))}
		}, 0},
		"one of two blocks waits": {func(w *testAgent) []*agent.Block {
			w.Owner(ownerAddress)
			return []*agent.Block{w.attach(w.block(1, w.owner(ownerAddress))), w.attach(w.block(1, w.owner(second)))}
		}, 30 * time.Second},
		"reload while waiting": {func(w *testAgent) []*agent.Block {
			old := w.attach(w.block(1, w.owner(ownerAddress)))
			time.Sleep(10 * time.Second)
			reloaded := w.attach(w.block(2, w.owner(ownerAddress)))
			w.agent.Detach(old)
			return []*agent.Block{reloaded}
		}, 30 * time.Second},
		"reload with a new owner": {func(w *testAgent) []*agent.Block {
			w.Owner(ownerAddress)
			old := w.attach(w.block(1, w.owner(ownerAddress)))
			time.Sleep(10 * time.Second)
			if !old.Ready() {
				w.Error("not ready")
			}
			reloaded := w.attach(w.block(2, w.owner(ownerAddress), w.owner(second)))
			w.agent.Detach(old)
			return []*agent.Block{reloaded}
		}, 10 * time.Second},
		"first block with a reload": {func(w *testAgent) []*agent.Block {
			time.Sleep(time.Hour)
			return []*agent.Block{w.attach(w.block(1, w.owner(ownerAddress)))}
		}, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestAgent(t)
				start := time.Now()
				blocks := tc.run(w)
				ready := func() bool {
					all := true
					for _, b := range blocks {
						all = b.Ready() && all
					}
					return all
				}
				for synctest.Wait(); !ready(); synctest.Wait() {
					time.Sleep(time.Second)
				}
				if took := time.Since(start).Truncate(time.Second); took != tc.after {
					t.Errorf("ready after %v, want %v", took, tc.after)
				}
				// Whatever happens later.
				time.Sleep(10 * time.Minute)
				if !ready() {
					t.Error("not ready any more")
				}
			})
		})
	}
}

// A new block goes on with the serials of the blocks before it: secondaries that
// hold a zone must not find an older one after a reload, whatever the clock says.
func TestReloadTakesSerialsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		before := w.attach(w.block(1, w.owner(ownerAddress)))
		time.Sleep(time.Minute)
		serial := before.Zone().SOA("fed.example.").Serial
		w.SetClock(-time.Hour)
		after := w.attach(w.block(2, w.owner(ownerAddress)))
		if got := after.Zone().SOA("fed.example.").Serial; got < serial {
			t.Errorf("serial is %d after the reload and %d before it", got, serial)
		}
		w.agent.Detach(before)
		time.Sleep(time.Minute)
		if got := after.Zone().SOA("fed.example.").Serial; got < serial {
			t.Errorf("serial is %d a minute after the reload and %d before it", got, serial)
		}
	})
}
