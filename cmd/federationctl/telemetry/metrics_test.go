package telemetry

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/publisher"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/source"
)

// TestMetricsOfSeveralCatalogs scrapes an owner with a default catalog, whose metrics
// have no label catalog, and another one.
func TestMetricsOfSeveralCatalogs(t *testing.T) {
	status := publisher.Status{
		Server: owner.Stats{Catalogs: map[string]owner.CatalogStats{"": {Services: 2}, "mesh-b.example": {Services: 3}}},
		Catalogs: map[string]source.Status{
			"":               {Sources: []source.SourceStatus{{Name: "file a.yaml", Complete: true}}},
			"mesh-b.example": {Unavailable: "waiting", Sources: []source.SourceStatus{{Name: "cluster west", Refused: map[string]int{"NoAddress": 4}}}},
		},
	}
	response := httptest.NewRecorder()
	Handler("v1", func() publisher.Status { return status }).ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	scraped := "\n" + response.Body.String()
	for _, line := range []string{
		`services 2`,
		`services{catalog="mesh-b.example"} 3`,
		`consumers{version="v1alpha1"} 0`,
		`consumers{catalog="mesh-b.example",version="v1alpha1"} 0`,
		`catalog_unavailable 0`,
		`catalog_unavailable{catalog="mesh-b.example"} 1`,
		`source_complete{source="file a.yaml"} 1`,
		`source_complete{catalog="mesh-b.example",source="cluster west"} 0`,
		`source_refused_entries{catalog="mesh-b.example",rule="NoAddress",source="cluster west"} 4`,
		`connections 0`,
	} {
		if !strings.Contains(scraped, "\nfederation_owner_"+line+"\n") {
			t.Errorf("there is no line federation_owner_%s", line)
		}
	}
}
