package federationplugin

import (
	"encoding/binary"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// endedSpan returns a span of the trace n, the root or a child of it.
func endedSpan(n int, root bool) sdktrace.ReadOnlySpan {
	var id trace.TraceID
	binary.BigEndian.PutUint64(id[8:], uint64(n+1))
	of := trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{1}})
	stub := tracetest.SpanStub{
		SpanContext: of.WithSpanID(trace.SpanID{2}), Parent: of, EndTime: time.Unix(int64(n), 0),
	}
	if root {
		stub.SpanContext, stub.Parent = of, trace.SpanContext{}
	}
	return stub.Snapshot()
}

// TestWaitingRoots has many more roots never end than may wait. Neither they nor children
// without number fill memory, and they take the room of none that comes later.
func TestWaitingRoots(t *testing.T) {
	s := &tracerSet{waiting: make(map[trace.TraceID][]sdktrace.ReadOnlySpan)}
	s.OnEnd(endedSpan(0, false))
	if len(s.waiting) != 0 {
		t.Error("a child waits, but no server block has the plugin trace")
	}
	s.blocks = []*tracedBlock{{owners: []string{"another"}}}
	const many = 3 * maxWaiting
	for n := range many {
		s.OnEnd(endedSpan(n, false))
	}
	if len(s.waiting) != maxWaiting {
		t.Errorf("%d traces wait, want %d", len(s.waiting), maxWaiting)
	}
	for _, last := range []int{many - 1, many - maxWaiting} {
		if id := endedSpan(last, true).SpanContext().TraceID(); len(s.waiting[id]) != 1 {
			t.Errorf("trace %d does not wait, but older ones do", last)
		}
	}
	for range 2 * maxChildren {
		s.OnEnd(endedSpan(many-1, false))
	}
	root := endedSpan(many-1, true)
	if n := len(s.waiting[root.SpanContext().TraceID()]); n != maxChildren {
		t.Errorf("%d children wait, want %d", n, maxChildren)
	}
}
