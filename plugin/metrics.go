package federationplugin

import (
	"slices"
	"sync"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/scrape"
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
	prometheus.MustRegister(responses, nacks, sessions, staleAnswers, persistErrors, updateDuration, scrape.NewCollector(plugin.Namespace+"_"+corefile.Directive+"_", sendOwners))
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

// states are the values of the label of owner_state.
var states = []string{"connecting", "syncing", "synced", "stale", "expired", "parked"}

// sendOwners sends the state of the owners.
func sendOwners(process scrape.Scrape) {
	process.Flag("ready", "1 once this plugin is ready: its owners are known, or have had their time to become known.", owners.Ready())
	now := time.Now()
	for _, o := range owners.OwnerReports(now) {
		to := process.With("owner", o.ID)
		for _, s := range states {
			to.Flag("owner_state", "1 for the state that an owner is in, 0 for the others: connecting, syncing, synced, stale, expired and parked.", s == o.State, "state", s)
		}
		to.Gauge("services", "Services of an owner's catalog.", float64(o.Services))
		to.Gauge("updates_not_imported", "Updates of services that import_names leaves out, since an owner's stream was opened: each update counts.", float64(o.NotImported))
		to.Gauge("instances", "Instances of an owner's services.", float64(o.Instances))
		to.Gauge("owner_hops", "Through how many owners the services of an owner come: 1 without a relay, 0 if that is not known.", float64(o.Hops))
		if o.Retention > 0 {
			to.Gauge("retention_seconds", "How long the records of an owner stay after its loss; absent if they stay for ever.", o.Retention)
		}
		to.Count("resumed_streams_total", "Streams on which an owner has sent only what differed from what was held.", o.Resumes)
		for reason, n := range o.Conflicts {
			to.Gauge("conflicts", "Names and records of an owner that are not published, by reason.", float64(n), "reason", reason)
		}
		to.Time("last_attempt_timestamp_seconds", "When the last attempt to connect to an owner began.", o.LastAttempt)
		to.Time("last_sync_timestamp_seconds", "When an owner's catalog was last complete.", o.LastSync)
		if !o.Lost.IsZero() {
			to.Time("stale_since_timestamp_seconds", "When a lost owner was lost.", o.Lost)
			left, _ := o.RemainingRetention(now)
			to.Gauge("retention_remaining_seconds", "How long the records of a lost owner stay.", left.Seconds())
		}
		expires := map[string]time.Time{o.CertificateFile: o.Certificate, o.AuthorityFile: o.Authority}
		if len(expires) == 1 { // one file can hold both, as an agent does
			expires[o.CertificateFile] = slices.MinFunc([]time.Time{o.Certificate, o.Authority}, time.Time.Compare)
		}
		for file, at := range expires {
			to.Time("certificate_expiry_timestamp_seconds", "When the certificate for an owner or an authority in the CA bundle expires. With spiffe the file is the socket, and the earliest expiry counts.", at, "file", file)
		}
	}
}
