package agent_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/dns/agent"
	"github.com/hamlet-federation/coredns-federation/federation/dns/zone"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// filter returns a filter of names.
func filter(t *testing.T, texts string) (f pattern.Filter) {
	t.Helper()
	for text := range strings.FieldsSeq(texts) {
		f = append(f, must.Get(pattern.ParseName(text))(t))
	}
	return f
}

// importing is a server block of fed.example that imports what the texts say.
func (w *world) importing(configuration any, texts string) agent.BlockConfig {
	w.t.Helper()
	c := w.block(configuration, w.owner(ownerAddress))
	c.Zone.Owners[0].Import = filter(w.t, texts)
	return c
}

// moved is a service that is called as its fqdn begins, whatever its fqdn was before.
func moved(fqdn, address string) *federation.Service {
	s := services.At(fqdn, address)
	s.Name, _, _ = strings.Cut(fqdn, ".")
	return s
}

// notImported is how many updates of the only owner brought what is not imported.
func (w *world) notImported() int {
	w.t.Helper()
	synctest.Wait()
	return w.agent.Owners(time.Now())[0].NotImported
}

// refusedAny reports whether any service was refused.
func (w *world) refusedAny() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for what := range w.counts {
		if strings.HasPrefix(what, "refused ") {
			return true
		}
	}
	return false
}

// A service that is not imported is acknowledged, and goes and comes as its owner
// changes it. None of that refuses anything.
func TestImport(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		registry, _ := w.serve(ownerAddress,
			moved("web.pub.fed.example", "192.0.2.1"), moved("api.int.fed.example", "192.0.2.2"),
			moved("db.a.pub.fed.example", "192.0.2.3"), moved("far.other.example", "192.0.2.4"))
		b := w.attach(w.importing(1, "*.pub.fed.example"))
		time.Sleep(time.Minute)
		want := func(web, api, db string, state string, left int) {
			t.Helper()
			time.Sleep(time.Second)
			for name, want := range map[string]string{"web.pub.fed.example": web, "api.pub.fed.example": api, "db.a.pub.fed.example": db} {
				if got := look(b, name); got != want {
					t.Errorf("%s is %s, want %s", name, got, want)
				}
			}
			if got := w.state(); got != state || w.notImported() != left || w.refusedAny() || w.attempts() != 1 {
				t.Errorf("owner is %s, want %s; %d are not imported, want %d; refused: %v", got, state, w.notImported(), left, w.counts)
			}
		}
		const is1, is2, is3, gone = "192.0.2.1 60", "192.0.2.2 60", "192.0.2.3 60", "NXDOMAIN"
		want(is1, gone, is3, "synced 2/0", 2)
		must.Get(registry.Upsert(moved("api.pub.fed.example", "192.0.2.2")))(t)
		want(is1, is2, is3, "synced 3/0", 2)
		must.Get(registry.Upsert(moved("web.int.fed.example", "192.0.2.9")))(t)
		want(gone, is2, is3, "synced 2/0", 3)
		registry.Delete("web")
		want(gone, is2, is3, "synced 2/0", 3)
		registry.Delete("far")
		want(gone, is2, is3, "synced 2/0", 3)
		registry.Delete("db")
		want(gone, is2, gone, "synced 1/0", 3)
	})
}

// The names that are imported are those of the owner, whatever they are here.
func TestImportBeforeRename(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.serve(ownerAddress, services.At("web.corp.internal", "192.0.2.1"), services.At("api.lab.internal", "192.0.2.2"),
			services.At("zz.fed.example", "192.0.2.3"))
		config := w.importing(1, "*.corp.internal")
		config.Zone.Owners[0].Renames = []zone.Rename{{From: services.FQDN("corp.internal"), To: services.FQDN("fed.example")}}
		b := w.attach(config)
		time.Sleep(time.Minute)
		if web, zz := look(b, "web.fed.example"), look(b, "zz.fed.example"); web != "192.0.2.1 60" || zz != "NXDOMAIN" || w.notImported() != 2 || w.refusedAny() {
			t.Errorf("web is %s, zz is %s, %d are not imported, refused: %v", web, zz, w.notImported(), w.counts)
		}
	})
}

