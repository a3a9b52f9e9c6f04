// Package tracebridge gives the spans of updates to CoreDNS: what OpenTelemetry has
// recorded is told again to the plugin trace, which speaks OpenTracing, of each server
// block that the owner of the update is in. It also sends all spans to the endpoint that
// the environment names, if it does.
package tracebridge

import (
	"context"
	"log/slog"
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

// Bridge is the server blocks with the plugin trace, and the provider that makes their
// spans and those for OTLP. It implements sdktrace.SpanProcessor.
type Bridge struct {
	logger  *slog.Logger                 // read-only
	current atomic.Pointer[trace.Tracer] // nil while nothing is traced

	mu       sync.Mutex // guards the fields below
	provider *tracing.Provider
	blocks   []*Block // in the order of attachment
	waiting  map[trace.TraceID][]sdktrace.ReadOnlySpan
}

// New returns a bridge without server blocks, by which nothing is traced.
func New(logger *slog.Logger) *Bridge { return &Bridge{logger: logger} }

// Block is a server block with the plugin trace.
type Block struct {
	corednstrace.Trace

	configuration any
	owners        []string // their IDs
}

// NewBlock returns the server block of a configuration with these owners, by their IDs. It
// is nil if handler is not the plugin trace.
func NewBlock(configuration any, handler plugin.Handler, owners []string) *Block {
	t, ok := handler.(corednstrace.Trace)
	if !ok {
		return nil
	}
	return &Block{t, configuration, owners}
}

// The bounds of what waits: traces of which a child has ended, and the root has not, and
// children of one. There are as many traces as updates are under way, which is one for each
// owner, and four children.
const (
	maxWaiting  = 1000
	maxChildren = 16
)

// Tracer returns what begins spans, or nil while nothing is traced.
func (b *Bridge) Tracer() trace.Tracer {
	if t := b.current.Load(); t != nil {
		return *t
	}
	return nil
}

// Attach makes the spans of updates of the block's owners go to its plugin trace, if
// block is not nil, and all spans to the endpoint that the environment names, if it does.
func (b *Bridge) Attach(block *Block) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.provider == nil && (block != nil || tracing.Configured()) {
		provider, err := tracing.New(context.Background(), tracing.Config{ //nolint:forbidigo // CoreDNS has no context for a start
			Service: "coredns", Version: stamp.String(), Logger: b.logger, Processors: []sdktrace.SpanProcessor{b},
		})
		if err != nil {
			return err
		}
		b.provider, b.waiting = provider, make(map[trace.TraceID][]sdktrace.ReadOnlySpan)
	}
	if block != nil {
		b.blocks = append(b.blocks, block)
	}
	b.set()
	return nil
}

// Detach is the reverse of Attach.
func (b *Bridge) Detach(block *Block) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.blocks = slices.DeleteFunc(b.blocks, func(other *Block) bool { return other == block })
	b.set()
}

// set makes it known whether anything is traced. b.mu is held.
func (b *Bridge) set() {
	if b.provider == nil || len(b.blocks) == 0 && !tracing.Configured() {
		b.current.Store(nil)
		return
	}
	b.current.Store(new(b.provider.Tracer()))
}

// End exports what is left before the process ends.
func (b *Bridge) End() error {
	b.mu.Lock()
	provider := b.provider
	b.provider = nil
	b.set()
	b.mu.Unlock()
	provider.Shutdown(context.Background()) //nolint:forbidigo // CoreDNS has no context for its end
	return nil
}

// Retain detaches the blocks of all configurations but these.
func (b *Bridge) Retain(configurations []any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.blocks = slices.DeleteFunc(b.blocks, func(block *Block) bool { return !slices.Contains(configurations, block.configuration) })
	b.set()
}

// OnStart implements sdktrace.SpanProcessor.
func (*Bridge) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements sdktrace.SpanProcessor. A span of OpenTracing needs its parent when it
// begins, and children end first: they wait for the root.
func (b *Bridge) OnEnd(span sdktrace.ReadOnlySpan) {
	id := span.SpanContext().TraceID()
	b.mu.Lock()
	if span.Parent().IsValid() {
		if len(b.blocks) > 0 {
			b.wait(id, span)
		}
		b.mu.Unlock()
		return
	}
	children := b.waiting[id]
	delete(b.waiting, id)
	tracer := b.tracerOf(ownerOf(span))
	b.mu.Unlock()
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

// tracerOf returns the tracer of the first block that names the owner, or nil. The caller
// holds the lock.
func (b *Bridge) tracerOf(owner string) opentracing.Tracer {
	for _, block := range b.blocks {
		if slices.Contains(block.owners, owner) {
			if tracer := block.Tracer(); tracer != nil { // the one of Datadog has none
				return tracer
			}
		}
	}
	return nil
}

// wait keeps a child until its root ends. Of too many traces the one goes that has waited
// longest: its root may never end. b.mu is held.
func (b *Bridge) wait(id trace.TraceID, child sdktrace.ReadOnlySpan) {
	children, known := b.waiting[id]
	if !known && len(b.waiting) >= maxWaiting {
		var oldest trace.TraceID
		var since time.Time
		for other, of := range b.waiting {
			if ended := of[0].EndTime(); since.IsZero() || ended.Before(since) {
				oldest, since = other, ended
			}
		}
		delete(b.waiting, oldest)
	}
	if len(children) < maxChildren {
		b.waiting[id] = append(children, child)
	}
}

// Shutdown implements sdktrace.SpanProcessor.
func (*Bridge) Shutdown(context.Context) error { return nil }

// ForceFlush implements sdktrace.SpanProcessor.
func (*Bridge) ForceFlush(context.Context) error { return nil }

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
