// Package scrape sends metrics to Prometheus while that scrapes a process: [NewCollector] collects them, and
// a [Scrape] takes them. So a series exists for exactly as long as what it is about, and a metric is declared
// where its value is. Values of labels are of small fixed sets, or stand in the configuration: never a peer, a
// service, or text that a peer has sent.
package scrape

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Scrape takes the metrics of one scrape. The labels of a metric are names, each with its value behind it.
type Scrape struct {
	prefix string
	fixed  prometheus.Labels
	ch     chan<- prometheus.Metric
}

// NewCollector returns a collector that calls collect for each scrape. The names of its metrics begin with
// the prefix.
func NewCollector(prefix string, collect func(Scrape)) prometheus.Collector {
	return collector{prefix, collect}
}

type collector struct {
	prefix  string
	collect func(Scrape)
}

// Describe implements prometheus.Collector. It describes nothing, as package prometheus allows.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) { c.collect(Scrape{c.prefix, nil, ch}) }

// With returns a Scrape whose metrics all have a label. An empty value is no label, as in Prometheus.
func (s Scrape) With(label, value string) Scrape {
	if value != "" {
		s.fixed = prometheus.Labels{label: value}
	}
	return s
}

// Gauge sends a gauge.
func (s Scrape) Gauge(name, help string, value float64, labels ...string) {
	s.send(prometheus.GaugeValue, name, help, value, labels)
}

// Flag sends a gauge that is 1 for true and 0 for false.
func (s Scrape) Flag(name, help string, is bool, labels ...string) {
	value := 0.0
	if is {
		value = 1
	}
	s.Gauge(name, help, value, labels...)
}

// Time sends a gauge with the seconds since 1970, unless the time is zero.
func (s Scrape) Time(name, help string, at time.Time, labels ...string) {
	if !at.IsZero() {
		s.Gauge(name, help, float64(at.UnixMilli())/1000, labels...)
	}
}

// Count sends a counter.
func (s Scrape) Count(name, help string, value uint64, labels ...string) {
	s.send(prometheus.CounterValue, name, help, float64(value), labels)
}

func (s Scrape) send(kind prometheus.ValueType, name, help string, value float64, labels []string) {
	var names, values []string
	for pair := range slices.Chunk(labels, 2) {
		names, values = append(names, pair[0]), append(values, pair[1])
	}
	desc := prometheus.NewDesc(s.prefix+name, help, names, s.fixed)
	s.ch <- prometheus.MustNewConstMetric(desc, kind, value, values...)
}
