package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve"
	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve/ownreport"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// Collector collects the metrics of an owner when they are scraped. The values of
// labels are of small fixed sets, or stand in the owner's configuration: never a
// consumer, a service, or text that a consumer sent.
type Collector struct {
	Status func() serve.Status
}

var (
	readyDesc       = ownerDesc(nil, "ready", "1 once the owner is ready: it has a certificate, its catalogs are complete, and consumers are served.")
	connectionsDesc = ownerDesc(nil, "connections", "Open connections, including those without a stream.")
	turnedAwayDesc  = ownerDesc(nil, "connections_turned_away_total", "Connections that were closed at once because there were too many, by the limit that was reached.", "limit")
	waitingDesc     = ownerDesc(nil, "admission_waiting", "Streams of consumers that wait for their turn to be sent the catalog.")
	admissionDesc   = ownerDesc(nil, "admission_turned_away_total", "Streams of consumers that were told to come back later, because too many waited for the catalog.")
	brokenDesc      = ownerDesc(nil, "file_broken", "1 while the content of a file is not used because the file is broken: the configuration, the allow file, a catalog file, or the rules of a registration.", "file")
	expiryDesc      = ownerDesc(nil, "certificate_expiry_timestamp_seconds", "When a certificate expires: the owner's, or the first of the authorities that it trusts.", "file")
)

// catalogDescs describe the metrics of one catalog.
type catalogDescs struct {
	consumers, withheld, services, unsent, inFlight, lag, acknowledged, refused, ended, unavailable, resumed, spared *prometheus.Desc

	classConsumers, classServices *prometheus.Desc

	complete, away, lifetime, ofSource, held, hidden, refusedEntries *prometheus.Desc // of its sources

	hops *prometheus.Desc // of relays

	// of those in which programs register
	nodes, providers, oldNodes, pending, convergence, granted, cleared, expired, refusedNodes, storeAway *prometheus.Desc
}

