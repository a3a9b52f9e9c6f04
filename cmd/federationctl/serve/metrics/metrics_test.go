package metrics

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve/ownreport"
	"github.com/hamlet-federation/coredns-federation/federation/consumer"
	"github.com/hamlet-federation/coredns-federation/federation/consumer/catalog"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/owner/registry"
	"github.com/hamlet-federation/coredns-federation/federation/source"
	"github.com/hamlet-federation/coredns-federation/federation/source/registration"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// served is what is got of an owner with that status.
type served struct {
	*testing.T
	serve.Status
}

// get returns what is at a path, after an empty line.
func (s served) get(path string) string {
	response := httptest.NewRecorder()
	handler := Handler(func() serve.Status { return s.Status }, func() status.Status { return ownreport.Convert(s.Status, time.Now()) })
	handler.ServeHTTP(response, httptest.NewRequest(http.MethodGet, path, nil))
	return "\n" + response.Body.String()
}

// has fails where what is at a path lacks one of the lines that begin so.
func (s served) has(path, begin string, lines ...string) {
	s.Helper()
	text := s.get(path)
	for _, line := range lines {
		if !strings.Contains(text, "\n"+begin+line+"\n") {
			s.Errorf("%s has no line %s%s:%s", path, begin, line, text)
		}
	}
}

// TestMetricsOfSeveralCatalogs scrapes an owner with a default catalog, whose metrics
// have no label catalog, and another one.
func TestMetricsOfSeveralCatalogs(t *testing.T) {
	s := served{t, serve.Status{
		Server: owner.Stats{Catalogs: map[string]owner.CatalogStats{"": {Stats: registry.Stats{Services: 2}, Withheld: map[wire.Version]int{wire.V1Alpha1: 2}}, "mesh-b.example": {Stats: registry.Stats{Services: 3}, Resumed: 5, Spared: 70}}},
		Catalogs: map[string]serve.CatalogStatus{
			"": {Status: source.Status{Sources: []source.SourceStatus{{Name: "file a.yaml", Complete: true, Lifetime: time.Hour}}}},
			"mesh-b.example": {Status: source.Status{Unavailable: "waiting", Sources: []source.SourceStatus{
				{Name: "cluster west", Refused: map[string]int{"NoAddress": 4}}, {Name: "relay:c", Lifetime: source.NoLifetime},
			}}},
		},
	}}
	s.has("/metrics", "federation_owner_",
		`services 2`,
		`services{catalog="mesh-b.example"} 3`,
		`consumers{version="v1alpha1"} 0`,
		`withheld_services{version="v1alpha1"} 2`,
		`withheld_services{version="v1alpha2"} 0`,
		`consumers{catalog="mesh-b.example",version="v1alpha1"} 0`,
		`catalog_unavailable 0`,
		`catalog_unavailable{catalog="mesh-b.example"} 1`,
		`resumed_streams_total 0`,
		`resumed_streams_total{catalog="mesh-b.example"} 5`,
		`resume_spared_services_total{catalog="mesh-b.example"} 70`,
		`source_complete{source="file a.yaml"} 1`,
		`source_complete{catalog="mesh-b.example",source="cluster west"} 0`,
		`source_refused_entries{catalog="mesh-b.example",rule="NoAddress",source="cluster west"} 4`,
		`source_lifetime_seconds{source="file a.yaml"} 3600`,
		`source_lifetime_seconds{catalog="mesh-b.example",source="relay:c"} 0`,
		`ready 1`,
		`connections 0`,
	)
	if strings.Contains(s.get("/metrics"), `source_lifetime_seconds{catalog="mesh-b.example",source="cluster west"}`) {
		t.Error("a source that stays for ever has a lifetime")
	}
	s.Waiting = []string{"consumers are not served yet"}
	s.has("/metrics", "federation_owner_", "ready 0")
}

