package consumer

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// steps are the spans of what becomes of updates, one after the other, below the current
// one of a context. A nil steps does nothing.
type steps struct {
	ctx     context.Context //nolint:containedctx // which span the steps are of
	tracer  trace.Tracer
	current trace.Span // nil before the first
}

// trace returns the steps of the updates that are in the span of ctx, or nil where nothing
// is traced.
func (m *Mirror) trace(ctx context.Context) *steps {
	if m.config.Tracer == nil {
		return nil
	}
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return nil
	}
	span.SetAttributes(attribute.String("federation.owner", m.config.Name))
	return &steps{ctx: ctx, tracer: span.TracerProvider().Tracer("federation")}
}

// begin ends the step before, and begins one.
func (s *steps) begin(name string) {
	if s == nil {
		return
	}
	s.end()
	_, s.current = s.tracer.Start(s.ctx, name) //nolint:spancheck // end ends it
}

// end ends the last step.
func (s *steps) end() {
	if s != nil && s.current != nil {
		s.current.End()
		s.current = nil
	}
}
