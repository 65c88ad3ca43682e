package broker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/tacitmq/tacit/broker/group"
	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/accept"
	"github.com/tacitmq/tacit/internal/rawcodec"
	"github.com/tacitmq/tacit/internal/routes"
	"github.com/tacitmq/tacit/internal/rpcerr"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// Server is a broker. Make it with New, run it with Run, once.
type Server struct {
	tacitv1.UnimplementedDataServiceServer
	tacitv1.UnimplementedSessionServiceServer
	tacitv1.UnimplementedOffsetServiceServer
	tacitv1.UnimplementedAdminServiceServer
	tacitv1.UnimplementedCoordinationServiceServer

	cfg       *Config
	opt       options
	log       *zap.Logger
	metrics   *metrics
	lis       net.Listener
	advertise string
	codec     *rawcodec.Codec
	store     *store.Store
	topics    *topics
	driver    *driver
	groups    *groups // with a coordinator
	kept      *keptLeases
	scheduler *scheduler
	registrar *registrar
	sendBacks sendBacks
	grpc      *grpc.Server
	health    *health.Server
	started   time.Time
	full      atomic.Bool // the disk: appends are refused
	slow      atomic.Bool // the disk does not answer
	ready     atomic.Bool

	produceCalls sync.Pool
	fetchedPool  sync.Pool
	fetchMemory  *fetchMemory
	fetchers     *crew
	sessions     atomic.Int64

	stopping chan struct{} // closed when streams shall end
	// streams are the goroutines that handlers started; they end with their stream.
	streams sync.WaitGroup
	// writers write to the sessions of members.
	writers *pace
}

type options struct {
	log    *zap.Logger
	reg    prometheus.Registerer
	lis    net.Listener
	server []grpc.ServerOption
	dial   []grpc.DialOption
	dialer routes.Dialer
	disk   func(*store.Options) // of tests
}

// Option is what a caller injects.
type Option func(*options)

// WithLogger sets where the broker logs. Default: nowhere.
func WithLogger(log *zap.Logger) Option { return func(o *options) { o.log = log } }

// WithRegisterer sets where metrics are registered. Default: nowhere.
func WithRegisterer(reg prometheus.Registerer) Option { return func(o *options) { o.reg = reg } }

// WithListener sets what to serve on instead of Config.Listen. Default: a TCP listener.
func WithListener(lis net.Listener) Option { return func(o *options) { o.lis = lis } }

// WithServerOptions adds options of the gRPC server, except InTapHandle, which the
// broker has use for. Default: none.
func WithServerOptions(opts ...grpc.ServerOption) Option {
	return func(o *options) { o.server = append(o.server, opts...) }
}

// WithDialOptions adds options of the connections to name servers. Default: none.
func WithDialOptions(opts ...grpc.DialOption) Option {
	return func(o *options) { o.dial = append(o.dial, opts...) }
}

// WithDialer sets how name servers are dialled. Default: TCP.
func WithDialer(d func(ctx context.Context, address string) (net.Conn, error)) Option {
	return func(o *options) { o.dialer = d }
}

