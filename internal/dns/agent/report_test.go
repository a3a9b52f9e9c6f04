package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/internal/catalog"
	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
	"github.com/hamlet-federation/coredns-federation/internal/policy/pattern"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/services"
)

// explain returns why the block answers for the addresses of a name.
func explain(b *agent.Block, name string) status.BlockAnswer {
	return b.Explain(b.Zone(), dns.Fqdn(name), dns.TypeA, time.Now())
}

// TestExplain asks why a name is answered as it is, through the life of its service.
func TestExplain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		b := w.attach(w.block("one", w.owner(ownerAddress)))
		synctest.Wait()
		if a := explain(b, "web.fed.example"); a.Verdict != status.NotKnownYet || a.Is != "missing" || a.Owners[0].State != "connecting" || a.Owners[0].Failure == "" {
			t.Errorf("without an owner: %+v", a)
		}
		registry, stop := w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		time.Sleep(time.Minute)
		w.state()
		a := explain(b, "web.fed.example")
		came := a.Holder.Updated
		if a.Verdict != status.Live || a.Zone != "fed.example." || a.Is != "service" || a.Holder.Owner != ownerAddress || time.Since(came) > time.Minute {
			t.Errorf("with a service: %+v %+v", a, a.Holder)
		}

		// A version that is refused, and one that is accepted after it.
		moved := services.At("web.elsewhere.example", "192.0.2.1")
		must.Get(registry.Upsert(moved))(t)
		time.Sleep(time.Second)
		synctest.Wait()
		a = explain(b, "web.elsewhere.example")
		if a.Zone != "" {
			t.Errorf("outside: %+v", a)
		}
		refusals := w.agent.OwnerReports(time.Now())[0].Refusals
		if len(refusals) != 1 || refusals[0].FQDN != "web.elsewhere.example." || refusals[0].Reason != "out_of_zone" {
			t.Errorf("refusals: %+v", refusals)
		}
		must.Get(registry.Upsert(services.At("web.fed.example", "192.0.2.1")))(t)
		time.Sleep(time.Second)
		synctest.Wait()
		if refusals := w.agent.OwnerReports(time.Now())[0].Refusals; len(refusals) != 0 {
			t.Errorf("after it was accepted again: %+v", refusals)
		}
		if a := explain(b, "web.fed.example"); !a.Holder.Updated.Equal(came) {
			t.Errorf("the same version came at %v, and again at %v", came, a.Holder.Updated)
		}

		// Lost, back, withdrawn.
		stop()
		time.Sleep(catalog.Grace + time.Second)
		synctest.Wait()
		a = explain(b, "web.fed.example")
		if a.Verdict != status.Stale || !a.Holder.Stale || a.Holder.StaleFrom.IsZero() || a.Holder.Expires.Sub(a.Holder.StaleFrom) != 24*time.Hour {
			t.Errorf("stale: %+v %+v", a, a.Holder)
		}
		if a := explain(b, "other.fed.example"); a.Verdict != status.NoNameLost {
			t.Errorf("missing, with a lost owner: %+v", a)
		}
		if u := w.agent.OwnerReports(time.Now())[0]; u.State != "stale" || u.Since.IsZero() || u.Retention != 86400 || u.Expires.IsZero() || u.Updates.LastHour == 0 {
			t.Errorf("stale: %+v", u)
		}
		registry, _ = w.Owner(ownerAddress)
		time.Sleep(time.Minute)
		w.state()
		a = explain(b, "v1.web.fed.example")
		if a.Verdict != status.NoName || len(a.Owners) != 1 || len(a.Owners[0].Gone) != 1 || a.Owners[0].Gone[0].Cause != "absent" || a.Owners[0].Gone[0].FQDN != "web.fed.example." {
			t.Errorf("gone: %+v", a)
		}
		must.Get(registry.Upsert(services.At("web.fed.example", "192.0.2.1")))(t)
		must.Get(registry.Upsert(services.At("dns.fed.example", "192.0.2.1")))(t)
		time.Sleep(time.Second)
		registry.Delete("web")
		time.Sleep(time.Second)
		synctest.Wait()
		if gone := explain(b, "web.fed.example").Owners[0].Gone; len(gone) != 2 || gone[0].Cause != "withdrawn" {
			t.Errorf("withdrawn: %+v", gone)
		}
		a = explain(b, "dns.fed.example")
		if a.Owners[0].NotAdmitted == "" || len(a.Owners[0].Refusals) != 1 || a.Is != "empty" {
			t.Errorf("reserved: %+v", a)
		}
		must.Get(registry.Upsert(services.At("web.other.example", "192.0.2.1")))(t)
		time.Sleep(time.Second)
		synctest.Wait()
		for name, want := range map[string]int{
			"web.other.example.": 1, "_https._tcp.web.other.example.": 1, "v1.web.other.example.": 1,
			"a.v1.web.other.example.": 0, "other.example.": 0, "web.example.": 0,
		} {
			if parts := w.agent.RefusedOwners(name, nil, time.Now()); len(parts) != want || want > 0 && (parts[0].ID != ownerAddress || parts[0].State != "synced" || len(parts[0].Refusals) != 1) {
				t.Errorf("refused of %s: %+v", name, parts)
			}
		}
		if parts := w.agent.RefusedOwners("web.other.example.", []status.BlockAnswer{{Owners: []status.OwnerPart{{ID: ownerAddress}}}}, time.Now()); parts != nil {
			t.Errorf("refused of an owner that has been heard: %+v", parts)
		}
	})
}

