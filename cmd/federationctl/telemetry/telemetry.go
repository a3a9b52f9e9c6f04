// Package telemetry tells over HTTP how an owner is doing: metrics for Prometheus,
// health and readiness for probes, and a page for the person on call.
package telemetry

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/publisher"
	"github.com/hamlet-federation/coredns-federation/federation/problem"
	"github.com/hamlet-federation/coredns-federation/federation/source"
	"github.com/hamlet-federation/coredns-federation/federation/wire"
)

// Handler serves /metrics, /healthz, /readyz and the status page /. Status returns the
// status of the owner, and version is that of the program.
func Handler(version string, status func() publisher.Status) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics(status))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, "ok\n")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if waiting := status().Waiting; len(waiting) > 0 {
			reply(w, http.StatusServiceUnavailable, "not ready\n"+lines(waiting))
			return
		}
		reply(w, http.StatusOK, "ready\n")
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		var page bytes.Buffer
		write(&page, version, status(), time.Now())
		reply(w, http.StatusOK, page.String())
	})
	return mux
}

func reply(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text) // a client that is gone needs no answer
}

// lines returns texts, one a line.
func lines(texts []string) string {
	var b strings.Builder
	for _, text := range texts {
		b.WriteString(problem.Printable(text) + "\n")
	}
	return b.String()
}

// write writes the status page.
func write(w io.Writer, version string, s publisher.Status, now time.Time) {
	fmt.Fprintf(w, "federationctl %s, serving %s\n", version, since(s.Began, now))
	if len(s.Waiting) == 0 {
		fmt.Fprintln(w, "ready")
	} else {
		fmt.Fprintf(w, "not ready\n%s", lines(s.Waiting))
	}
	fmt.Fprintf(w, "connections: %d\n", s.Server.Connections)
	if !s.Certificate.IsZero() {
		fmt.Fprintf(w, "certificate: expires %s, CA %s\n", s.Certificate.UTC().Format(time.RFC3339), s.CA.UTC().Format(time.RFC3339))
	}
	if s.File != "" {
		fmt.Fprintf(w, "configuration: %s, in effect %s\n", problem.Printable(s.File), since(s.Applied, now))
	}
	if len(s.Restart) > 0 {
		fmt.Fprintf(w, "new values wait for a restart: %s\n", strings.Join(s.Restart, ", "))
	}
	for _, file := range slices.Sorted(maps.Keys(s.Broken)) {
		if err := s.Broken[file]; err != nil {
			fmt.Fprintf(w, "broken: %s: %s\n", file, problem.Printable(err.Error()))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Catalogs)) {
		of := s.Server.Catalogs[name]
		fmt.Fprintf(w, "\ncatalog %s: %d services, consumers:", publisher.Shown(name), of.Services)
		for _, version := range []wire.Version{wire.V1Alpha2, wire.V1Alpha1} {
			fmt.Fprintf(w, " %d %s", of.Consumers[version], version)
		}
		fmt.Fprintln(w)
		for _, class := range classes(of) {
			fmt.Fprintf(w, "  class %s: %d consumers, %d services\n", class.name, class.consumers, class.services)
		}
		if reason := s.Catalogs[name].Unavailable; reason != "" {
			fmt.Fprintf(w, "  unavailable: %s\n", problem.Printable(reason))
		}
		for _, of := range s.Catalogs[name].Sources {
			writeSource(w, of, now)
			if of.Staying {
				writeRegistration(w, s.Registrations[name], of.Name)
			}
		}
	}
}

// writeSource writes what there is to say of one source.
func writeSource(w io.Writer, of source.SourceStatus, now time.Time) {
	state := "current"
	switch {
	case of.Away != "":
		state = "away " + since(of.Since, now)
	case !of.Complete:
		state = "waiting for its first state"
	}
	switch {
	case !of.Published:
		state += ", not published yet"
	case !of.Staying:
		state += ", published until the next configuration is complete"
	}
	fmt.Fprintf(w, "  source %s: %s, %d services", problem.Printable(of.Name), state, of.Services)
	if of.Hidden > 0 {
		fmt.Fprintf(w, ", %d hidden by sources before it", of.Hidden)
	}
	for _, rule := range slices.Sorted(maps.Keys(of.Refused)) {
		fmt.Fprintf(w, ", %d refused (%s)", of.Refused[rule], problem.Printable(rule))
	}
	fmt.Fprintln(w)
	if of.Away != "" {
		fmt.Fprintf(w, "    %s\n", problem.Printable(of.Away))
	}
}

// writeRegistration writes what there is to say of a source in which programs register,
// if it is one.
func writeRegistration(w io.Writer, registrations map[string]publisher.Registration, source string) {
	of, ok := registrations[source]
	if !ok {
		return
	}
	fmt.Fprintf(w, "    registered on %s: %d nodes, %d providers", of.Address, of.Nodes, of.Streams)
	if of.Old > 0 {
		fmt.Fprintf(w, ", %d nodes whose providers are not back yet", of.Old)
	}
	if of.Pending > 0 {
		fmt.Fprintf(w, ", %d changes not stored yet", of.Pending)
	}
	if of.Convergence > 0 {
		fmt.Fprintf(w, ", converging for another %v", of.Convergence.Round(time.Second))
	}
	if of.StoreAway {
		fmt.Fprint(w, ", the store is away")
	}
	fmt.Fprintln(w)
}

// since says when something began.
func since(t, now time.Time) string {
	return fmt.Sprintf("since %s (%v)", t.UTC().Format(time.RFC3339), now.Sub(t).Round(time.Second))
}
