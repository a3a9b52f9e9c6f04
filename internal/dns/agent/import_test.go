package agent_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// filter returns a filter of names.
func filter(t *testing.T, texts string) (f pattern.NameFilter) {
	t.Helper()
	for text := range strings.FieldsSeq(texts) {
		f = append(f, must.Get(pattern.ParseName(text))(t))
	}
	return f
}

// importing is a server block of fed.example that imports what the texts say.
func (w *testAgent) importing(configuration any, texts string) agent.BlockConfig {
	w.Helper()
	c := w.block(configuration, w.owner(ownerAddress))
	c.Zone.Owners[0].Import = filter(w.T, texts)
	return c
}

// moved is a service that is called as its fqdn begins, whatever its fqdn was before.
func moved(fqdn, address string) *federation.Service {
	s := services.At(fqdn, address)
	s.Name, _, _ = strings.Cut(fqdn, ".")
	return s
}

// notImported is how many updates of the only owner brought what is not imported.
func (w *testAgent) notImported() int {
	w.Helper()
	synctest.Wait()
	return w.agent.OwnerReports(time.Now())[0].NotImported
}

// The names that are imported are those of the owner, whatever they are here.
func TestImportBeforeRename(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		w.Owner(ownerAddress, services.At("web.corp.internal", "192.0.2.1"), services.At("api.lab.internal", "192.0.2.2"),
			services.At("zz.fed.example", "192.0.2.3"))
		config := w.importing(1, "*.corp.internal")
		config.Zone.Owners[0].Renames = []zone.Rename{{From: services.FQDN("corp.internal"), To: services.FQDN("fed.example")}}
		b := w.attach(config)
		time.Sleep(time.Minute)
		if web, zz := look(b, "web.fed.example"), look(b, "zz.fed.example"); web != "192.0.2.1 60" || zz != "NXDOMAIN" || w.notImported() != 2 || w.Records("refused") != nil {
			t.Errorf("web is %s, zz is %s, %d are not imported, refused: %v", web, zz, w.notImported(), w.Details("refused"))
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
					w := newTestAgent(t)
					services := []*federation.Service{
						services.At("a.fed.example", "192.0.2.1"), services.At("b.fed.example", "192.0.2.2"), services.At("c.fed.example", "192.0.2.3"),
					}
					_, stop := w.Owner(ownerAddress, services...)
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
						w.Owner(ownerAddress, services...)
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
		w := newTestAgent(t)
		w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"), services.At("out.example", "192.0.2.2"))
		const neighbour = "owner.example:8009"
		w.Owner(neighbour, services.At("api.fed.example", "192.0.2.3"))
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
		if w.Records("refused") == nil || w.attempts() != 2 {
			t.Errorf("%d attempts for two owners", w.attempts())
		}
	})
}

// Two blocks that import different parts of one owner share its stream, and each shows
// its own part alone, through changes and reloads of either.
func TestImportOfTwoBlocks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		names, zones := []string{"a", "b", "c", "d", "e"}, []string{".fed.example", ".int.fed.example", ".other.example"}
		random := rand.New(rand.NewPCG(1, 1))
		registry, _ := w.Owner(ownerAddress)
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
			w.agent.RetainConfigurations(func(c any) bool { return c == generation })
			blocks = next
		}
		reload(1)
		for step := range 150 {
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
		if w.state()[:6] != "synced" || w.Records("refused") != nil {
			t.Errorf("owner is %s, refused: %v", w.state(), w.Details("refused"))
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
				w := newTestAgent(t)
				w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"), services.At("api.other.example", "192.0.2.2"),
					services.At("out.example", "192.0.2.3"))
				w.attach(w.importing(1, tc.first))
				second := w.importing(1, tc.second)
				second.Zone.Owners[0].Origins[0] = services.FQDN("other.example")
				w.attach(second)
				time.Sleep(time.Minute)
				// The first block may have been alone when the owner announced them.
				if s := w.agent.OwnerReports(time.Now())[0]; s.NotAdmitted != tc.refused || s.NotImported != tc.left || w.state() != "synced 2/0" {
					t.Errorf("owner is %s, %d are refused, %d are not imported", w.state(), s.NotAdmitted, s.NotImported)
				}
			})
		})
	}
}
