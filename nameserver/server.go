// Package nameserver is the server that maps topics to the brokers that host
// them. Brokers register with every name server of a cluster over a stream;
// clients and brokers watch them all and merge what they say. Name servers share
// nothing and store nothing: a fresh one is complete once every broker has come
// back to it, and says so by not being warming any more.
//
// The tables and their rules are in package nameserver/route. This package is
// their shell: gRPC, the clock, pushes, metrics.
package nameserver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/tacitmq/tacit/internal/accept"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/internal/wire"
	"github.com/tacitmq/tacit/nameserver/route"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// Config is what an operator sets.
type Config struct {
	// Listen is the address to listen on. Default: ":9876".
	Listen string
	// BrokerExpiry is how long a broker may be silent before it leaves the routes,
	// and how long a start is called warming. Brokers send a heartbeat every 3 s.
	// Default: 10s; 100ms to 1h.
	BrokerExpiry time.Duration
	// MaxBrokers is how many brokers may register. Default: 1 000.
	MaxBrokers int
	// MaxTopics is how many topics there may be on all brokers together.
	// Default: 100 000.
	MaxTopics int
	// MaxWatchers is how many watches may be open. Default: 100 000.
	MaxWatchers int
	// Grace is how long a stop waits for calls under way. Default: 5s.
	Grace time.Duration
}

// Default returns the defaults.
func Default() Config {
	return Config{
		Listen: ":9876", BrokerExpiry: 10 * time.Second, MaxBrokers: 1000, MaxTopics: 100_000, MaxWatchers: 100_000,
		Grace: 5 * time.Second,
	}
}

// Validate returns everything that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	if c.BrokerExpiry < 100*time.Millisecond || c.BrokerExpiry > time.Hour {
		errs = append(errs, fmt.Errorf("broker expiry %v: must be 100ms to 1h", c.BrokerExpiry))
	}
	for _, n := range []struct {
		name        string
		value, most int
	}{
		{"max brokers", c.MaxBrokers, wire.MaxListed}, // all of them are told in one message
		{"max topics", c.MaxTopics, wire.MaxListed},
		{"max watchers", c.MaxWatchers, math.MaxInt32},
	} {
		if n.value < 1 || n.value > n.most {
			errs = append(errs, fmt.Errorf("%s %d: must be 1 to %d", n.name, n.value, n.most))
		}
	}
	if c.Grace < 0 {
		errs = append(errs, fmt.Errorf("grace %v: must be 0 or greater", c.Grace))
	}
	return errors.Join(errs...)
}

// maxMessage bounds a message of a broker or client, in bytes.
const maxMessage = 64 << 20

// Server is a name server.
type Server struct {
	tacitv1.UnimplementedNameServerServiceServer

	cfg     Config
	log     *zap.Logger
	metrics *metrics
	lis     net.Listener
	grpc    *grpc.Server
	health  *health.Server
	hub     *hub
	closing chan struct{} // closed when Run ends

	mu      sync.Mutex
	table   *route.Table
	stream  uint64 // number of the last registration stream
	warming bool   // as last told to watchers
}

// Option changes a default of [New].
type Option func(*options)

type options struct {
	log  *zap.Logger
	lis  net.Listener
	reg  prometheus.Registerer
	grpc []grpc.ServerOption
}

// WithLogger logs state changes. Default: nothing is logged.
func WithLogger(log *zap.Logger) Option { return func(o *options) { o.log = log } }

// WithListener serves on lis instead of Config.Listen.
func WithListener(lis net.Listener) Option { return func(o *options) { o.lis = lis } }

// WithRegisterer registers metrics. Default: they are counted and not shown.
func WithRegisterer(reg prometheus.Registerer) Option { return func(o *options) { o.reg = reg } }

// WithServerOptions adds options of the gRPC server. Default: none.
func WithServerOptions(opts ...grpc.ServerOption) Option {
	return func(o *options) { o.grpc = append(o.grpc, opts...) }
}