// TestClasses shows the classes of a catalog with exports, those beyond the bounds as
// one.
func TestClasses(t *testing.T) {
	many := owner.CatalogStats{Stats: registry.Stats{Classes: []registry.ClassStats{{Consumers: 3}}}}
	for i := range ownreport.MaxClasses + 1 {
		many.Classes = append(many.Classes, registry.ClassStats{Rules: []int{i + 1}, Consumers: 2, Services: 5})
	}
	var long []int
	for i := range ownreport.MaxClassName {
		long = append(long, i+1)
	}
	s := served{t, serve.Status{
		Server: owner.Stats{Catalogs: map[string]owner.CatalogStats{
			"":  {Stats: registry.Stats{Classes: []registry.ClassStats{{Consumers: 1}, {Rules: []int{1, 3}, Consumers: 2, Services: 4}, {Rules: long, Consumers: 5, Services: 6}}}},
			"b": many, "without": {},
		}},
		Catalogs: map[string]serve.CatalogStatus{"": {}, "b": {}, "without": {}},
	}}
	s.has("/metrics", "federation_owner_",
		`class_consumers{class="none"} 1`, `class_services{class="none"} 0`,
		`class_consumers{class="1+3"} 2`, `class_services{class="1+3"} 4`,
		`class_consumers{class="other"} 5`, `class_services{class="other"} 6`,
		`class_consumers{catalog="b",class="none"} 3`,
		`class_consumers{catalog="b",class="99"} 2`,
		`class_consumers{catalog="b",class="other"} 4`, `class_services{catalog="b",class="other"} 10`,
	)
	scraped := s.get("/metrics")
	if n := strings.Count(scraped, "\nfederation_owner_class_consumers{"); n != 3+ownreport.MaxClasses+1 || strings.Contains(scraped, `class="100"`) {
		t.Errorf("%d classes have a series", n)
	}
}

// TestRelays shows the subscription of a relay.
func TestRelays(t *testing.T) {
	away := source.SourceStatus{Name: "relay:b.example:8008", Complete: true, Away: "Unavailable: \"gone\"", Since: time.Now()}
	followed := consumer.Status{Summary: catalog.Summary{State: catalog.Stale, Services: 9, Stale: 9}, Path: "b0,b1", Resumes: 2}
	s := served{t, serve.Status{
		Server: owner.Stats{Catalogs: map[string]owner.CatalogStats{"b": {}}},
		Catalogs: map[string]serve.CatalogStatus{"b": {
			Status: source.Status{Unavailable: "relay:b.example:8008 is away", Sources: []source.SourceStatus{away}},
			Relays: map[string]serve.Followed{away.Name: {Status: followed}},
		}},
	}}
	s.has("/metrics", "federation_owner_relay_hops", `{catalog="b",source="relay:b.example:8008"} 2`)
	reported := ownreport.Convert(s.Status, time.Now()).Catalogs[0].Sources[0].Relay
	if reported.ID != "b.example:8008" || reported.State != "stale" || reported.Services != 9 || reported.Hops != 2 || reported.Resumes != 2 {
		t.Errorf("the followed owner is %+v", reported)
	}
}

// TestRegistrations shows a source in which programs register.
func TestRegistrations(t *testing.T) {
	at := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 8009}
	s := served{t, serve.Status{
		Server: owner.Stats{Catalogs: map[string]owner.CatalogStats{"b": {}}},
		Catalogs: map[string]serve.CatalogStatus{"b": {
			Status: source.Status{Sources: []source.SourceStatus{{Name: "registration:a", Complete: true}}},
			Registrations: map[string]serve.Registration{"registration:a": {Address: at, Stats: registration.Stats{Convergence: 90 * time.Second, StoreAway: true, Numbers: registration.Numbers{
				Nodes: 7, Streams: 3, Old: 4, Pending: 2, Granted: 8, Cleared: 1,
				Expired: map[string]uint64{"silent": 5}, Refused: map[string]uint64{"quota": 6},
			}}}},
		}},
	}}
	const labels = `{catalog="b",source="registration:a"} `
	s.has("/metrics", "federation_owner_registration_",
		"nodes"+labels+"7", "providers"+labels+"3", "old_nodes"+labels+"4", "pending_changes"+labels+"2", "convergence_seconds"+labels+"90",
		"granted_total"+labels+"8", "cleared_total"+labels+"1", "store_away"+labels+"1",
		`expired_total{catalog="b",cause="silent",source="registration:a"} 5`, `refused_total{catalog="b",rule="quota",source="registration:a"} 6`,
	)
	want := status.Registration{Address: "192.0.2.1:8009", Nodes: 7, Providers: 3, Old: 4, Pending: 2, Convergence: 90, StoreAway: true}
	if got := ownreport.Convert(s.Status, time.Now()).Catalogs[0].Sources[0].Registration; *got != want {
		t.Errorf("the registration is %+v", got)
	}
}