// An owner of whose services none is imported is complete, with and without an end
// marker, and what it does not have is denied.
func TestImportNothing(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"marked": "announce\nservices 1 4 fed.example\nend\nhang\n",
		"silent": "services 1 4 fed.example\nhang\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.misbehave(ownerAddress, script)
				b := w.attach(w.importing(1, "other.example"))
				time.Sleep(time.Minute)
				if got := look(b, "s1.fed.example"); got != "NXDOMAIN" || w.state() != "synced 0/0" || w.notImported() != 3 || w.refusedAny() || !b.Ready() {
					t.Errorf("s1 is %s, owner is %s, %d are not imported, refused: %v", got, w.state(), w.notImported(), w.counts)
				}
			})
		})
	}
}

// A reload that imports less takes out what is left out at once, and nothing else.
func TestReloadNarrowsImport(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1"), services.At("api.fed.example", "192.0.2.2"))
		before := w.attach(w.importing(1, ""))
		time.Sleep(time.Minute)
		after := w.attach(w.importing(2, "web.fed.example"))
		asking := ask(after, map[string]string{"web.fed.example": "192.0.2.1 60", "api.fed.example": "NXDOMAIN"})
		if got := look(before, "api.fed.example"); got != "192.0.2.2 60" || w.state() != "synced 2/0" {
			t.Errorf("api is %s in the old block, owner is %s", got, w.state())
		}
		w.agent.Detach(before)
		if w.state() != "synced 1/0" || w.notImported() != 1 {
			t.Errorf("owner is %s, %d are not imported", w.state(), w.notImported())
		}
		time.Sleep(time.Hour / 100)
		asking.stop(t)
		if w.attempts() != 2 || w.state() != "synced 1/0" {
			t.Errorf("%d attempts, owner is %s", w.attempts(), w.state())
		}
	})
}

// A reload that imports others than before has the owner send its services again, also where
// it wants fewer. A name that stays is answered all the time, from what the owner sent before,
// and the retention of an owner that is away meanwhile goes on.
func TestReloadChangesImport(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		before, after string
		a, c          string // when all is done
	}{
		{"a.fed.example b.fed.example", "b.fed.example c.fed.example", "NXDOMAIN", "192.0.2.3"},
		{"a.fed.example b.fed.example", "b.fed.example", "NXDOMAIN", "NXDOMAIN"},
		{"b.fed.example", "", "192.0.2.1", "192.0.2.3"},
	} {
		for _, away := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s to %s, away=%v", tc.before, tc.after, away), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t)
					services := []*federation.Service{
						services.At("a.fed.example", "192.0.2.1"), services.At("b.fed.example", "192.0.2.2"), services.At("c.fed.example", "192.0.2.3"),
					}
					_, stop := w.serve(ownerAddress, services...)
					before := w.attach(w.importing(1, tc.before))
					time.Sleep(time.Minute)
					ttl := " 60"
					if away {
						stop()
						time.Sleep(catalog.Grace + time.Second)
						synctest.Wait()
						ttl = " 30 stale"
					}
					after := w.attach(w.importing(2, tc.after))
					asking := ask(after, map[string]string{"b.fed.example": "192.0.2.2" + ttl})
					w.agent.Detach(before)
					time.Sleep(time.Minute)
					asking.stop(t)
					if away { // another reload, which changes nothing
						before, after = after, w.attach(w.importing(3, tc.after))
						w.agent.Detach(before)
					}
					if away {
						if got := look(after, "nope.fed.example"); got != "SERVFAIL" {
							t.Errorf("nope is %s, and may have been left out", got)
						}
						w.serve(ownerAddress, services...)
						time.Sleep(2 * time.Minute)
					}
					for name, want := range map[string]string{"a": tc.a, "b": "192.0.2.2", "c": tc.c, "nope": "NXDOMAIN"} {
						if got := look(after, name+".fed.example"); strings.TrimSuffix(got, " 60") != want {
							t.Errorf("%s is %s, want %s", name, got, want)
						}
					}
					if w.state()[:6] != "synced" || !away && w.attempts() != 2 {
						t.Errorf("%d attempts, owner is %s", w.attempts(), w.state())
					}
				})
			})
		}
	}
}

