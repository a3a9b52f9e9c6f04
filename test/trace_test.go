package test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/miekg/dns"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// steps are the names of the spans of an update.
var steps = []string{"federation.acknowledge", "federation.apply", "federation.decode", "federation.publish", "federation.update"}

// otlpServer is a collector of OTLP.
type otlpServer struct {
	collector.UnimplementedTraceServiceServer

	mu     sync.Mutex
	traces map[string][]string // the names of the spans of each trace
	abouts []string            // what is known of the updates
}

func (o *otlpServer) add(trace, name, about string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.traces == nil {
		o.traces = make(map[string][]string)
	}
	o.traces[trace] = append(o.traces[trace], name)
	if name == "federation.update" {
		o.abouts = append(o.abouts, about)
	}
}

// lacks returns what is missing for whole traces, one of them with all of these words.
func (o *otlpServer) lacks(words ...string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, names := range o.traces {
		if slices.Sort(names); !slices.Equal(names, steps) {
			return fmt.Sprintf("a trace has the spans %q, want %q", names, steps)
		}
	}
	for _, about := range o.abouts {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(about, word) }) {
			return ""
		}
	}
	return fmt.Sprintf("no span is about %q, but %q", words, o.abouts)
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
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
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

// TestTraces has CoreDNS export the spans of updates by OTLP, at the latest when it ends.
func TestTraces(t *testing.T) {
	p := newPKI(t)
	otlp := startOTLP(t)
	o := startOwner(t, p.owner, "", webService(t, "fed.example"))
	d := startCoreDNS(t, fmt.Sprintf(`.:PORT {
		federation fed.example {
			owner %s
			%s
		}
	}`, o.address, p.tls()))
	d.awaitAnswer(t, "web.fed.example", dns.TypeA, "NOERROR 192.0.2.1")
	d.end(t, syscall.SIGTERM)
	if lack := otlp.lacks("coredns", "federation.service", "web", "upsert", o.address); lack != "" {
		t.Error(lack)
	}
}
