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
	connectionsDesc = ownerDesc(nil, "connections", "Open connections, including those without a stream.")
	turnedAwayDesc  = ownerDesc(nil, "connections_turned_away_total", "Connections that were closed at once because there were too many, by the limit that was reached.", "limit")
	brokenDesc      = ownerDesc(nil, "file_broken", "1 while the content of a file is not used because the file is broken.", "file")
	expiryDesc      = ownerDesc(nil, "certificate_expiry_timestamp_seconds", "When a certificate expires: the owner's, or the first of the authorities in the CA file.", "file")
)

// catalogDescs describe the metrics of one catalog.
type catalogDescs struct {
	consumers, services, unsent, inFlight, lag, acknowledged, refused, ended *prometheus.Desc
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
		services:     ownerDesc(fixed, "services", "Services in the catalog."),
		unsent:       ownerDesc(fixed, "unsent_services", "Services that were not sent yet, summed up over the consumers."),
		inFlight:     ownerDesc(fixed, "in_flight_responses", "Responses that were sent and are not acknowledged yet."),
		lag:          ownerDesc(fixed, "lag_seconds", "Age of the oldest change that some consumer has not acknowledged; 0 when every consumer has everything."),
		acknowledged: ownerDesc(fixed, "acknowledged_total", "Responses that consumers have acknowledged."),
		refused:      ownerDesc(fixed, "refused_total", "Responses that consumers have refused, by the field of the service that they name.", "field"),
		ended:        ownerDesc(fixed, "streams_ended_total", "Streams of consumers that have ended, by the gRPC code of their status.", "code"),
	}
}

// ownerDesc describes the metric federation_owner_<name>.
func ownerDesc(fixed prometheus.Labels, name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("federation", "owner", name), help, labels, fixed)
}

// Describe implements prometheus.Collector.
func (ownerMetrics) Describe(ch chan<- *prometheus.Desc) {
	c := describe("") // of the other catalogs only the fixed label is different
	for _, d := range []*prometheus.Desc{
		c.consumers, c.services, c.unsent, c.inFlight, c.lag, c.acknowledged, c.refused, c.ended,
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
		d := describe(name)
		for _, version := range []wire.Version{wire.V1Alpha2, wire.V1Alpha1} {
			gauge(d.consumers, float64(c.Consumers[version]), version.String())
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
		for field, n := range c.Refused {
			count(d.refused, n, field)
		}
		for code, n := range c.Ended {
			count(d.ended, n, code.String())
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
