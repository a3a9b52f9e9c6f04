package stream

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// span is the span of the updates that are applied together: one, or as many as were
// waiting, which are maxUpdates at most. They are published and answered together, so a
// span for each of them would say the same again, and a catalog of 100,000 services would
// be half a million spans. What came is in its attributes where it is one update, and
// else in an event for each.
//
// A nil span does nothing.
type span struct {
	trace.Span

	tracer  trace.Tracer
	applied time.Time // when Sink.Apply had returned
}

// traced begins the span of updates that have come from the address, and returns the
// context for Sink.Apply, in which that is the current span. Where nothing is traced it
// returns ctx and nil, and allocates nothing.
func (c *Consumer) traced(ctx context.Context, address string, updates []Update) (context.Context, *span) {
	tracer := c.config.Tracer()
	if tracer == nil {
		return ctx, nil
	}
	first, last := &updates[0], &updates[len(updates)-1]
	ctx, root := tracer.Start(ctx, "federation.update", trace.WithTimestamp(first.Received),
		trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(attribute.String("federation.address", address), attribute.Int("federation.updates", len(updates))))
	if !root.IsRecording() {
		root.End()
		return ctx, nil
	}
	if !last.decoded.IsZero() { // else tracing began in between
		_, decode := tracer.Start(ctx, "federation.decode", trace.WithTimestamp(first.Received))
		decode.End(trace.WithTimestamp(last.decoded))
	}
	return ctx, &span{Span: root, tracer: tracer}
}

// describe says what the updates are and which of them are refused.
func (s *span) describe(updates []Update, refusals []*federation.InvalidError) {
	if s == nil {
		return
	}
	s.applied = time.Now()
	refused := 0
	for i := range updates {
		u := &updates[i]
		var about []attribute.KeyValue
		if u.Invalid == nil { // else nobody knows
			about = append(about, attribute.String("federation.operation", u.Operation.String()))
		}
		if u.Name != "" {
			about = append(about, attribute.String("federation.service", federation.Quote(u.Name)))
		}
		if invalid := refusal(updates, refusals, i); invalid != nil {
			refused++
			about = append(about, attribute.String("federation.reason", string(invalid.Reason)))
		}
		if len(updates) == 1 {
			s.SetAttributes(about...)
		} else {
			s.AddEvent("update", trace.WithTimestamp(u.Received), trace.WithAttributes(about...))
		}
	}
	s.SetAttributes(attribute.Int("federation.refused", refused))
}

// answered ends the span: all updates are acknowledged or refused, or err says why not.
func (s *span) answered(ctx context.Context, err error) {
	if s == nil {
		return
	}
	_, acknowledge := s.tracer.Start(ctx, "federation.acknowledge", trace.WithTimestamp(s.applied))
	if err != nil {
		acknowledge.SetStatus(codes.Error, err.Error())
	}
	acknowledge.End()
	s.fail(err)
}

// fail ends the span, with why the updates were not applied or not answered, or nil.
func (s *span) fail(err error) {
	if s == nil {
		return
	}
	if err != nil {
		s.SetStatus(codes.Error, err.Error())
	}
	s.End()
}
