package test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	_ "github.com/coredns/coredns/plugin/trace" // which the CoreDNS of these tests has as well
	"github.com/miekg/dns"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// steps are the names of the spans of an update.
var steps = []string{"federation.acknowledge", "federation.apply", "federation.decode", "federation.publish", "federation.update"}

// spans are the names of the spans of each trace.
type spans struct {
	mu     sync.Mutex
	traces map[string][]string
	abouts []string // what is known of the updates
}

func (s *spans) add(trace, name, about string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.traces == nil {
		s.traces = make(map[string][]string)
	}
	s.traces[trace] = append(s.traces[trace], name)
	if name == "federation.update" {
		s.abouts = append(s.abouts, about)
	}
}

// lacks returns what is missing for whole traces, one of them with all of these words.
func (s *spans) lacks(words ...string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, names := range s.traces {
		if slices.Sort(names); !slices.Equal(names, steps) {
			return fmt.Sprintf("a trace has the spans %q, want %q", names, steps)
		}
	}
	for _, about := range s.abouts {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(about, word) }) {
			return ""
		}
	}
	return fmt.Sprintf("no span is about %q, but %q", words, s.abouts)
}

// otlpServer is a collector of OTLP.
type otlpServer struct {
	collector.UnimplementedTraceServiceServer
	spans
}

// Export implements collector.TraceServiceServer.
func (o *otlpServer) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	for _, of := range r.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				o.add(string(s.GetTraceId()), s.GetName(), fmt.Sprint(of.GetResource().GetAttributes(), s.GetAttributes()))
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// startOTLP starts a collector, and has the environment name it.
func startOTLP(t *testing.T) *otlpServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o, server := new(otlpServer), grpc.NewServer()
	collector.RegisterTraceServiceServer(server, o)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+listener.Addr().String())
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000") // milliseconds: only the end of a process exports
	return o
}

// startZipkin starts a server that takes spans as the plugin trace sends them.
func startZipkin(t *testing.T) (*spans, string) {
	t.Helper()
	got := new(spans)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var all []struct {
			TraceID string            `json:"traceId"`
			Name    string            `json:"name"`
			Tags    map[string]string `json:"tags"`
		}
		if err == nil {
			err = json.Unmarshal(body, &all)
		}
		if err != nil {
			t.Error(err)
		}
		for _, s := range all {
			if s.Name != "servedns" {
				got.add(s.TraceID, s.Name, fmt.Sprint(s.Tags))
			}
		}
	}))
	t.Cleanup(server.Close)
	return got, server.URL + "/api/v2/spans"
}

// TestTraces has CoreDNS export the spans of updates in both ways: to the plugin trace
// while it runs, and by OTLP, at the latest when it ends.
func TestTraces(t *testing.T) {
	p := newPKI(t)
	otlp := startOTLP(t)
	zipkin, url := startZipkin(t)
	o := startOwner(t, p.owner, "", webService(t, "fed.example"))
	d := startCoreDNS(t, fmt.Sprintf(`.:PORT {
		trace zipkin %s {
			every 0
		}
		federation fed.example {
			owner %s
			%s
		}
	}`, url, o.address, p.tls()))
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	eventually(t, patience, func() string {
		return zipkin.lacks("federation.service:\"web", "federation.operation:upsert", o.address)
	})
	d.end(t, syscall.SIGTERM)
	if lack := otlp.lacks("coredns", "federation.service", "web", "upsert", o.address); lack != "" {
		t.Error(lack)
	}
}
