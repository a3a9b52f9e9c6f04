// Package metrics tells over HTTP how an owner is doing: metrics for Prometheus,
// health and readiness for probes, and the status in JSON.
//
// Only packages of this module import it: it is not a stable API.
package metrics

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/serve"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
)

// Handler serves /metrics, /healthz and /readyz, and at / the status in JSON.
func Handler(report func() serve.Report) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metricsHandler(report))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeReply(w, http.StatusOK, "ok\n")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if waiting := report().Waiting; len(waiting) > 0 {
			writeReply(w, http.StatusServiceUnavailable, "not ready\n"+joinLines(waiting))
			return
		}
		writeReply(w, http.StatusOK, "ready\n")
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false)
		_ = encoder.Encode(report().Status) // a client that is gone needs no answer
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
