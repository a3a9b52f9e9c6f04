package stream

import (
	"context"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// TestUntraced has updates pass where nothing is traced, which costs no allocation.
func TestUntraced(t *testing.T) {
	c := &Consumer{config: Config{Tracer: func() trace.Tracer { return nil }}}
	updates := []Update{{Event: federation.Event{Operation: federation.Upsert, Name: "web"}, Received: time.Now()}}
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() {
		traced, span := c.traced(ctx, "owner.example:8008", updates)
		if traced != ctx || span != nil {
			t.Error("there is a span")
		}
		span.describe(updates, nil)
		span.answered(traced, nil)
		span.fail(nil)
	}); n != 0 {
		t.Errorf("%v allocations for a batch of updates", n)
	}
}
