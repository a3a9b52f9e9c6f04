package main

import (
	"log/slog"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/ownerfile"
)

// TestMetricsOfSeveralCatalogs scrapes an owner with a default catalog, whose metrics
// have no label catalog, and another one.
func TestMetricsOfSeveralCatalogs(t *testing.T) {
	dir := partiesIn(t)
	certificates, err := mtls.Load(filesOf(dir, "owner"), nil)
	if err != nil {
		t.Fatal(err)
	}
	logger, registry := slog.New(slog.DiscardHandler), owner.NewRegistry()
	file, err := ownerfile.OpenCatalog(t.Context(), ownerfile.CatalogConfig{
		Path: write(t, filepath.Join(dir, "catalog.yaml"), catalogText), Registry: registry, Logger: logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	server, err := owner.New(owner.Config{
		Catalogs:    map[string]*owner.Registry{"": registry, "mesh-b.example": owner.NewRegistry()},
		Credentials: certificates.Server(), Logger: logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	scraped := httptest.NewServer(metricsServer(ownerMetrics{server: server, catalog: file, certificates: certificates}).Handler)
	defer scraped.Close()
	all := scrape(t, scraped.URL+"/metrics")
	want := map[string]float64{
		`services`:                           2,
		`services{catalog="mesh-b.example"}`: 0,
		`consumers{version="v1alpha1"}`:      0,
		`consumers{catalog="mesh-b.example",version="v1alpha1"}`: 0,
		`connections`: 0,
	}
	got := make(map[string]float64)
	for series := range want {
		if value, ok := all["federation_owner_"+series]; ok {
			got[series] = value
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unexpected metrics (-want +got):\n%s", diff)
	}
}
