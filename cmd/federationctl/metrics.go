package main

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hamlet-federation/coredns-federation/federation/mtls"
	"github.com/hamlet-federation/coredns-federation/federation/owner"
	"github.com/hamlet-federation/coredns-federation/federation/ownerfile"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// ownerMetrics collects the metrics of an owner when they are scraped. The values of
// labels are of small fixed sets: never a consumer, a service, or text that a
// consumer sent.
type ownerMetrics struct {
	server       *owner.Server
	catalog      *ownerfile.File
	allow        *ownerfile.File // nil when there is none
	certificates *mtls.Source
}

var (
	consumersDesc    = ownerDesc("consumers", "Open streams of consumers, by version of the API.", "catalog", "version")
	servicesDesc     = ownerDesc("services", "Services in the catalog.", "catalog")
	unsentDesc       = ownerDesc("unsent_services", "Services that were not sent yet, summed up over the consumers.", "catalog")
	inFlightDesc     = ownerDesc("in_flight_responses", "Responses that were sent and are not acknowledged yet.", "catalog")
	lagDesc          = ownerDesc("lag_seconds", "Age of the oldest change that some consumer has not acknowledged; 0 when every consumer has everything.", "catalog")
	acknowledgedDesc = ownerDesc("acknowledged_total", "Responses that consumers have acknowledged.", "catalog")
	refusedDesc      = ownerDesc("refused_total", "Responses that consumers have refused, by the field of the service that they name.", "catalog", "field")
	endedDesc        = ownerDesc("streams_ended_total", "Streams of consumers that have ended, by the gRPC code of their status.", "catalog", "code")
	connectionsDesc  = ownerDesc("connections", "Open connections, including those without a stream.")
	turnedAwayDesc   = ownerDesc("connections_turned_away_total", "Connections that were closed at once because there were too many, by the limit that was reached.", "limit")
	brokenDesc       = ownerDesc("file_broken", "1 while the content of a file is not used because the file is broken.", "file")
	expiryDesc       = ownerDesc("certificate_expiry_timestamp_seconds", "When a certificate expires: the owner's, or the first of the authorities in the CA file.", "file")
)

// ownerDesc describes the metric federation_owner_<name>.
func ownerDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("federation", "owner", name), help, labels, nil)
}

// Describe implements prometheus.Collector.
func (ownerMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		consumersDesc, servicesDesc, unsentDesc, inFlightDesc, lagDesc, acknowledgedDesc, refusedDesc, endedDesc,
		connectionsDesc, turnedAwayDesc, brokenDesc, expiryDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m ownerMetrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	count := func(d *prometheus.Desc, value uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	stats := m.server.Stats()
	for name, c := range stats.Catalogs {
		for _, version := range []wire.Version{wire.V1Alpha2, wire.V1Alpha1} {
			gauge(consumersDesc, float64(c.Consumers[version]), name, version.String())
		}
		gauge(servicesDesc, float64(c.Services), name)
		gauge(unsentDesc, float64(c.Unsent), name)
		gauge(inFlightDesc, float64(c.InFlight), name)
		lag := 0.0
		if !c.Oldest.IsZero() {
			lag = time.Since(c.Oldest).Seconds()
		}
		gauge(lagDesc, lag, name)
		count(acknowledgedDesc, c.Acknowledged, name)
		for field, n := range c.Refused {
			count(refusedDesc, n, name, field)
		}
		for code, n := range c.Ended {
			count(endedDesc, n, name, code.String())
		}
	}
	gauge(connectionsDesc, float64(stats.Connections))
	for limit, n := range stats.TurnedAway {
		count(turnedAwayDesc, n, limit)
	}
	broken := func(file *ownerfile.File, name string) {
		value := 0.0
		if file.Err() != nil {
			value = 1
		}
		gauge(brokenDesc, value, name)
	}
	broken(m.catalog, "catalog")
	if m.allow != nil {
		broken(m.allow, "allow")
	}
	certificate, ca := m.certificates.Expiry()
	gauge(expiryDesc, float64(certificate.Unix()), "cert")
	gauge(expiryDesc, float64(ca.Unix()), "ca")
}

// metricsServer serves the metrics of this process under /metrics.
func metricsServer(m ownerMetrics) *http.Server {
	registry := prometheus.NewRegistry()
	registry.MustRegister(m, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
}
