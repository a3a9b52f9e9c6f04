package importer

import (
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
	"github.com/hamlet-federation/coredns-federation/test/kit/network/simulation"
)

// checkStates fails unless the status has so many services in each state, and why says the one of web.
func checkStates(t *testing.T, m *Importer, when string, want map[string]int, web string) {
	t.Helper()
	got := m.Status().Imports
	all := maps.Clone(got.Services)
	maps.Copy(all, got.Refused)
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("%s, services by state (-want +got):\n%s", when, diff)
	}
	for _, name := range []string{"web.fed.example.", "fed/web.", "web."} {
		w := must.Get(m.Why(t.Context(), name, dns.TypeA))(t)
		if len(w.Imports) != 1 || w.Imports[0].State != web || w.Imports[0].Object != "fed/web" || w.Imports[0].Owner != "mesh-a" || w.Imports[0].FQDN != "web.fed.example." {
			t.Errorf("%s, why %s: %+v", when, name, w.Imports)
		}
	}
}

// TestStates follows a service through all states that are no refusal.
func TestStates(t *testing.T) {
	simulation.Run(t, newStand, func(t *testing.T, s *stand) {
		s.own(at("web.fed.example", "192.0.2.1"), at("db.fed.example", "192.0.2.2"))
		s.api.setAway(true)
		m, stop := s.run()
		time.Sleep(10 * time.Second)
		checkStates(t, m, "without an API server", map[string]int{"standby": 2}, "standby")
		s.api.setAway(false)
		time.Sleep(time.Minute)
		checkStates(t, m, "with one", map[string]int{"written": 2}, "written")
		second, end := s.run()
		time.Sleep(10 * time.Second)
		checkStates(t, second, "in another replica", map[string]int{"standby": 2}, "standby")
		end()
		s.api.setAway(true)
		must.Get(s.registry.Upsert(at("web.fed.example", "192.0.2.3")))(t)
		time.Sleep(5 * time.Second)
		checkStates(t, m, "after a change", map[string]int{"written": 1, "pending": 1}, "pending")
		s.api.setAway(false)
		time.Sleep(2 * time.Minute)
		s.stop()
		time.Sleep(time.Minute)
		checkStates(t, m, "without the owner", map[string]int{"stale": 2}, "stale")
		stop()
		m, _ = s.run()
		time.Sleep(time.Minute)
		checkStates(t, m, "after a restart", map[string]int{"kept": 2}, "kept")
	})
}

// An object of a service that nobody offers any more is reported as long as the API server does not delete it.
func TestNotDeleted(t *testing.T) {
	simulation.Run(t, newStand, func(t *testing.T, s *stand) {
		s.own(at("web.fed.example", "192.0.2.1"))
		s.api.answer = func(method, _ string) int {
			if method == http.MethodDelete {
				return http.StatusForbidden
			}
			return 0
		}
		m, _ := s.run()
		time.Sleep(10 * time.Second)
		s.registry.Delete(at("web.fed.example", "192.0.2.1").Name)
		time.Sleep(10 * time.Second)
		checkStates(t, m, "with 403", map[string]int{"rejected": 1}, "rejected")
		if p := m.Status().Imports.Problems; len(p) != 1 || p[0].Since.IsZero() || !strings.Contains(p[0].Rule, "does not take it") {
			t.Errorf("problems %+v", p)
		}
	})
}