// New opens the store and binds the listener; a bad setting, a taken port or a
// data directory in use is an error here. It serves nobody before Run. A Server
// that is not run must be closed.
func New(cfg Config, opts ...Option) (_ *Server, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("broker settings: %w", err)
	}
	s := &Server{
		cfg: &cfg, opt: options{log: zap.NewNop()}, codec: rawcodec.New(), started: time.Now(),
		stopping: make(chan struct{}), writers: newPace(), sendBacks: sendBacks{busy: make(map[string]chan struct{})},
	}
	for _, o := range opts {
		o(&s.opt)
	}
	s.log = s.opt.log.With(zap.String("broker", cfg.Name))
	s.metrics = newMetrics(s.opt.reg)
	s.metrics.writable.Set(1)
	s.fetchMemory, s.fetchers = newFetchMemory(cfg.MaxFetchMemory), newCrew(4*runtime.GOMAXPROCS(0))
	s.produceCalls.New = newProduceCall
	s.fetchedPool.New = func() any { return new(fetched) }
	s.lis = s.opt.lis
	if s.lis == nil {
		if s.lis, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", cfg.Listen); err != nil {
			return nil, fmt.Errorf("listen for clients: %w", err)
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.advertise, err = advertised(cfg.Advertise, s.lis.Addr(), net.InterfaceAddrs); err != nil {
		return nil, err
	}
	if s.store, err = s.openStore(); err != nil {
		return nil, err
	}
	if s.topics, err = loadTopics(&cfg, s.store); err != nil {
		return nil, err
	}
	s.kept = newKeptLeases(cfg.Name, s.store)
	s.driver = newDriver(cfg.Name, s.store, s.log, s.metrics)
	s.groups = newGroups(s)
	s.scheduler = newScheduler(s.store, s.topics, s.log, s.metrics)
	if s.registrar, err = newRegistrar(s); err != nil {
		return nil, err
	}
	if s.opt.reg != nil {
		if err := s.opt.reg.Register(newCoreCollector(s)); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	s.serve()
	return s, nil
}

func (s *Server) openStore() (*store.Store, error) {
	o := store.Options{
		Durability: s.cfg.Durability, SyncInterval: s.cfg.SyncInterval, SegmentBytes: s.cfg.SegmentBytes,
		RetainAge: s.cfg.RetainAge, RetainBytes: s.cfg.RetainBytes, MinFreeBytes: s.cfg.MinFreeBytes,
		MaxBatchBytes: s.cfg.MaxBatchBytes, AcceptStateLoss: s.cfg.AcceptStateLoss, Report: s.report,
	}
	if s.opt.disk != nil {
		s.opt.disk(&o)
	}
	st, err := store.Open(s.cfg.DataDir, o)
	if err != nil {
		return nil, fmt.Errorf("open data directory: %w", err)
	}
	if err := s.ownDir(st); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return st, nil
}

// ownDir refuses the directory of another broker: under another name its queues
// would be others, and what groups read of them would be lost.
func (s *Server) ownDir(st *store.Store) error {
	const space, key = "broker", "name"
	name, ok, err := st.State().Get(space, key)
	switch {
	case err != nil:
		return fmt.Errorf("read the broker's name: %w", err)
	case !ok:
		u := st.State().NewUpdate()
		u.Put(space, key, []byte(s.cfg.Name))
		if err := st.State().Apply(context.Background(), u); err != nil {
			return fmt.Errorf("store the broker's name: %w", err)
		}
	case string(name) != s.cfg.Name:
		return fmt.Errorf("data directory %s belongs to broker %q, not to %q: a broker keeps its name", s.cfg.DataDir, name, s.cfg.Name)
	}
	return nil
}

// report takes what the store says to operators.
func (s *Server) report(ev store.Event) {
	s.metrics.storeEvents.WithLabelValues(string(ev.Kind)).Inc()
	fields := []zap.Field{
		zap.String("kind", string(ev.Kind)), zap.String("file", ev.File), zap.Int64("position", ev.Position),
		zap.Int64("bytes", ev.Bytes), zap.String("detail", ev.Detail), zap.Error(ev.Err),
	}
	switch ev.Kind {
	case store.SpaceLow:
		s.full.Store(true)
		s.metrics.writable.Set(0)
		s.log.Error("disk full, messages are refused", fields...)
	case store.SpaceBack:
		s.full.Store(false)
		s.metrics.writable.Set(1)
		s.log.Info("disk has space again, messages are taken", fields...)
	case store.SegmentDropped, store.StateTried:
		s.log.Debug("store", fields...)
	case store.TornTail, store.IndexRebuilt, store.TopicFound:
		s.log.Warn("store repaired", fields...)
	default:
		s.log.Error("store", fields...)
	}
}

// Windows and buffers of connections: measured to be worth 15 to 30 % with batches.
const (
	streamWindow = 4 << 20
	connWindow   = 16 << 20
	readBuffer   = 256 << 10
	// writeBuffer is smaller: a connection takes one with its first frame and gives
	// other goroutines a turn before it flushes, so that a notice takes one for
	// nearly each member that is written to. More makes no difference to batches.
	writeBuffer = 32 << 10
	// maxStreams of one connection, which the members of a process share.
	maxStreams = 1 << 17
	// minRecv lets a member report what it owns of the largest topics.
	minRecv = 16 << 20
)

// serve makes the gRPC server.
func (s *Server) serve() {
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(s.codec), experimental.BufferPool(s.codec.Pool()),
		grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connWindow),
		// Shared, or each idle connection holds one.
		grpc.ReadBufferSize(readBuffer), grpc.WriteBufferSize(writeBuffer),
		// Above the batch limit, so that a batch too large is refused by name.
		grpc.MaxRecvMsgSize(max(2*s.cfg.MaxBatchBytes, minRecv)),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.MaxConcurrentStreams(maxStreams), grpc.WaitForHandlers(true),
		grpc.InTapHandle(tapSession),
		// A session decides itself when a silent member is gone, so the server
		// pings nobody; it lets clients ping.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Duration(math.MaxInt64)}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	}
	opts = append(opts, rpcerr.ServerOptions(func(_ context.Context, method string, err error) { s.logInternal(method, err) })...)
	s.grpc = grpc.NewServer(append(opts, s.opt.server...)...)
	s.health = health.NewServer()
	s.health.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING)
	healthv1.RegisterHealthServer(s.grpc, s.health)
	tacitv1.RegisterDataServiceServer(s.grpc, s)
	tacitv1.RegisterSessionServiceServer(s.grpc, s)
	tacitv1.RegisterOffsetServiceServer(s.grpc, s)
	tacitv1.RegisterAdminServiceServer(s.grpc, s)
	tacitv1.RegisterCoordinationServiceServer(s.grpc, s)
}

