package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve"
	"github.com/hamlet-federation/coredns-federation/internal/scrape"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
)

// NewCollector returns the collector of the metrics of an owner.
func NewCollector(report func() serve.Report) prometheus.Collector {
	return scrape.NewCollector("federation_owner_", func(to scrape.Scrape) { sendReport(to, report()) })
}

// sendReport sends the metrics of an owner.
func sendReport(owner scrape.Scrape, report serve.Report) {
	stats := report.Server
	for name, c := range stats.Catalogs {
		to := owner.With("catalog", name)
		for _, version := range []wire.APIVersion{wire.V1Alpha2, wire.V1Alpha1} {
			to.Gauge("consumers", "Open streams of consumers, by version of the API.", float64(c.Consumers[version]), "version", version.String())
			to.Gauge("withheld_services", "Services that do not reach a consumer, because its version of the API cannot express them or no message has room for them: the most of any open stream.", float64(c.Withheld[version]), "version", version.String())
		}
		to.Gauge("services", "Services in the catalog.", float64(c.Services))
		to.Gauge("unsent_services", "Services that were not sent yet, summed up over the consumers.", float64(c.Unsent))
		to.Gauge("in_flight_responses", "Responses that were sent and are not acknowledged yet.", float64(c.InFlight))
		lag := 0.0
		if !c.Oldest.IsZero() {
			lag = time.Since(c.Oldest).Seconds()
		}
		to.Gauge("lag_seconds", "Age of the oldest change that some consumer has not acknowledged; 0 when every consumer has everything.", lag)
		to.Count("acknowledged_total", "Responses that consumers have acknowledged.", c.Acknowledged)
		to.Count("resumed_streams_total", "Streams of consumers that had a part of the catalog already, and were sent the rest. After an outage this should rise by the number of consumers.", c.Resumed)
		to.Count("resume_spared_services_total", "Services that were not sent in the initial catalogs of resumed streams, because their consumers had them.", c.Spared)
		for field, n := range c.Refused {
			to.Count("refused_total", "Responses that consumers have refused, by the field of the service that they name.", n, "field", field)
		}
		for code, n := range c.Ended {
			to.Count("streams_ended_total", "Streams of consumers that have ended, by the gRPC code of their status.", n, "code", code.String())
		}
	}
	owner.Flag("ready", "1 once the owner is ready: it has a certificate, its catalogs are complete, and consumers are served.", report.Ready)
	owner.Gauge("connections", "Open connections, including those without a stream.", float64(stats.Connections))
	owner.Count("admission_turned_away_total", "Streams of consumers that were told to come back later, because too many waited for the catalog.", stats.Postponed)
	for limit, n := range stats.TurnedAway {
		owner.Count("connections_turned_away_total", "Connections that were closed at once because there were too many, by the limit that was reached.", n, "limit", limit)
	}
	for i := range report.Catalogs {
		c := &report.Catalogs[i]
		to := owner.With("catalog", c.Name)
		for _, of := range c.Classes {
			to.Gauge("class_consumers", "Open streams of consumers with the same rules of the exports, whose numbers name the class. The class none is told nothing: add its consumers to a rule, or take them out of allow.", float64(of.Consumers), "class", of.Name)
			to.Gauge("class_services", "Services that each consumer in a class is told. The class other stands for all beyond a hundred.", float64(of.Services), "class", of.Name)
		}
		to.Flag("catalog_unavailable", "1 while consumers of a catalog get Unavailable.", c.Unavailable != "")
		for _, of := range c.Sources {
			away := 0.0
			if of.Away != "" {
				away = time.Since(of.Since).Seconds()
			}
			to.Flag("source_complete", "1 once the whole state of the origin of a source has been known.", of.State != "waiting", "source", of.Name)
			to.Gauge("source_away_seconds", "For how long the origin of a source cannot be asked; 0 when it can.", away, "source", of.Name)
			if of.Lifetime != 0 {
				to.Gauge("source_lifetime_seconds", "The lifetime of a source whose origin cannot be asked: 0 for a relay that is the whole catalog, absent for forever.", max(of.Lifetime, 0), "source", of.Name)
			}
			to.Gauge("source_services", "Services of a source, with those that are hidden.", float64(of.Services), "source", of.Name)
			to.Gauge("source_paused_withdrawals", "Services that the origin of a source has lost, and that stay published because they are more at once than max_withdraw allows.", float64(of.Paused), "source", of.Name)
			to.Gauge("source_hidden_services", "Services of a source that a source before it hides.", float64(of.Hidden), "source", of.Name)
			for rule, n := range of.Refused {
				to.Gauge("source_refused_entries", "Entries of the origin of a source that are not published, by the rule that they break.", float64(n), "source", of.Name, "rule", rule)
			}
			if g := of.Registration; g != nil {
				to.Gauge("registration_nodes", "Nodes that are registered.", float64(g.Nodes), "source", of.Name)
				to.Gauge("registration_providers", "Open streams of providers to this owner. If these fall sharply and nodes do not, providers cannot connect.", float64(g.Providers), "source", of.Name)
				to.Gauge("registration_old_nodes", "Nodes from before the start of the owner whose providers are not back yet. They expire when convergence ends.", float64(g.Old), "source", of.Name)
				to.Gauge("registration_pending_changes", "Changes of nodes that are not stored yet.", float64(g.Pending), "source", of.Name)
				to.Gauge("registration_convergence_seconds", "For how long providers may still come back after the start of the owner; 0 when that is over.", g.Convergence, "source", of.Name)
				to.Flag("registration_store_away", "1 while the store cannot be asked: nothing is withdrawn then, and nothing new is published.", g.StoreAway, "source", of.Name)
			}
			if of.Relay != nil {
				to.Gauge("relay_hops", "Through how many owners the services of a relay have come to it: 1 for those of the origin itself, and 0 where the followed owner does not say it.", float64(of.Relay.Hops), "source", of.Name)
			}
		}
		for source, of := range report.Registrations[c.Name] {
			to.Count("registration_granted_total", "Registrations and changes of nodes that were granted, without heartbeats.", of.Granted, "source", source)
			to.Count("registration_cleared_total", "Nodes that their providers have withdrawn.", of.Cleared, "source", source)
			for cause, n := range of.Expired {
				to.Count("registration_expired_total", "Nodes that have expired, by the cause: silent for their ttl, broken stream, or not back when convergence ended.", n, "source", source, "cause", cause)
			}
			for rule, n := range of.Refused {
				to.Count("registration_refused_total", "Registrations that were refused, by the rule that they break.", n, "source", source, "rule", rule)
			}
		}
	}
	for file, broken := range report.Broken {
		owner.Flag("file_broken", "1 while the content of a file is not used because the file is broken: the configuration, the allow file, a catalog file, or the rules of a registration.", broken != nil, "file", file)
	}
	owner.Time("certificate_expiry_timestamp_seconds", "When a certificate expires: the owner's, or the first of the authorities that it trusts.", report.Publisher.Certificate, "file", "cert")
	owner.Time("certificate_expiry_timestamp_seconds", "When a certificate expires: the owner's, or the first of the authorities that it trusts.", report.Publisher.Authority, "file", "ca")
}