// describe returns the descriptions for the catalog with that server name, which is the
// value of their label catalog. Those of the default, which has no name, have no such
// label: in Prometheus an empty one is the same as none.
func describe(serverName string) catalogDescs {
	var fixed prometheus.Labels
	if serverName != "" {
		fixed = prometheus.Labels{"catalog": serverName}
	}
	return catalogDescs{
		consumers:    ownerDesc(fixed, "consumers", "Open streams of consumers, by version of the API.", "version"),
		withheld:     ownerDesc(fixed, "withheld_services", "Services that some consumer may be told of and does not get, because its version of the API cannot express them or no message has room for them: the most of any open stream, by version of the API.", "version"),
		services:     ownerDesc(fixed, "services", "Services in the catalog."),
		unsent:       ownerDesc(fixed, "unsent_services", "Services that were not sent yet, summed up over the consumers."),
		inFlight:     ownerDesc(fixed, "in_flight_responses", "Responses that were sent and are not acknowledged yet."),
		lag:          ownerDesc(fixed, "lag_seconds", "Age of the oldest change that some consumer has not acknowledged; 0 when every consumer has everything."),
		acknowledged: ownerDesc(fixed, "acknowledged_total", "Responses that consumers have acknowledged."),
		refused:      ownerDesc(fixed, "refused_total", "Responses that consumers have refused, by the field of the service that they name.", "field"),
		ended:        ownerDesc(fixed, "streams_ended_total", "Streams of consumers that have ended, by the gRPC code of their status.", "code"),
		unavailable:  ownerDesc(fixed, "catalog_unavailable", "1 while consumers of a catalog get Unavailable."),

		resumed: ownerDesc(fixed, "resumed_streams_total", "Streams of consumers that had a part of the catalog already, and were sent the rest."),
		spared:  ownerDesc(fixed, "resume_spared_services_total", "Services that were not sent in the initial catalogs of resumed streams, because their consumers had them."),

		classConsumers: ownerDesc(fixed, "class_consumers", "Open streams of consumers in a class: those for whom the same rules of the exports are, named by their numbers.", "class"),
		classServices:  ownerDesc(fixed, "class_services", "Services that each consumer in a class is told.", "class"),

		complete:       ownerDesc(fixed, "source_complete", "1 once the whole state of the origin of a source has been known.", "source"),
		away:           ownerDesc(fixed, "source_away_seconds", "For how long the origin of a source cannot be asked; 0 when it can.", "source"),
		lifetime:       ownerDesc(fixed, "source_lifetime_seconds", "For how long the catalog stays available while the origin of a source cannot be asked: 0 for a relay, none where it does so for ever.", "source"),
		ofSource:       ownerDesc(fixed, "source_services", "Services of a source, with those that are hidden.", "source"),
		held:           ownerDesc(fixed, "source_held_services", "Services of a source that its origin does not have any more, and that stay because they are more at once than max_withdraw allows.", "source"),
		hidden:         ownerDesc(fixed, "source_hidden_services", "Services of a source that a source before it hides.", "source"),
		refusedEntries: ownerDesc(fixed, "source_refused_entries", "Entries of the origin of a source that are not published, by the rule that they break.", "source", "rule"),

		hops: ownerDesc(fixed, "relay_hops", "Through how many owners the services of a relay have come to it: 1 for those of the origin itself, and 0 where the followed owner does not say it.", "source"),

		nodes:        ownerDesc(fixed, "registration_nodes", "Nodes that are registered.", "source"),
		providers:    ownerDesc(fixed, "registration_providers", "Open streams of providers to this owner.", "source"),
		oldNodes:     ownerDesc(fixed, "registration_old_nodes", "Nodes from before the start of the owner whose providers are not back yet.", "source"),
		pending:      ownerDesc(fixed, "registration_pending_changes", "Changes of nodes that are not stored yet.", "source"),
		convergence:  ownerDesc(fixed, "registration_convergence_seconds", "For how long providers may still come back after the start of the owner; 0 when that is over.", "source"),
		granted:      ownerDesc(fixed, "registration_granted_total", "Registrations and changes of nodes that were granted, without heartbeats.", "source"),
		cleared:      ownerDesc(fixed, "registration_cleared_total", "Nodes that their providers have withdrawn.", "source"),
		expired:      ownerDesc(fixed, "registration_expired_total", "Nodes that have expired, by the cause: silent for their ttl, broken stream, or not back when convergence ended.", "source", "cause"),
		refusedNodes: ownerDesc(fixed, "registration_refused_total", "Registrations that were refused, by the rule that they break.", "source", "rule"),
		storeAway:    ownerDesc(fixed, "registration_store_away", "1 while the store cannot be asked: nothing is withdrawn then, and nothing new is published.", "source"),
	}
}

// ownerDesc describes the metric federation_owner_<name>.
func ownerDesc(fixed prometheus.Labels, name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("federation", "owner", name), help, labels, fixed)
}

