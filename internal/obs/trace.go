package obs

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// traces exports spans of gRPC calls to a collector. A collector that cannot be
// reached costs spans, nothing else.
type traces struct {
	provider *sdktrace.TracerProvider
	log      *zap.Logger
}

func newTraces(ctx context.Context, cfg *Config, log *zap.Logger) (*traces, error) {
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpoint(cfg.OTLP), otlptracegrpc.WithInsecure())
	if err != nil {
		return nil, fmt.Errorf("export traces to %s: %w", cfg.OTLP, err)
	}
	return &traces{
		provider: sdktrace.NewTracerProvider(
			sdktrace.WithBatcher(exporter),
			sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.TraceRatio))),
			sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", cfg.Service))),
		),
		log: log,
	}, nil
}

func (t *traces) options() []otelgrpc.Option {
	return []otelgrpc.Option{
		otelgrpc.WithTracerProvider(t.provider),
		otelgrpc.WithPropagators(propagation.TraceContext{}),
	}
}

func (t *traces) serverOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(t.options()...))}
}

func (t *traces) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(t.options()...))}
}

// close sends what is left, for a moment at most.
func (t *traces) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.log.Warn("export last traces", zap.Error(err))
	}
	return nil
}