// A reload that takes another owner out of the same zone denies names at once: nothing else
// may be published of the one that stays, although something of it was refused.
func TestReloadWithoutNeighbour(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1"), services.At("out.example", "192.0.2.2"))
		const neighbour = "owner.example:8009"
		w.serve(neighbour, services.At("api.fed.example", "192.0.2.3"))
		one, two := w.owner(ownerAddress), w.owner(neighbour)
		before := w.attach(w.block(1, one, two))
		time.Sleep(time.Minute)
		if got := look(before, "api.fed.example"); got != "192.0.2.3 60" {
			t.Fatalf("api is %s", got)
		}
		after := w.attach(w.block(2, one))
		asking := ask(after, map[string]string{"web.fed.example": "192.0.2.1 60", "nope.fed.example": "NXDOMAIN"})
		w.agent.Detach(before)
		time.Sleep(time.Minute)
		asking.stop(t)
		if !w.refusedAny() || w.attempts() != 2 {
			t.Errorf("%d attempts for two owners", w.attempts())
		}
	})
}

// Two blocks that import different parts of one owner share its stream, and each shows
// its own part alone, through changes and reloads of either.
func TestImportOfTwoBlocks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		names, zones := []string{"a", "b", "c", "d", "e"}, []string{".fed.example", ".int.fed.example", ".other.example"}
		random := rand.New(rand.NewPCG(1, 1))
		registry, _ := w.serve(ownerAddress)
		published := make(map[string]*federation.Service)
		filters := []string{
			"", "a.fed.example", "*.int.fed.example", "*.fed.example", "c.int.fed.example e.fed.example", "*",
			"b.fed.example *.other.example", "a.int.fed.example *.other.example", "absent.example",
		}
		var blocks [2]*agent.Block
		var texts [2]string
		reload := func(generation int) {
			var next [2]*agent.Block
			for i := range next {
				config := w.importing(generation, texts[i])
				if i == 1 {
					config.Zone.Owners[0].Origins = append(config.Zone.Owners[0].Origins, services.FQDN("other.example"))
				}
				next[i] = w.attach(config)
			}
			w.agent.Retain([]any{generation})
			blocks = next
		}
		reload(1)
		for step := range 400 {
			var what string
			switch name := names[random.IntN(len(names))]; random.IntN(4) {
			case 0:
				i := random.IntN(2)
				texts[i] = filters[random.IntN(len(filters))]
				what = fmt.Sprintf("block %d imports %q", i, texts[i])
				reload(step + 2)
			case 1:
				what = "delete " + name
				registry.Delete(name)
				delete(published, name)
			default:
				s := moved(name+zones[random.IntN(3)], fmt.Sprintf("192.0.2.%d", 1+random.IntN(200)))
				what = fmt.Sprint("up ", s.FQDN)
				must.Get(registry.Upsert(s))(t)
				published[name] = s
			}
			for _, at := range []time.Duration{0, 10 * time.Second} {
				time.Sleep(at) // a reload may have to fetch what it adds
				synctest.Wait()
				for i, b := range blocks {
					for _, name := range names {
						for _, zone := range zones {
							s, got := published[name], look(b, name+zone)
							shown := s != nil && s.FQDN == services.FQDN(name+zone) && filter(t, texts[i]).Matches(s.FQDN) && (i == 1 || zone != zones[2])
							switch {
							case !shown && strings.HasPrefix(got, "192."):
								t.Fatalf("step %d, %s: block %d shows %s%s (%s), which it does not import", step, what, i, name, zone, got)
							case shown && at > 0 && got != fmt.Sprint(s.Endpoints[0].Address, " 60"):
								t.Fatalf("step %d, %s: block %d shows %s%s as %s", step, what, i, name, zone, got)
							case shown && got == "NXDOMAIN":
								t.Fatalf("step %d, %s: block %d denies %s%s, which it imports", step, what, i, name, zone)
							}
						}
					}
				}
			}
		}
		if w.state()[:6] != "synced" {
			t.Errorf("owner is %s", w.state())
		}
	})
}