// Addr is the address the broker listens on.
func (s *Server) Addr() net.Addr { return s.lis.Addr() }

// Advertised is the address that clients are told.
func (s *Server) Advertised() string { return s.advertise }

// Ready says why the broker does not serve, nil if it does.
func (s *Server) Ready() error {
	switch {
	case !s.ready.Load():
		return errors.New("broker is starting or stopping")
	case s.slow.Load():
		return fmt.Errorf("disk does not answer: a write has taken more than %v", slowDisk)
	}
	return nil
}

// Close frees what New took, for a Server that is not run.
func (s *Server) Close() error {
	var errs []error
	if s.grpc != nil {
		s.grpc.Stop()
	}
	if err := s.lis.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		errs = append(errs, err)
	}
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	return errors.Join(errs...)
}

// hangGrace is how long a stop waits for the disk, beyond Config.Grace.
const hangGrace = 10 * time.Second

// Run serves until ctx is done and everything has ended. A stop that was asked
// for is no error. A disk that does not answer holds it up for Config.Grace and 10 s;
// Run returns an error then and leaves behind what waits for the disk: only the end of
// the process gives that up. Nothing that was acknowledged is lost by it.
func (s *Server) Run(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }() // waited for here, unless the disk hangs
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	hangs := time.NewTimer(max(s.cfg.Grace, s.cfg.Grace+hangGrace)) // the sum may overflow
	defer hangs.Stop()
	select {
	case err := <-ended:
		return err
	case <-hangs.C:
		return fmt.Errorf("broker %s: stopped without closing the store: the disk does not answer", s.cfg.Name)
	}
}

func (s *Server) run(ctx context.Context) error {
	epoch, err := s.store.State().NextEpoch(s.registrar.highest(ctx))
	if err != nil {
		return errors.Join(fmt.Errorf("take a broker epoch: %w", err), s.Close())
	}
	s.begin(epoch)
	if err := s.groups.begin(epoch); err != nil {
		return errors.Join(err, s.Close())
	}
	g, ctx := errgroup.WithContext(ctx)
	// What must go on while streams end: writes of leases and offsets.
	late, stopLate := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLate()
	var writer errgroup.Group
	writer.Go(func() error { return s.driver.write(late) })
	writer.Go(func() error {
		s.driver.turn.serve(late)
		return nil
	})
	writer.Go(func() error {
		s.groups.turn.serve(late)
		return nil
	})
	g.Go(func() error { return s.scheduler.run(ctx) })
	g.Go(func() error { return s.registrar.run(ctx) })
	g.Go(func() error { return s.pruneSentBack(ctx) })
	g.Go(func() error { return s.keepTidy(ctx) })
	g.Go(func() error { return s.watchDisk(ctx) })
	g.Go(func() error {
		if err := s.grpc.Serve(listener{accept.Logged(s.lis, s.log)}); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
	s.health.SetServingStatus("", healthv1.HealthCheckResponse_SERVING)
	s.ready.Store(true)
	s.log.Info("broker serves", zap.String("address", s.lis.Addr().String()), zap.String("advertised", s.advertise),
		zap.Uint64("epoch", epoch), zap.Int("topics", len(s.topics.set().byName)), zap.Duration("took", time.Since(s.started)))
	g.Go(func() error {
		<-ctx.Done()
		s.stop()
		return nil
	})
	err = g.Wait()
	stopLate()
	err = errors.Join(err, writer.Wait())
	s.fetchers.close() // they start goroutines of streams
	s.streams.Wait()
	s.writers.wait()
	s.groups.writes.Wait()
	if e := s.store.Close(); e != nil {
		err = errors.Join(err, fmt.Errorf("close store: %w", e))
	}
	s.log.Info("broker stopped", zap.Error(err))
	if err != nil {
		return fmt.Errorf("broker %s: %w", s.cfg.Name, err)
	}
	return nil
}

// begin starts the core at an epoch.
func (s *Server) begin(epoch uint64) {
	set := s.topics.set()
	s.registrar.setEpoch(epoch)
	s.driver.begin(group.Config{
		Broker: s.cfg.Name, BrokerEpoch: epoch,
		MinSessionTimeout: s.cfg.SessionTimeoutMin, MaxSessionTimeout: s.cfg.SessionTimeoutMax,
	}, set.local(s.cfg.Name))
	s.registrar.routesChanged()
}

// stop ends all streams: members are told, data streams get their answers, and
// what does not end within the grace is cut.
func (s *Server) stop() {
	s.ready.Store(false)
	s.health.Shutdown()
	close(s.stopping)
	s.driver.stop()
	s.groups.stop()
	force := time.AfterFunc(s.cfg.Grace, s.grpc.Stop)
	defer force.Stop()
	s.grpc.GracefulStop()
}

func (s *Server) logInternal(method string, err error) {
	s.log.Error("request failed", zap.String("method", method), zap.Error(err))
}
