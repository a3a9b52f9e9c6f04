package consumer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// told returns what the spans say: a line for each root, with its steps.
func told(spans []sdktrace.ReadOnlySpan) []string {
	steps := make(map[trace.SpanID][]string)
	var lines []string
	for _, s := range spans {
		if s.Parent().IsValid() {
			steps[s.Parent().SpanID()] = append(steps[s.Parent().SpanID()], strings.TrimPrefix(s.Name(), "federation."))
			continue
		}
		line := s.Name()
		attributes := s.Attributes()
		slices.SortFunc(attributes, func(a, b attribute.KeyValue) int { return strings.Compare(string(a.Key), string(b.Key)) })
		for _, a := range attributes {
			line += fmt.Sprintf(" %s=%s", strings.TrimPrefix(string(a.Key), "federation."), a.Value.String())
		}
		for _, e := range s.Events() {
			line += fmt.Sprintf(" [%s", e.Name)
			for _, a := range e.Attributes {
				line += " " + a.Value.String()
			}
			line += "]"
		}
		lines = append(lines, line+" "+s.Status().Description+fmt.Sprint(steps[s.SpanContext().SpanID()]))
	}
	return lines
}

// TestSpans reads the spans of updates that are applied and refused.
func TestSpans(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		recorder := tracetest.NewSpanRecorder()
		tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
		w.misbehave("announce\nupsert web web.fed.example 192.0.2.1\ndelete web\nupsert bad bad..example 192.0.2.1\nend\nwait 1h")
		config := w.config()
		config.Tracer = func() trace.Tracer { return tracer }
		_, stop := w.run(config)
		time.Sleep(time.Minute)
		synctest.Wait()
		about := "federation.update address=" + ownerAddress + " operation=%s owner=" + ownerAddress
		const steps = " [decode apply publish acknowledge]"
		got := strings.Join(told(recorder.Ended()), "\n")
		for _, want := range []string{
			fmt.Sprintf(about, "upsert") + ` refused=0 service="web" updates=1` + steps,
			fmt.Sprintf(about, "delete") + ` refused=0 service="web" updates=1` + steps,
			"update address=" + ownerAddress + " owner=" + ownerAddress + ` reason=name refused=1 service="bad" updates=1` + steps,
		} {
			if !strings.Contains(got, want) {
				t.Errorf("no span is\n%s\n, but there are\n%s", want, got)
			}
		}
		stop()
	})
}
