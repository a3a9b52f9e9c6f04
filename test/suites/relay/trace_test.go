package relay

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// otlpServer is a collector of OTLP.
type otlpServer struct {
	collector.UnimplementedTraceServiceServer

	mu     sync.Mutex
	traces map[string][]*tracepb.Span // by trace
}

// Export implements collector.TraceServiceServer.
func (o *otlpServer) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, of := range r.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				o.traces[string(s.GetTraceId())] = append(o.traces[string(s.GetTraceId())], s)
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// lacks returns why the traces are not those of so many updates, each in one of them.
func (o *otlpServer) lacks(updates int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	got := 0
	for _, spans := range o.traces {
		names := make(map[string]*tracepb.Span)
		for _, s := range spans {
			names[s.GetName()] = s
		}
		want := []string{"federation.acknowledge", "federation.apply", "federation.decode", "federation.publish", "federation.update"}
		if have := slices.Sorted(maps.Keys(names)); !slices.Equal(have, want) || len(spans) != len(want) {
			return fmt.Sprintf("a trace has %d spans, %q", len(spans), have)
		}
		about := make(map[string]string)
		root := names["federation.update"]
		for _, a := range root.GetAttributes() {
			about[a.GetKey()] = a.GetValue().GetStringValue()
			if a.GetKey() == "federation.updates" {
				together := int(a.GetValue().GetIntValue())
				if events := len(root.GetEvents()); together > 64 || together > 1 && events != together || together == 1 && events != 0 {
					return fmt.Sprintf("a span of %d updates has %d events", together, events)
				}
				got += together
			}
		}
		if about["federation.address"] == "" || about["federation.owner"] == "" {
			return fmt.Sprintf("a span is about %v", about)
		}
	}
	if got < updates {
		return fmt.Sprintf("%d traces are about %d updates, want %d", len(o.traces), got, updates)
	}
	return ""
}

// TestTraces has a relay export the spans of the updates from its origin by OTLP: a whole
// catalog, and then one change.
func TestTraces(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must.Do(t, err)
	o, server := &otlpServer{traces: make(map[string][]*tracepb.Span)}, grpc.NewServer()
	collector.RegisterTraceServiceServer(server, o)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		must.Do(t, <-served)
	})
	const many = 300
	all := make(map[string]string, many)
	for i := range many {
		all[fmt.Sprintf("s%d", i)] = fmt.Sprintf("10.1.%d.%d", i>>8, i&255)
	}
	p := newWorld(t)
	origin := p.origin(t, services(all))
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+listener.Addr().String())
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50") // milliseconds
	p.relay(t, "relay", origin, ownerID, "")
	eventually(t, func() string { return o.lacks(many) })
	all["s0"] = "10.2.0.0"
	p.Put(t, "catalog.yaml", services(all))
	eventually(t, func() string { return o.lacks(many + 1) })
}
