package tracebridge

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
	b := &Bridge{waiting: make(map[trace.TraceID][]sdktrace.ReadOnlySpan)}
	b.OnEnd(endedSpan(0, false))
	if len(b.waiting) != 0 {
		t.Error("a child waits, but no server block has the plugin trace")
	}
	b.blocks = []*Block{{owners: []string{"another"}}}
	const many = 3 * maxWaiting
	for n := range many {
		b.OnEnd(endedSpan(n, false))
	}
	if len(b.waiting) != maxWaiting {
		t.Errorf("%d traces wait, want %d", len(b.waiting), maxWaiting)
	}
	for _, last := range []int{many - 1, many - maxWaiting} {
		if id := endedSpan(last, true).SpanContext().TraceID(); len(b.waiting[id]) != 1 {
			t.Errorf("trace %d does not wait, but older ones do", last)
		}
	}
	for range 2 * maxChildren {
		b.OnEnd(endedSpan(many-1, false))
	}
	root := endedSpan(many-1, true)
	if n := len(b.waiting[root.SpanContext().TraceID()]); n != maxChildren {
		t.Errorf("%d children wait, want %d", n, maxChildren)
	}
}

// unlocked is a plugin trace that takes note whether it is called under the lock of the bridge.
type unlocked struct {
	corednstrace.Trace
	opentracing.NoopTracer

	bridge *Bridge
	spans  int
	locked bool
}

func (u *unlocked) Tracer() opentracing.Tracer { return u }

func (u *unlocked) StartSpan(name string, options ...opentracing.StartSpanOption) opentracing.Span {
	u.spans++
	if u.bridge.mu.TryLock() {
		u.bridge.mu.Unlock()
	} else {
		u.locked = true
	}
	return u.NoopTracer.StartSpan(name, options...)
}

// TestTracerMayBlock has no lock held while a tracer is called: the children of other traces
// end while their catalogs are locked, and would wait for it.
func TestTracerMayBlock(t *testing.T) {
	b := &Bridge{waiting: make(map[trace.TraceID][]sdktrace.ReadOnlySpan)}
	u := &unlocked{bridge: b}
	b.blocks = []*Block{{Trace: u, owners: []string{""}}}
	b.OnEnd(endedSpan(1, false))
	b.OnEnd(endedSpan(1, true))
	if u.spans != 2 || u.locked {
		t.Errorf("%d spans, called under the lock: %v; want 2, not", u.spans, u.locked)
	}
}