// TestExplainShared asks for a shared name while its near owner is lost and comes back: which owners
// have a part in the answer, why an endpoint is answered or not, and after how many minutes it goes.
func TestExplainShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		const far = "far.example:8008"
		near := services.At("web.fed.example", "192.0.2.1")
		_, stop := w.Owner(ownerAddress, near)
		_, stopFar := w.Owner(far, services.At("web.fed.example", "192.0.2.2"))
		config := w.block(1, w.owner(ownerAddress), w.owner(far))
		for i := range config.Zone.Owners {
			config.Zone.Owners[i].Sharing = zone.Sharing{
				Names: []pattern.Name{must.Value(pattern.ParseName("*"))}, Tiers: []zone.TierRule{{N: i}}, Min: 1,
			}
		}
		b := w.attach(config)
		began := time.Now()
		look := func(after time.Duration, want ...string) {
			t.Helper()
			time.Sleep(time.Until(began.Add(after)))
			synctest.Wait()
			holder := explain(b, "web.fed.example").Holder
			got := []string{strings.Join(holder.Owners, " ")}
			for _, e := range holder.Shared {
				line := fmt.Sprintf("%s of %s, answered %v: %s", e.Endpoint, e.Owners, e.Answered, e.Rule)
				if !e.Expires.IsZero() {
					line += "; " + e.Expires.Sub(began).Round(time.Minute).String()
				}
				got = append(got, line)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("after %s (-want +got):\n%s", after, diff)
			}
		}
		const nearIs, farIs = "192.0.2.1:443 of [owner.example:8008], answered ", "192.0.2.2:443 of [far.example:8008], answered "
		look(20*time.Minute, ownerAddress, nearIs+"true: it is live", farIs+"false: it is live, but better tiers have enough live endpoints (min)")
		stop()
		look(21*time.Minute, far, farIs+"true: it is live", nearIs+"false: its owner is lost, so live endpoints go first; 24h20m0s")
		registry, _ := w.Owner(ownerAddress, near)
		look(28*time.Minute, ownerAddress, nearIs+"true: it is live", farIs+"false: it is live, but better tiers have enough live endpoints (min)")
		registry.Delete(near.Name)
		look(29*time.Minute, far, farIs+"true: it is live")
		stopFar()
		look(30*time.Minute, far, farIs+"true: its owner is lost, so live endpoints go first; 24h29m0s")
	})
}

