package client

import (
	"context"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/tacitmq/tacit/internal/rawcodec"
	"github.com/tacitmq/tacit/internal/rpcerr"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// shared holds the clusters of this process by their settings, so that all
// consumers and producers with the same settings share connections.
//
//nolint:gochecknoglobals // what shares connections is the process
var shared = struct {
	sync.Mutex
	clusters map[string]*cluster
}{clusters: make(map[string]*cluster)}

// Open returns a reference to the cluster with these settings, which is shared
// with whoever in the process opened it before. It does not wait for any server.
func Open(cfg Config) (Cluster, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	key := cfg.key()
	if key == "" {
		return newCluster(cfg)
	}
	shared.Lock()
	defer shared.Unlock()
	c := shared.clusters[key]
	if c == nil {
		var err error
		if c, err = newCluster(cfg); err != nil {
			return nil, err
		}
		c.key = key
		shared.clusters[key] = c
	}
	c.refs++
	return &reference{cluster: c}, nil
}

// reference is one user's share of a cluster.
type reference struct {
	*cluster
	once sync.Once
}

// Close gives the reference back; the last one ends the cluster.
func (r *reference) Close() {
	r.once.Do(func() {
		shared.Lock()
		r.refs--
		last := r.refs == 0
		if last {
			delete(shared.clusters, r.key)
		}
		shared.Unlock()
		if last {
			r.cluster.Close()
		}
	})
}

// cluster is the implementation of Cluster over gRPC.
type cluster struct {
	cfg   Config
	codec *rawcodec.Codec
	key   string // in shared
	refs  int    // guarded by shared

	hub *hub

	mu      sync.Mutex
	brokers map[string]*broker
	closed  bool
	wg      sync.WaitGroup // brokers that are being closed
}

// broker is a broker at one address.
type broker struct {
	name, address string

	cc      *grpc.ClientConn
	session tacitv1.SessionServiceClient
	offsets tacitv1.OffsetServiceClient
	data    tacitv1.DataServiceClient
	produce *pipe
	fetch   *pipe
}

func newCluster(cfg Config) (*cluster, error) {
	c := &cluster{cfg: cfg, codec: rawcodec.New(), hub: newHub(), brokers: make(map[string]*broker)}
	var err error
	if c.hub.feed, err = newWatcher(cfg, c.hub); err != nil {
		return nil, err
	}
	return c, nil
}

// DialOptions are those of every connection to a name server or broker.
func DialOptions(dialer Dialer) []grpc.DialOption {
	opts := append(rpcerr.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: backoffBase, Multiplier: 1.6, Jitter: 0.2, MaxDelay: backoffMax},
			MinConnectTimeout: dialTimeout,
		}),
		// Notices half-open connections, also those on which nothing is sent.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout, PermitWithoutStream: true}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessageBytes), grpc.MaxCallSendMsgSize(MaxMessageBytes)),
		grpc.WithInitialWindowSize(4<<20),
		grpc.WithInitialConnWindowSize(16<<20),
		grpc.WithReadBufferSize(256<<10),
		grpc.WithWriteBufferSize(256<<10),
		grpc.WithIdleTimeout(0),
	)
	if dialer != nil {
		opts = append(opts, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dialer(ctx, address) }))
	}
	return opts
}

// Target is what to dial for an address: a name is resolved again and again, all
// its addresses are tried, unless a dialer takes it as it is.
func Target(address string, dialer Dialer) string {
	if dialer != nil {
		return "passthrough:///" + address
	}
	return "dns:///" + address
}

// find returns the broker of that name at its present address.
func (c *cluster) find(name string) (*broker, error) {
	address, ok := c.hub.address(name)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	b := c.brokers[name]
	if b != nil && (!ok || b.address == address) {
		return b, nil
	}
	if !ok {
		return nil, fmt.Errorf("%w: no name server has told its address", rpcerr.ErrUnreachable)
	}
	if b != nil { // it moved
		c.wg.Go(b.close) // Close waits for it
	}
	cc, err := grpc.NewClient(Target(address, c.cfg.Dialer), DialOptions(c.cfg.Dialer)...)
	if err != nil {
		delete(c.brokers, name)
		return nil, fmt.Errorf("%w: address %q: %w", rpcerr.ErrUnreachable, address, err)
	}
	b = &broker{
		name: name, address: address, cc: cc,
		session: tacitv1.NewSessionServiceClient(cc),
		offsets: tacitv1.NewOffsetServiceClient(cc),
		data:    tacitv1.NewDataServiceClient(cc),
		produce: newProducePipe(cc, c.codec),
		fetch:   newFetchPipe(cc, c.codec),
	}
	c.brokers[name] = b
	return b, nil
}

func (b *broker) close() {
	b.produce.close()
	b.fetch.close()
	_ = b.cc.Close() // fails only if it is closed
}

func (c *cluster) Produce(call *ProduceCall) {
	p := &produceCall{ProduceCall: call, batch: call.Batch, limit: call.Timeout}
	if p.limit <= 0 {
		p.limit = c.cfg.CallTimeout
	}
	b, err := c.find(call.Broker)
	if err != nil {
		p.fail(err)
		return
	}
	b.produce.start(p)
}

func (c *cluster) Fetch(call *FetchCall) {
	f := newFetchCall(call, call.Wait+c.cfg.CallTimeout)
	b, err := c.find(call.Queue.Broker)
	if err != nil {
		f.fail(err)
		return
	}
	call.pipe.Store(b.fetch)
	b.fetch.start(f)
}

func (c *cluster) CancelFetch(call *FetchCall) bool {
	p := call.pipe.Load()
	return p != nil && p.withdraw(&call.id, isFetch(call), cancelFetch)
}

func (c *cluster) Follow(call *FetchCall, on bool) bool {
	p := call.pipe.Load()
	return p != nil && p.decide(&call.id, isFetch(call), on, cancelFetch)
}

func isFetch(call *FetchCall) func(pending) bool {
	return func(o pending) bool {
		f, ok := o.(*fetchCall)
		return ok && f.call == call
	}
}

// Close ends all connections and everything that runs.
func (c *cluster) Close() {
	c.hub.feed.Close()
	c.mu.Lock()
	c.closed = true
	all := c.brokers
	c.brokers = nil
	c.mu.Unlock()
	for _, b := range all {
		b.close()
	}
	c.wg.Wait()
}
