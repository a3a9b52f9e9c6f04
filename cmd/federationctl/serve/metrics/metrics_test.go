package metrics

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"google.golang.org/grpc/codes"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve"
	"github.com/hamlet-federation/coredns-federation/internal/owner"
	"github.com/hamlet-federation/coredns-federation/internal/registry"
	"github.com/hamlet-federation/coredns-federation/internal/source/registration"
	"github.com/hamlet-federation/coredns-federation/internal/status"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// served is what is got of an owner with that report.
type served struct {
	*testing.T
	serve.Report
}

// get returns what is at a path, after an empty line.
func (s served) get(path string) string {
	response := httptest.NewRecorder()
	Handler(func() status.Status { return s.Status }, NewCollector(func() serve.Report { return s.Report })).ServeHTTP(response, httptest.NewRequest(http.MethodGet, path, nil))
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
	s := served{t, serve.Report{
		Server: owner.Stats{Catalogs: map[string]owner.CatalogStats{"": {
			Stats: registry.Stats{Services: 2, Unsent: 1, Oldest: time.Now().Add(-time.Hour)}, Consumers: map[wire.APIVersion]int{wire.V1Alpha2: 6}, Withheld: map[wire.APIVersion]int{wire.V1Alpha1: 2},
			InFlight: 3, Acknowledged: 9, Refused: map[string]uint64{"fqdn": 1}, Ended: map[codes.Code]uint64{codes.Unauthenticated: 4},
		}, "mesh-b.example": {Stats: registry.Stats{Services: 3}, Resumed: 5, Spared: 70}}},
		Status: status.Status{Ready: true, Publisher: &status.PublishingOwner{Certificates: status.Certificates{Certificate: time.Unix(7, 0), Authority: time.Unix(8, 0)}}, Catalogs: []status.Catalog{
			{
				Classes: []status.ConsumerClass{{Name: "1+3", Consumers: 2, Services: 4}},
				Sources: []status.CatalogSource{{Name: "file a.yaml", State: "current", Lifetime: 3600}},
			},
			{
				Name: "mesh-b.example", Unavailable: "waiting",
				Sources: []status.CatalogSource{
					{Name: "cluster west", State: "waiting", Refused: map[string]int{"NoAddress": 4}},
					{Name: "relay:c", State: "away", Lifetime: -1, Relay: &status.FollowedOwner{Hops: 2}},
					{Name: "registration:a", Registration: &status.RegistrationSource{Nodes: 7, Providers: 3, Old: 4, Pending: 2, Convergence: 90, StoreAway: true}},
				},
			},
		}},
		Registrations: map[string]map[string]registration.Numbers{"mesh-b.example": {"registration:a": {
			Granted: 8, Cleared: 1, Expired: map[string]uint64{"silent": 5}, Refused: map[string]uint64{"quota": 6},
		}}},
		Broken: map[string]error{"catalog": io.ErrUnexpectedEOF, "allow": nil},
	}}
	s.has("/metrics", "federation_owner_",
		`services 2`,
		`services{catalog="mesh-b.example"} 3`,
		`consumers{version="v1alpha1"} 0`,
		`consumers{version="v1alpha2"} 6`,
		`unsent_services 1`,
		`in_flight_responses 3`,
		`lag_seconds{catalog="mesh-b.example"} 0`,
		`acknowledged_total 9`,
		`refused_total{field="fqdn"} 1`,
		`streams_ended_total{code="Unauthenticated"} 4`,
		`withheld_services{version="v1alpha1"} 2`,
		`withheld_services{version="v1alpha2"} 0`,
		`consumers{catalog="mesh-b.example",version="v1alpha1"} 0`,
		`class_consumers{class="1+3"} 2`,
		`class_services{class="1+3"} 4`,
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
		`relay_hops{catalog="mesh-b.example",source="relay:c"} 2`,
		`ready 1`,
		`connections 0`,
		`file_broken{file="catalog"} 1`,
		`file_broken{file="allow"} 0`,
		`certificate_expiry_timestamp_seconds{file="cert"} 7`,
		`certificate_expiry_timestamp_seconds{file="ca"} 8`,
	)
	const labels = `{catalog="mesh-b.example",source="registration:a"} `
	s.has("/metrics", "federation_owner_registration_",
		"nodes"+labels+"7", "providers"+labels+"3", "old_nodes"+labels+"4", "pending_changes"+labels+"2", "convergence_seconds"+labels+"90",
		"granted_total"+labels+"8", "cleared_total"+labels+"1", "store_away"+labels+"1",
		`expired_total{catalog="mesh-b.example",cause="silent",source="registration:a"} 5`, `refused_total{catalog="mesh-b.example",rule="quota",source="registration:a"} 6`,
	)
	if text := s.get("/metrics"); !strings.Contains(text, "\nfederation_owner_lag_seconds 3600.") {
		t.Errorf("the lag is not an hour:\n%s", text)
	}
	if strings.Contains(s.get("/metrics"), `source_lifetime_seconds{catalog="mesh-b.example",source="cluster west"}`) {
		t.Error("a source that stays for ever has a lifetime")
	}
	for _, p := range must.Get(promlint.New(strings.NewReader(s.get("/metrics"))).Lint())(t) {
		if strings.HasPrefix(p.Metric, "federation_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	s.Ready = false
	s.has("/metrics", "federation_owner_", "ready 0")
}