// TestExplainRivals has two owners of one name, one behind a rename and an import filter.
func TestExplainRivals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		const other = "other.example:8008"
		w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		w.Owner(other, services.At("web.remote.example", "192.0.2.2"), services.At("private.remote.example", "192.0.2.3"))
		c := w.block("one", w.owner(ownerAddress), w.owner(other))
		c.Zone.Owners[1].Import = filter(t, "web.remote.example *.shop.remote.example")
		c.Zone.Owners[1].Renames = append(c.Zone.Owners[1].Renames, zone.Rename{From: services.FQDN("remote.example"), To: services.FQDN("fed.example")})
		b := w.attach(c)
		time.Sleep(time.Minute)
		synctest.Wait()
		a := explain(b, "web.fed.example")
		want := []status.RivalService{{
			Owner: other, Service: "web", FQDN: "web.fed.example.",
			Rule: `owner owner.example:8008, whose service "web" has that name, comes first in the Corefile`,
		}}
		if d := cmp.Diff(want, a.Rivals); d != "" || a.Holder.Owner != ownerAddress {
			t.Errorf("-want +got:\n%s", d)
		}
		a = explain(b, "private.fed.example")
		if got, want := a.Owners[1].NotImported, "import_names web.remote.example *.shop.remote.example does not match private.remote.example."; got != want {
			t.Errorf("not imported: %s, want %s", got, want)
		}
		if a.Verdict != status.NoName || a.Owners[0].NotImported != "" {
			t.Errorf("%+v", a)
		}
	})
}

// TestServices reads a catalog, in the order of the names.
func TestServices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		var want []string
		registry, _ := w.Owner(ownerAddress)
		for i := range 5 {
			name := fmt.Sprint("s", i)
			want = append(want, name)
			must.Get(registry.Upsert(services.At(name+".fed.example", "192.0.2.1")))(t)
		}
		w.attach(w.block("one", w.owner(ownerAddress)))
		w.attach(w.block("one", w.owner(ownerAddress))) // each service once, all the same
		time.Sleep(time.Minute)
		synctest.Wait()
		all := w.agent.Catalog(ownerAddress)
		var got []string
		for s, err := range all {
			if err != nil || s.Updated.IsZero() || s.Stale || s.FQDN != s.Name+".fed.example." {
				t.Errorf("%+v, %v", s, err)
			}
			got = append(got, s.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("the catalog is %q", got)
		}
		for s, err := range w.agent.Catalog("nobody") {
			t.Errorf("an owner that is not followed has %+v, %v", s, err)
		}
	})
}

// TestParkedOwner has an owner that refuses this consumer: the report says when it is tried again,
// and that is at once when somebody wants it.
func TestParkedOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		s, _ := w.Publish(ownerAddress, registry.New())
		s.SetAllow(ids(t, "other.example"))
		w.attach(w.block("one", w.owner(ownerAddress)))
		time.Sleep(10 * time.Minute)
		u := w.agent.OwnerReports(time.Now())[0]
		if u.State != "parked" || u.Failure == "" || u.Remedy == "" || u.NextAttempt.Before(time.Now()) || u.NextAttempt.After(u.LastAttempt.Add(6*time.Minute+time.Second)) {
			t.Fatalf("%+v", u)
		}
		s.SetAllow(ids(t, "consumer.example"))
		u.Retry()
		time.Sleep(time.Second)
		synctest.Wait()
		if u := w.agent.OwnerReports(time.Now())[0]; u.State != "synced" || !u.NextAttempt.IsZero() {
			t.Errorf("%+v", u)
		}
	})
}

// TestReportUnshared has a block that shares names which the other one does not.
func TestReportUnshared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestAgent(t)
		const other = "other.example:8008"
		w.Owner(ownerAddress, services.At("web.fed.example", "192.0.2.1"))
		w.Owner(other, services.At("web.fed.example", "192.0.2.2"))
		config := w.block(1, w.owner(ownerAddress), w.owner(other))
		config.Zone.Owners[0].Sharing = zone.Sharing{Names: []pattern.Name{must.Value(pattern.ParseName("*"))}, Min: 1}
		b := w.attach(config)
		time.Sleep(time.Minute)
		owners := w.agent.OwnerReports(time.Now())
		if diff := cmp.Diff([][]string{nil, {"*"}}, [][]string{owners[0].Unshared, owners[1].Unshared}); diff != "" {
			t.Errorf("unshared (-want +got):\n%s", diff)
		}
		if a := explain(b, "web.fed.example"); !a.Holder.Alone || len(a.Rivals) != 1 || !strings.HasSuffix(a.Rivals[0].Rule, "; the block of other.example:8008 does not share the name") {
			t.Errorf("%+v %+v", a.Holder, a.Rivals)
		}
	})
}
