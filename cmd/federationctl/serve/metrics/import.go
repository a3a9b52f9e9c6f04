package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hamlet-federation/coredns-federation/internal/scrape"
	"github.com/hamlet-federation/coredns-federation/internal/status"
)

// NewImportCollector returns the collector of the metrics of an importer.
func NewImportCollector(report func() status.Status) prometheus.Collector {
	return scrape.NewCollector("federation_import_", func(to scrape.Scrape) { sendImports(to, report()) })
}

// sendImports sends the metrics of an importer.
func sendImports(importer scrape.Scrape, s status.Status) {
	importer.Flag("ready", "1 once the importer is ready, as /readyz says.", s.Ready)
	if i := s.Imports; i != nil {
		importer.Flag("leads", "1 while this replica writes the objects.", i.Leads)
		importer.Flag("api_away", "1 while the API server cannot be asked.", i.Failure != "")
		for state, n := range i.Services {
			importer.Gauge("services", "Services by the state of their objects: written, stale (of a lost owner), pending (yet to be written), kept (from before the start, as no complete catalog has or withdraws them yet) or standby (another replica writes).", float64(n), "state", state)
		}
		for reason, n := range i.Refused {
			importer.Gauge("unwritten_services", "Services whose objects are not as they should be, by reason.", float64(n), "reason", reason)
		}
	}
	for i := range s.Owners {
		u := &s.Owners[i]
		to := importer.With("owner", u.ID)
		for _, state := range []string{"connecting", "syncing", "synced", "stale", "expired", "parked"} {
			to.Flag("owner_state", "1 for the state that an owner is in, 0 for the others: connecting, syncing, synced, stale, expired and parked.", u.State == state, "state", state)
		}
		lost := 0.0
		if !u.Lost.IsZero() && u.State != "synced" {
			lost = s.Now.Sub(u.Lost).Seconds()
		}
		to.Gauge("owner_lost_seconds", "For how long an owner has been lost; 0 when it is not.", lost)
		if u.Retention > 0 {
			to.Gauge("owner_retention_seconds", "How long the objects of an owner stay after its loss; absent if they stay for ever.", u.Retention)
		}
		to.Gauge("owner_refused_services", "Services of an owner whose newest version breaks a rule of the importer.", float64(u.NotAdmitted))
		to.Time("certificate_expiry_timestamp_seconds", "When a certificate expires: the importer's, or the first of the authorities that it trusts.", u.Certificate, "file", "cert")
		to.Time("certificate_expiry_timestamp_seconds", "When a certificate expires: the importer's, or the first of the authorities that it trusts.", u.Authority, "file", "ca")
	}
}
