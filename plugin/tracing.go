package federationplugin

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/plugin"
	corednstrace "github.com/coredns/coredns/plugin/pkg/trace"
	"github.com/opentracing/opentracing-go"
	otlog "github.com/opentracing/opentracing-go/log"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/hamlet-federation/coredns-federation/federation/stamp"
	"github.com/hamlet-federation/coredns-federation/federation/tracing"
)

// tracerSet is the tracers of the server blocks with the plugin trace, and the provider
// that makes their spans and those for OTLP.
type tracerSet struct {
	current atomic.Pointer[trace.Tracer] // nil while nothing is traced

	mu       sync.Mutex // guards the fields below
	provider *tracing.Provider
	blocks   []*tracedBlock // in the order of attachment
	waiting  map[trace.TraceID][]sdktrace.ReadOnlySpan
}

// tracedBlock is a server block with the plugin trace.
type tracedBlock struct {
	corednstrace.Trace

	configuration any
	owners        []string // their IDs
}

// The bounds of what waits: traces of which a child has ended, and the root has not, and
// children of one. There are as many traces as updates are under way, which is one for each
// owner, and four children.
const (
	maxWaiting  = 1000
	maxChildren = 16
)

// tracer returns what begins spans, or nil while nothing is traced.
func (s *tracerSet) tracer() trace.Tracer {
	if t := s.current.Load(); t != nil {
		return *t
	}
	return nil
}

// attach makes the spans of updates of the block's owners go to its plugin trace, if b is
// not nil, and all spans to the endpoint that the environment names, if it does.
func (s *tracerSet) attach(b *tracedBlock) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.provider == nil && (b != nil || tracing.Configured()) {
		provider, err := tracing.New(context.Background(), tracing.Config{ //nolint:forbidigo // CoreDNS has no context for a start
			Service: "coredns", Version: stamp.String(), Logger: newLogger(log), Processors: []sdktrace.SpanProcessor{s},
		})
		if err != nil {
			return err
		}
		s.provider, s.waiting = provider, make(map[trace.TraceID][]sdktrace.ReadOnlySpan)
	}
	if b != nil {
		s.blocks = append(s.blocks, b)
	}
	s.set()
	return nil
}

// detach is the reverse of attach.
func (s *tracerSet) detach(b *tracedBlock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocks = slices.DeleteFunc(s.blocks, func(other *tracedBlock) bool { return other == b })
	s.set()
}

// set makes it known whether anything is traced. s.mu is held.
func (s *tracerSet) set() {
	if s.provider == nil || len(s.blocks) == 0 && !tracing.Configured() {
		s.current.Store(nil)
		return
	}
	s.current.Store(new(s.provider.Tracer()))
}

// end exports what is left before the process ends.
func (s *tracerSet) end() error {
	s.mu.Lock()
	provider := s.provider
	s.provider = nil
	s.set()
	s.mu.Unlock()
	provider.Shutdown(context.Background()) //nolint:forbidigo // CoreDNS has no context for its end
	return nil
}

// retain detaches the blocks of all configurations but these.
func (s *tracerSet) retain(configurations []any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocks = slices.DeleteFunc(s.blocks, func(b *tracedBlock) bool { return !slices.Contains(configurations, b.configuration) })
	s.set()
}

// traced returns the block as it is attached to tracers: nil if the plugin trace, which is
// handler, is not in it.
func (f *Federation) traced(configuration any, handler plugin.Handler) *tracedBlock {
	t, ok := handler.(corednstrace.Trace)
	if !ok {
		return nil
	}
	b := &tracedBlock{Trace: t, configuration: configuration}
	for i := range f.config.Owners {
		b.owners = append(b.owners, f.config.Owners[i].ID())
	}
	return b
}