// A name is refused only when no block leaves it out, and none publishes it.
func TestImportOrRefuse(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		first, second string // imports; the second block is of other.example
		refused       int
		left          int
	}{
		{"", "", 1, 0},
		{"", "*.other.example", 0, 1},
		{"*.fed.example", "", 0, 1},
		{"*.fed.example", "*.other.example", 0, 1},
	} {
		t.Run(tc.first+" and "+tc.second, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1"), services.At("api.other.example", "192.0.2.2"),
					services.At("out.example", "192.0.2.3"))
				w.attach(w.importing(1, tc.first))
				second := w.importing(1, tc.second)
				second.Zone.Owners[0].Origins[0] = services.FQDN("other.example")
				w.attach(second)
				time.Sleep(time.Minute)
				// The first block may have been alone when the owner announced them.
				if s := w.agent.Owners(time.Now())[0]; s.NotAdmitted != tc.refused || s.NotImported != tc.left || w.state() != "synced 2/0" {
					t.Errorf("owner is %s, %d are refused, %d are not imported", w.state(), s.NotAdmitted, s.NotImported)
				}
			})
		})
	}
}

// An owner that moves a service in and out of what is imported, as fast as it can, is
// answered to, and nobody is the worse for it.
func TestImportUnderFlips(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		registry, _ := w.serve(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		other, _ := w.serve("other.example:8008", services.At("api.fed.example", "192.0.2.2"))
		c := w.block(1, w.owner(ownerAddress), w.owner("other.example:8008"))
		c.Zone.Owners[0].Import = filter(t, "web.fed.example")
		b := w.attach(c)
		time.Sleep(time.Minute)
		asking := ask(b, map[string]string{"api.fed.example": "192.0.2.2 60"})
		flip(t, registry, 2000)
		must.Get(other.Upsert(services.At("new.fed.example", "192.0.2.5")))(t)
		flip(t, registry, 2001)
		time.Sleep(time.Second)
		asking.stop(t)
		if web, fresh := look(b, "web.fed.example"), look(b, "new.fed.example"); web != "NXDOMAIN" || fresh != "192.0.2.5 60" || w.refusedAny() {
			t.Errorf("web is %s, new is %s, refused: %v", web, fresh, w.counts)
		}
		flip(t, registry, 2000)
		time.Sleep(time.Second)
		if web := look(b, "web.fed.example"); web != "192.0.2.1 60" || w.attempts() != 2 {
			t.Errorf("web is %s after %d attempts", web, w.attempts())
		}
	})
}

// flip moves a service so often. After an even number it is at web.fed.example.
func flip(t *testing.T, registry *registry.Registry, times int) {
	t.Helper()
	for i := range times {
		must.Get(registry.Upsert(moved([]string{"web.int.fed.example", "web.fed.example"}[i%2], "192.0.2.1")))(t)
		if i%50 == 0 {
			time.Sleep(time.Millisecond) // the owner sends only the last version of several
		}
	}
}

// A file holds what is imported, and of that only what is still imported is restored.
func TestRestartImportsLess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		file := filepath.Join(t.TempDir(), "catalog")
		config := func(texts string) agent.BlockConfig {
			c := w.block(1, w.kept(file))
			c.Zone.Owners[0].Import = filter(t, texts)
			return c
		}
		_, stop := w.serve(ownerAddress, services.At("a.fed.example", "192.0.2.1"), services.At("b.fed.example", "192.0.2.2"),
			services.At("c.fed.example", "192.0.2.3"))
		b := w.attach(config("a.fed.example b.fed.example"))
		time.Sleep(time.Minute)
		w.agent.Detach(b)
		stop()
		for _, tc := range []struct{ texts, a, b, c string }{
			{"", "192.0.2.1 30 stale", "192.0.2.2 30 stale", "SERVFAIL"}, // it was left out, and may be wanted now
			{"a.fed.example c.fed.example", "192.0.2.1 30 stale", "SERVFAIL", "SERVFAIL"},
			{"", "192.0.2.1 30 stale", "192.0.2.2 30 stale", "SERVFAIL"}, // the file is not written before the catalog is known
		} {
			w.start()
			b := w.attach(config(tc.texts))
			time.Sleep(time.Second)
			if x, y, z := look(b, "a.fed.example"), look(b, "b.fed.example"), look(b, "c.fed.example"); x != tc.a || y != tc.b || z != tc.c {
				t.Errorf("with %q they are %s, %s, %s", tc.texts, x, y, z)
			}
			w.agent.Detach(b)
		}
	})
}