// Describe implements prometheus.Collector.
func (Collector) Describe(ch chan<- *prometheus.Desc) {
	c := describe("") // of the other catalogs only the fixed label is different
	for _, d := range []*prometheus.Desc{
		c.consumers, c.withheld, c.services, c.unsent, c.inFlight, c.lag, c.acknowledged, c.refused, c.ended, c.unavailable, c.resumed, c.spared,
		c.classConsumers, c.classServices, c.complete, c.away, c.lifetime, c.ofSource, c.held, c.hidden, c.refusedEntries, c.hops,
		c.nodes, c.providers, c.oldNodes, c.pending, c.convergence, c.granted, c.cleared, c.expired, c.refusedNodes, c.storeAway,
		readyDesc, connectionsDesc, turnedAwayDesc, waitingDesc, admissionDesc, brokenDesc, expiryDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c Collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	count := func(d *prometheus.Desc, value uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	status := c.Status()
	stats := status.Server
	for name, c := range stats.Catalogs {
		d := describe(name)
		for _, version := range []wire.Version{wire.V1Alpha2, wire.V1Alpha1} {
			gauge(d.consumers, float64(c.Consumers[version]), version.String())
			gauge(d.withheld, float64(c.Withheld[version]), version.String())
		}
		gauge(d.services, float64(c.Services))
		gauge(d.unsent, float64(c.Unsent))
		gauge(d.inFlight, float64(c.InFlight))
		lag := 0.0
		if !c.Oldest.IsZero() {
			lag = time.Since(c.Oldest).Seconds()
		}
		gauge(d.lag, lag)
		count(d.acknowledged, c.Acknowledged)
		count(d.resumed, c.Resumed)
		count(d.spared, c.Spared)
		for field, n := range c.Refused {
			count(d.refused, n, field)
		}
		for code, n := range c.Ended {
			count(d.ended, n, code.String())
		}
		for _, of := range ownreport.Classes(c) {
			gauge(d.classConsumers, float64(of.Consumers), of.Name)
			gauge(d.classServices, float64(of.Services), of.Name)
		}
	}
	gauge(readyDesc, oneIf(len(status.Waiting) == 0))
	gauge(connectionsDesc, float64(stats.Connections))
	gauge(waitingDesc, float64(stats.Admission.Waiting))
	count(admissionDesc, stats.Admission.TurnedAway)
	for limit, n := range stats.TurnedAway {
		count(turnedAwayDesc, n, limit)
	}
	for name, c := range status.Catalogs {
		d := describe(name)
		gauge(d.unavailable, oneIf(c.Unavailable != ""))
		seen := make(map[string]bool)
		for _, of := range c.Sources {
			if seen[of.Name] {
				continue // it is about to take the place of the one with its name
			}
			seen[of.Name] = true
			away := 0.0
			if of.Away != "" {
				away = time.Since(of.Since).Seconds()
			}
			gauge(d.complete, oneIf(of.Complete), of.Name)
			gauge(d.away, away, of.Name)
			if of.Lifetime != 0 {
				gauge(d.lifetime, max(of.Lifetime, 0).Seconds(), of.Name) // source.NoLifetime is below 0
			}
			gauge(d.ofSource, float64(of.Services), of.Name)
			gauge(d.held, float64(of.Held), of.Name)
			gauge(d.hidden, float64(of.Hidden), of.Name)
			for rule, n := range of.Refused {
				gauge(d.refusedEntries, float64(n), of.Name, rule)
			}
		}
	}
	for name, registrations := range status.Registrations {
		d := describe(name)
		for source, of := range registrations {
			gauge(d.nodes, float64(of.Nodes), source)
			gauge(d.providers, float64(of.Streams), source)
			gauge(d.oldNodes, float64(of.Old), source)
			gauge(d.pending, float64(of.Pending), source)
			gauge(d.convergence, of.Convergence.Seconds(), source)
			gauge(d.storeAway, oneIf(of.StoreAway), source)
			count(d.granted, of.Granted, source)
			count(d.cleared, of.Cleared, source)
			for cause, n := range of.Expired {
				count(d.expired, n, source, cause)
			}
			for rule, n := range of.Refused {
				count(d.refusedNodes, n, source, rule)
			}
		}
	}
	for name, relays := range status.Relays {
		d := describe(name)
		for source, of := range relays {
			gauge(d.hops, float64(of.Hops()), source)
		}
	}
	for file, broken := range status.Broken {
		gauge(brokenDesc, oneIf(broken != nil), file)
	}
	if !status.Certificate.IsZero() {
		gauge(expiryDesc, float64(status.Certificate.Unix()), "cert")
		gauge(expiryDesc, float64(status.CA.Unix()), "ca")
	}
}

// oneIf returns 1 for true and 0 for false.
func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// metrics returns what serves the metrics of this process.
func metrics(status func() serve.Status) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(Collector{status}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}