// OnStart implements sdktrace.SpanProcessor.
func (*tracerSet) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements sdktrace.SpanProcessor. A span of OpenTracing needs its parent when it
// begins, and children end first: they wait for the root.
func (s *tracerSet) OnEnd(span sdktrace.ReadOnlySpan) {
	id := span.SpanContext().TraceID()
	s.mu.Lock()
	if span.Parent().IsValid() {
		if len(s.blocks) > 0 {
			s.wait(id, span)
		}
		s.mu.Unlock()
		return
	}
	children := s.waiting[id]
	delete(s.waiting, id)
	tracer := s.tracerOf(ownerOf(span))
	s.mu.Unlock()
	if tracer == nil {
		return
	}
	// Not under the lock: children end while catalogs are locked, and a tracer may block.
	root := replay(tracer, span, nil)
	for _, child := range children {
		finish(replay(tracer, child, root.Context()), child)
	}
	finish(root, span)
}

// tracerOf returns the tracer of the first block that names the owner, or nil. s.mu is held.
func (s *tracerSet) tracerOf(owner string) opentracing.Tracer {
	for _, b := range s.blocks {
		if slices.Contains(b.owners, owner) {
			if tracer := b.Tracer(); tracer != nil { // the one of Datadog has none
				return tracer
			}
		}
	}
	return nil
}

// wait keeps a child until its root ends. Of too many traces the one goes that has waited
// longest: its root may never end. s.mu is held.
func (s *tracerSet) wait(id trace.TraceID, child sdktrace.ReadOnlySpan) {
	children, known := s.waiting[id]
	if !known && len(s.waiting) >= maxWaiting {
		var oldest trace.TraceID
		var since time.Time
		for other, of := range s.waiting {
			if ended := of[0].EndTime(); since.IsZero() || ended.Before(since) {
				oldest, since = other, ended
			}
		}
		delete(s.waiting, oldest)
	}
	if len(children) < maxChildren {
		s.waiting[id] = append(children, child)
	}
}

// Shutdown implements sdktrace.SpanProcessor.
func (*tracerSet) Shutdown(context.Context) error { return nil }

// ForceFlush implements sdktrace.SpanProcessor.
func (*tracerSet) ForceFlush(context.Context) error { return nil }

// ownerOf returns the owner that the span is about.
func ownerOf(span sdktrace.ReadOnlySpan) string {
	for _, a := range span.Attributes() {
		if a.Key == "federation.owner" {
			return a.Value.AsString()
		}
	}
	return ""
}

// replay begins a span that has ended, below a parent if that is not nil.
func replay(tracer opentracing.Tracer, span sdktrace.ReadOnlySpan, parent opentracing.SpanContext) opentracing.Span {
	options := []opentracing.StartSpanOption{opentracing.StartTime(span.StartTime()), opentracing.Tags(tags(span.Attributes()))}
	if parent != nil {
		options = append(options, opentracing.ChildOf(parent))
	}
	if status := span.Status(); status.Code == codes.Error {
		options = append(options, opentracing.Tag{Key: "error", Value: status.Description})
	}
	return tracer.StartSpan(span.Name(), options...)
}

// finish ends a span that replay has begun.
func finish(begun opentracing.Span, span sdktrace.ReadOnlySpan) {
	options := opentracing.FinishOptions{FinishTime: span.EndTime()}
	for _, e := range span.Events() {
		text := make([]string, len(e.Attributes))
		for i, a := range e.Attributes {
			text[i] = string(a.Key) + "=" + a.Value.String()
		}
		options.LogRecords = append(options.LogRecords, opentracing.LogRecord{
			Timestamp: e.Time, Fields: []otlog.Field{otlog.String(e.Name, strings.Join(text, " "))},
		})
	}
	begun.FinishWithOptions(options)
}

// tags returns attributes as OpenTracing has them.
func tags(attributes []attribute.KeyValue) map[string]any {
	all := make(map[string]any, len(attributes))
	for _, a := range attributes {
		all[string(a.Key)] = a.Value.AsInterface()
	}
	return all
}
