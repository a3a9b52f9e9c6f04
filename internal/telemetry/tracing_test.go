package telemetry_test

import (
	"bytes"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/telemetry"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestHangingCollector ends while the endpoint takes connections and says nothing: that
// holds nobody up for long.
func TestHangingCollector(t *testing.T) {
	var listening net.ListenConfig
	listener := must.Get(listening.Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	defer listener.Close() // the backlog of the kernel accepts
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+listener.Addr().String())
	var log bytes.Buffer
	p := must.Get(telemetry.New(t.Context(), telemetry.Config{Service: "test", Logger: slog.New(slog.NewTextHandler(&log, nil))}))(t)
	for range 10_000 { // more than the queue of spans has room for
		_, span := p.Tracer().Start(t.Context(), "federation.update")
		span.End()
	}
	ended := make(chan struct{})
	go func() {
		p.Shutdown(t.Context())
		close(ended)
	}()
	select {
	case <-ended: // after 3 seconds on a machine that is not busy
	case <-time.After(time.Minute):
		t.Fatal("the process does not end")
	}
	if !bytes.Contains(log.Bytes(), []byte("spans cannot be exported")) {
		t.Errorf("the log says nothing: %s", &log)
	}
}

// TestUnusable names variables that cannot be used.
func TestUnusable(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
	_, err := telemetry.New(t.Context(), telemetry.Config{Service: "test", Logger: slog.New(slog.DiscardHandler)})
	if want := `OTEL_EXPORTER_OTLP_PROTOCOL: "http/protobuf" is not grpc, and there is no other exporter`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