// New returns a Server bound to its address. It serves once Run is called; its
// time of warming up begins here.
func New(cfg Config, opts ...Option) (*Server, error) {
	o := options{log: zap.NewNop()}
	for _, opt := range opts {
		opt(&o)
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	table, err := route.New(route.Config{Expiry: cfg.BrokerExpiry, MaxBrokers: cfg.MaxBrokers, MaxTopics: cfg.MaxTopics}, time.Now())
	if err != nil {
		return nil, err
	}
	if o.lis == nil {
		if o.lis, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", cfg.Listen); err != nil {
			return nil, fmt.Errorf("listen for brokers and clients: %w", err)
		}
	}
	s := &Server{
		cfg: cfg, log: o.log, metrics: newMetrics(o.reg), lis: o.lis, health: health.NewServer(), hub: newHub(cfg.MaxWatchers),
		closing: make(chan struct{}), table: table, warming: true,
	}
	s.metrics.warming.Set(1)
	s.grpc = grpc.NewServer(append(append(rpcerr.ServerOptions(s.report),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		// Frees what half-open connections hold.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	), o.grpc...)...)
	tacitv1.RegisterNameServerServiceServer(s.grpc, s)
	healthv1.RegisterHealthServer(s.grpc, s.health)
	s.health.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING)
	return s, nil
}

// Addr is the address the server is bound to.
func (s *Server) Addr() net.Addr { return s.lis.Addr() }

// Run serves until ctx ends and returns nil then. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	s.health.SetServingStatus("", healthv1.HealthCheckResponse_SERVING)
	s.log.Info("name server started", zap.Stringer("address", s.lis.Addr()), zap.Duration("warming_for", s.cfg.BrokerExpiry))
	g.Go(func() error {
		if err := s.grpc.Serve(accept.Logged(s.lis, s.log)); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serve brokers and clients: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		s.sweep(ctx)
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		s.health.Shutdown()
		close(s.closing) // streams never end by themselves, and GracefulStop waits for them
		force := time.AfterFunc(s.cfg.Grace, s.grpc.Stop)
		defer force.Stop()
		s.grpc.GracefulStop()
		return nil
	})
	err := g.Wait()
	s.log.Info("name server stopped")
	return err
}

// sweep expires silent brokers and ends the warm-up, at the time each is due. A
// broker that comes meanwhile is due later than the next sweep.
func (s *Server) sweep(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(s.expire())
	}
}

// late is how far behind its time a sweep must be to take it that the process
// was paused, so that heartbeats wait to be read before anybody is expired.
const late = 500 * time.Millisecond

// expire does what is due and returns the time until more is.
func (s *Server) expire() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if due := s.table.Wake(now); now.Sub(due) > late {
		s.log.Warn("clock jumped or process was paused, brokers get another expiry", zap.Duration("late", now.Sub(due)))
		s.table.Postpone(now)
	}
	change := s.table.Expire(now)
	for _, b := range change.Expired {
		s.metrics.expired.Inc()
		s.log.Warn("broker expired", zap.String("broker", b.Name), zap.String("address", b.Address),
			zap.Uint64("broker_epoch", b.Stamp.Epoch), zap.Duration("silent", s.cfg.BrokerExpiry))
	}
	s.publish(now, change)
	return max(s.table.Wake(now).Sub(now), time.Millisecond)
}

// publish tells watchers of a change, and of the end or return of warming. s.mu
// is held.
func (s *Server) publish(now time.Time, change route.Change) {
	warming := s.table.Warming(now)
	changed := warming != s.warming
	if changed {
		s.warming = warming
		s.log.Info("warming changed", zap.Bool("warming", warming))
	}
	if !changed && len(change.Topics) == 0 && !change.Brokers {
		return
	}
	brokers, topics := s.table.Counts()
	s.metrics.state(brokers, topics, warming)
	s.hub.publish(change, changed)
}

// report logs what a client is not told.
func (s *Server) report(_ context.Context, method string, err error) {
	s.log.Error("call failed", zap.String("method", method), zap.Error(err))
}
