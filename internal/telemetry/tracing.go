// Package telemetry says what a binary was built from, and has the provider of
// OpenTelemetry that a program of this project makes its spans with. The settings of that
// are the standard variables of the environment; where these name no endpoint, there is none.
package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/hamlet-federation/coredns-federation/internal/loglimit"
)

// flushTimeout is how long the end of a process waits for its last spans.
const flushTimeout = 3 * time.Second

// Config says what a Provider is for.
type Config struct {
	Service string // what spans call the program, unless the environment does
	Version string
	Logger  *slog.Logger // gets the errors of the exporter
}

// Provider makes spans and exports them. A nil Provider makes none.
type Provider struct {
	sdk    *sdktrace.TracerProvider
	tracer trace.Tracer
}

// configured reports whether the environment names an endpoint of OTLP.
func configured() bool {
	// OpenTelemetry SDK environment variables, general configuration: "true", in any case.
	switch os.Getenv("OTEL_SDK_DISABLED") {
	case "true", "True", "TRUE":
		return false
	}
	return os.Getenv("OTEL_TRACES_EXPORTER") != "none" &&
		(os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "")
}

// New returns a Provider that exports to the endpoint of the environment, by gRPC; nil if
// there is none. Nothing is connected yet, and nobody ever waits for the endpoint but
// Shutdown: what does not fit its queue is dropped. An error says which variable is wrong.
func New(ctx context.Context, c Config) (*Provider, error) {
	if !configured() {
		return nil, nil //nolint:nilnil // a nil Provider is one that makes no spans
	}
	// What comes last has precedence: the environment.
	about, err := resource.New(ctx, resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", c.Service), attribute.String("service.version", c.Version)), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	for _, variable := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if protocol := os.Getenv(variable); protocol == "grpc" {
			break // the first one has precedence
		} else if protocol != "" {
			return nil, fmt.Errorf("%s: %q is not grpc, and there is no other exporter", variable, protocol)
		}
	}
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_ENDPOINT: %w", err)
	}
	logger := loglimit.Logger(c.Logger)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		logger.Warn("spans cannot be exported", "error", err)
	}))
	sdk := sdktrace.NewTracerProvider(sdktrace.WithResource(about), sdktrace.WithBatcher(exporter))
	return &Provider{sdk: sdk, tracer: sdk.Tracer("github.com/hamlet-federation/coredns-federation")}, nil
}

// Tracer returns what begins spans, or nil.
func (p *Provider) Tracer() trace.Tracer {
	if p == nil {
		return nil
	}
	return p.tracer
}

// Shutdown exports what is left, for which it waits some seconds at most.
func (p *Provider) Shutdown(ctx context.Context) {
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := p.sdk.Shutdown(ctx); err != nil {
		otel.Handle(err)
	}
}
