package federationplugin

import (
	"encoding/binary"
	"testing"
	"time"

	corednstrace "github.com/coredns/coredns/plugin/pkg/trace"
	"github.com/opentracing/opentracing-go"
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

// unlocked is a plugin trace that takes note whether it is called under the lock of the set.
type unlocked struct {
	corednstrace.Trace
	opentracing.NoopTracer

	set    *tracerSet
	spans  int
	locked bool
}

func (u *unlocked) Tracer() opentracing.Tracer { return u }

func (u *unlocked) StartSpan(name string, options ...opentracing.StartSpanOption) opentracing.Span {
	u.spans++
	if u.set.mu.TryLock() {
		u.set.mu.Unlock()
	} else {
		u.locked = true
	}
	return u.NoopTracer.StartSpan(name, options...)
}

// TestTracerMayBlock has no lock held while a tracer is called: the children of other traces
// end while their catalogs are locked, and would wait for it.
func TestTracerMayBlock(t *testing.T) {
	s := &tracerSet{waiting: make(map[trace.TraceID][]sdktrace.ReadOnlySpan)}
	u := &unlocked{set: s}
	s.blocks = []*tracedBlock{{Trace: u, owners: []string{""}}}
	s.OnEnd(endedSpan(1, false))
	s.OnEnd(endedSpan(1, true))
	if u.spans != 2 || u.locked {
		t.Errorf("%d spans, called under the lock: %v; want 2, not", u.spans, u.locked)
	}
}
