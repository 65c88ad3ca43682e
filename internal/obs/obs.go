package obs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
)

// Config is what every program can be told about its telemetry.
type Config struct {
	// HTTP is the address of the port for metrics, health and profiles; empty
	// for none.
	HTTP string
	// LogLevel is debug, info, warn or error. Default: info.
	LogLevel string
	// LogFormat is console or json. Default: console.
	LogFormat string
	// OTLP is the host:port of an OpenTelemetry collector that takes traces by
	// gRPC without TLS; empty for no traces. Default: empty.
	OTLP string
	// TraceRatio is the share of traces that are kept, 0 to 1. Default: 0.01.
	TraceRatio float64
	// Service names the program in traces. Default: "tacit".
	Service string
}

// DefaultConfig returns the defaults with this HTTP address.
func DefaultConfig(http string) *Config {
	return &Config{HTTP: http, LogLevel: "info", LogFormat: "console", TraceRatio: 0.01, Service: "tacit"}
}

// Bind adds the flags --http, --log-level, --log-format, --otlp-endpoint,
// --trace-ratio and --config.
func (c *Config) Bind(flags *pflag.FlagSet) {
	flags.Var(MaybeListen(&c.HTTP), "http", "`address` for metrics, health and profiles over HTTP; empty for none")
	c.BindLog(flags)
	flags.Var(Dial(&c.OTLP), "otlp-endpoint", "`host:port` of an OpenTelemetry collector for traces; empty for none")
	flags.Var(Float(&c.TraceRatio, 0, 1), "trace-ratio", "share of traces to keep, `0..1`")
	BindFile(flags)
}

// BindLog adds the flags --log-level and --log-format alone.
func (c *Config) BindLog(flags *pflag.FlagSet) {
	flags.Var(Choice(&c.LogLevel, "debug", "info", "warn", "error"), "log-level", "log from this `level` on: debug, info, warn or error")
	flags.Var(Choice(&c.LogFormat, "console", "json"), "log-format", "log `format`: console or json")
}

// BindFile adds the flag --config that [Load] reads.
func BindFile(flags *pflag.FlagSet) {
	flags.String(configFlag, "", "YAML `file` of settings, named as the flags; flags and TACIT_... variables come before it")
}

// Telemetry is what a running program reports through.
type Telemetry struct {
	// Log writes to the stderr given to New.
	Log *zap.Logger
	// Registry has Go, process and build collectors; it is served at /metrics.
	Registry *prometheus.Registry

	address string       // to listen on for HTTP
	lis     net.Listener // nil without an HTTP port
	http    *http.Server
	ready   func() error
	traces  *traces // nil without traces
}

// New builds a logger, a registry and, if asked for, traces. It binds no port
// and starts nothing; see [Telemetry.Listen] and [Telemetry.Run].
func New(ctx context.Context, cfg *Config, stderr io.Writer) (*Telemetry, error) {
	log, level, err := NewLogger(cfg.LogLevel, cfg.LogFormat, stderr)
	if err != nil {
		return nil, err
	}
	if math.IsNaN(cfg.TraceRatio) || cfg.TraceRatio < 0 || cfg.TraceRatio > 1 {
		return nil, Usage("trace ratio %v: must be 0 to 1", cfg.TraceRatio)
	}
	t := &Telemetry{Log: log, Registry: NewRegistry(), ready: func() error { return nil }}
	if cfg.OTLP != "" {
		if t.traces, err = newTraces(ctx, cfg, log); err != nil {
			return nil, err
		}
	}
	if cfg.HTTP != "" {
		t.address = cfg.HTTP
		t.http = &http.Server{
			Handler:           Handler(t.Registry, log, level, func() error { return t.ready() }),
			ReadHeaderTimeout: 5 * time.Second,
			IdleTimeout:       time.Minute,
		}
	}
	return t, nil
}

// Listen binds the HTTP port, if there is to be one. Call it once all settings
// are known to be good, and before Run. If it fails, what New took is freed.
func (t *Telemetry) Listen(ctx context.Context) (err error) {
	if t.http == nil {
		return nil
	}
	if t.lis, err = (&net.ListenConfig{}).Listen(ctx, "tcp", t.address); err != nil {
		return errors.Join(fmt.Errorf("listen for HTTP: %w", err), t.Close())
	}
	return nil
}

// Ready sets what /readyz answers: nil is ready, an error says why not. Call it
// before Run. Default: always ready.
func (t *Telemetry) Ready(f func() error) { t.ready = f }

// HTTPAddr is the address the HTTP port is bound to, nil without one or before Listen.
func (t *Telemetry) HTTPAddr() net.Addr {
	if t.lis == nil {
		return nil
	}
	return t.lis.Addr()
}

// ServerOptions are the options a gRPC server needs for traces; none without them.
func (t *Telemetry) ServerOptions() []grpc.ServerOption {
	if t.traces == nil {
		return nil
	}
	return t.traces.serverOptions()
}

// DialOptions are the options a gRPC client needs for traces; none without them.
func (t *Telemetry) DialOptions() []grpc.DialOption {
	if t.traces == nil {
		return nil
	}
	return t.traces.dialOptions()
}

// Run serves the HTTP port while the parts run, and ends with the first that
// fails or when all have ended. The HTTP port stays open until the parts have
// ended, so that a stop can be watched.
func (t *Telemetry) Run(ctx context.Context, parts ...func(context.Context) error) error {
	httpCtx, stopHTTP := context.WithCancel(context.WithoutCancel(ctx))
	defer stopHTTP()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return t.serve(httpCtx) })
	g.Go(func() error {
		defer stopHTTP()
		inner, ctx := errgroup.WithContext(ctx)
		for _, part := range parts {
			inner.Go(func() error { return part(ctx) })
		}
		return inner.Wait()
	})
	err := g.Wait()
	return errors.Join(err, t.Close())
}

// Close frees what New took, for a program that fails before Run. Run closes itself.
func (t *Telemetry) Close() error {
	var err error
	if t.lis != nil {
		if e := t.lis.Close(); e != nil && !errors.Is(e, net.ErrClosed) {
			err = e
		}
	}
	if t.traces != nil {
		err = errors.Join(err, t.traces.close())
	}
	_ = t.Log.Sync() // stderr often cannot be synced, which is no matter
	return err
}

func (t *Telemetry) serve(ctx context.Context) error {
	if t.lis == nil {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = t.http.Close() }) // ends Serve below
	defer stop()
	if err := t.http.Serve(t.lis); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}

// NewRegistry returns a registry with Go, process and build collectors.
func NewRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	return reg
}

// Handler serves /metrics, /healthz (the process lives), /readyz (ready answers
// nil), /debug/pprof/ and /debug/log-level (GET shows, PUT {"level":"debug"} changes).
func Handler(reg *prometheus.Registry, log *zap.Logger, level zap.AtomicLevel, ready func() error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.InstrumentMetricHandler(reg, promhttp.HandlerFor(reg, promhttp.HandlerOpts{ErrorLog: printf{log}})))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, ready()) })
	mux.Handle("/debug/log-level", level)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

func answer(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintln(w, err.Error())
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}
