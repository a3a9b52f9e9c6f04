package federationplugin

import (
	"slices"
	"sync"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/agent"
	"github.com/hamlet-federation/coredns-federation/internal/wire"
	"github.com/hamlet-federation/coredns-federation/plugin/corefile"
)

// Labels hold an owner's ID or a word of a small fixed set: never a name, a type
// or a client.
var (
	responses = counter("responses_total", "Accepted responses of an owner, by operation: upsert, delete, end or alive.", "operation")
	nacks     = counter("nacks_total", "Responses that were refused, by the rule that they broke: undecodable, missing, name, address, port, protocol, limit, out_of_zone or reserved_name.", "reason")
	sessions  = counter("sessions_total", "Streams and attempts to open one, by the gRPC code that they ended with.", "code")

	staleAnswers  = counter("stale_answers_total", "Answers from the records of an owner that is lost.")
	persistErrors = counter("persist_errors_total", "Catalogs that could not be saved or restored.")

	updateDuration = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: plugin.Namespace, Subsystem: corefile.Directive, Name: "update_duration_seconds",
		Help:    "Time from the receipt of an update until queries see it.",
		Buckets: prometheus.ExponentialBuckets(0.00001, 4, 10), // 10 us to 2.6 s
	})
)

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: corefile.Directive, Name: name, Help: help,
	}, append([]string{"owner"}, labels...))
}

// registerMetrics registers the metrics, once in a process: owners and their series
// outlive a configuration.
var registerMetrics = sync.OnceFunc(func() {
	prometheus.MustRegister(responses, nacks, sessions, staleAnswers, persistErrors, updateDuration, ownerCollector{owners})
})

// metricsObserver counts what the agent reports.
type metricsObserver struct{}

// Responded implements agent.Observer.
func (metricsObserver) Responded(owner string, op wire.Operation) {
	responses.WithLabelValues(owner, op.String()).Inc()
}

// Refused implements agent.Observer.
func (metricsObserver) Refused(owner string, reason federation.Reason) {
	nacks.WithLabelValues(owner, string(reason)).Inc()
}

// Ended implements agent.Observer.
func (metricsObserver) Ended(owner, code string) { sessions.WithLabelValues(owner, code).Inc() }

// Visible implements agent.Observer.
func (metricsObserver) Visible(d time.Duration) { updateDuration.Observe(d.Seconds()) }

// PersistFailed implements agent.Observer.
func (metricsObserver) PersistFailed(owner string) { persistErrors.WithLabelValues(owner).Inc() }

// Forgotten implements agent.Observer.
func (metricsObserver) Forgotten(owner string) {
	for _, c := range []*prometheus.CounterVec{responses, nacks, sessions, staleAnswers, persistErrors} {
		c.DeletePartialMatch(prometheus.Labels{"owner": owner})
	}
}

// ownerCollector reads the state of the owners when it is scraped, so that a series exists for
// exactly as long as its owner.
type ownerCollector struct{ agent *agent.Agent }

var (
	stateDesc       = gauge("owner_state", "1 for the state that an owner is in, 0 for the others: connecting, syncing, synced, stale, expired and parked.", "state")
	servicesDesc    = gauge("services", "Services of an owner's catalog.")
	notImportedDesc = gauge("updates_not_imported", "Updates of services that import_names leaves out, since an owner's stream was opened: each update counts.")
	instancesDesc   = gauge("instances", "Instances of an owner's services.")
	conflictsDesc   = gauge("conflicts", "Names and records of an owner that are not published, by reason.", "reason")
	attemptDesc     = gauge("last_attempt_timestamp_seconds", "When the last attempt to connect to an owner began.")
	syncDesc        = gauge("last_sync_timestamp_seconds", "When an owner's catalog was last complete.")
	staleDesc       = gauge("stale_since_timestamp_seconds", "When a lost owner was lost.")
	remainingDesc   = gauge("retention_remaining_seconds", "How long the records of a lost owner stay.")
	retentionDesc   = gauge("retention_seconds", "How long the records of an owner stay after its loss; absent if they stay for ever.")
	hopsDesc        = gauge("owner_hops", "Through how many owners the services of an owner come: 1 without a relay, 0 if that is not known.")
	resumesDesc     = gauge("resumed_streams_total", "Streams on which an owner has sent only what differed from what was held.")
	expiryDesc      = gauge("certificate_expiry_timestamp_seconds", "When the certificate for an owner or an authority in the CA bundle expires. With spiffe the file is the socket, and the earliest expiry counts.", "file")
)

// readyDesc has no owner: readiness is that of the process.
var readyDesc = prometheus.NewDesc(prometheus.BuildFQName(plugin.Namespace, corefile.Directive, "ready"),
	"1 once this plugin is ready: its owners are known, or have had their time to become known.", nil, nil)

// states are the values of the label of owner_state.
var states = []string{"connecting", "syncing", "synced", "stale", "expired", "parked"}

func gauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(plugin.Namespace, corefile.Directive, name), help,
		append([]string{"owner"}, labels...), nil)
}

// Describe implements prometheus.Collector.
func (ownerCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		stateDesc, servicesDesc, notImportedDesc, instancesDesc, conflictsDesc, attemptDesc, syncDesc,
		staleDesc, remainingDesc, retentionDesc, hopsDesc, resumesDesc, expiryDesc, readyDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c ownerCollector) Collect(ch chan<- prometheus.Metric) {
	ready := 0.0
	if c.agent.Ready() {
		ready = 1
	}
	ch <- prometheus.MustNewConstMetric(readyDesc, prometheus.GaugeValue, ready)
	now := time.Now()
	for _, o := range c.agent.OwnerReports(now) {
		send := func(d *prometheus.Desc, value float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, append([]string{o.ID}, labels...)...)
		}
		sendTime := func(d *prometheus.Desc, at time.Time, labels ...string) {
			if !at.IsZero() {
				send(d, float64(at.UnixMilli())/1000, labels...)
			}
		}
		for _, s := range states {
			value := 0.0
			if s == o.State {
				value = 1
			}
			send(stateDesc, value, s)
		}
		send(servicesDesc, float64(o.Services))
		send(notImportedDesc, float64(o.NotImported))
		send(instancesDesc, float64(o.Instances))
		send(hopsDesc, float64(o.Hops))
		if o.Retention > 0 {
			send(retentionDesc, o.Retention)
		}
		ch <- prometheus.MustNewConstMetric(resumesDesc, prometheus.CounterValue, float64(o.Resumes), o.ID)
		for reason, n := range o.Conflicts {
			send(conflictsDesc, float64(n), reason)
		}
		sendTime(attemptDesc, o.LastAttempt)
		sendTime(syncDesc, o.LastSync)
		if !o.Lost.IsZero() {
			sendTime(staleDesc, o.Lost)
			left, _ := o.RemainingRetention(now)
			send(remainingDesc, left.Seconds())
		}
		if o.CertificateFile == o.AuthorityFile { // one file can hold both, as an agent does
			sendTime(expiryDesc, slices.MinFunc([]time.Time{o.Certificate, o.Authority}, time.Time.Compare), o.CertificateFile)
			continue
		}
		sendTime(expiryDesc, o.Certificate, o.CertificateFile)
		sendTime(expiryDesc, o.Authority, o.AuthorityFile)
	}
}
