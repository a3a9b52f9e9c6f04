// Package metrics tells over HTTP how an owner or an importer is doing: metrics for Prometheus,
// health and readiness for probes, and the status in JSON.
//
// Only packages of this module import it: it is not a stable API.
package metrics

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/status"
)

// Handler serves the collected metrics and those of the process at /metrics, /healthz and /readyz, and at / the
// status in JSON.
func Handler(report func() status.Status, collected prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collected, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeReply(w, http.StatusOK, "ok\n")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if s := report(); !s.Ready {
			writeReply(w, http.StatusServiceUnavailable, "not ready\n"+joinLines(s.Waiting))
			return
		}
		writeReply(w, http.StatusOK, "ready\n")
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false)
		_ = encoder.Encode(report()) // a client that is gone needs no answer
	})
	return mux
}

func writeReply(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text) // a client that is gone needs no answer
}

// joinLines returns texts, one a line.
func joinLines(texts []string) string {
	var b strings.Builder
	for _, text := range texts {
		b.WriteString(safetext.Printable(text) + "\n")
	}
	return b.String()
}
