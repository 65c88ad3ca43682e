// Package cluster runs name servers and brokers in this process, on loopback and
// in a directory of its own, for tests and demonstrations. Its nodes can be
// stopped, killed and started again on their addresses, and [Net] lets a test
// stand between any two parties.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/tacitmq/tacit/broker"
	"github.com/tacitmq/tacit/internal/routes"
	"github.com/tacitmq/tacit/nameserver"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// Config of a cluster. Only Dir is required.
type Config struct {
	// Dir is where brokers keep their data.
	Dir string
	// NameServers and Brokers are how many there are. Defaults: 1, 1.
	NameServers, Brokers int
	// Broker changes the settings of a broker before each start.
	Broker func(*broker.Config)
	// BrokerOptions adds options of a broker, by its name.
	BrokerOptions func(name string) []broker.Option
	// NameServer changes those of a name server.
	NameServer func(*nameserver.Config)
	// Logger: default none.
	Logger *zap.Logger
}

// Cluster is a running cluster.
type Cluster struct {
	cfg     Config
	names   []*Node
	brokers map[string]*Node
}

// Node is one server at one address.
type Node struct {
	// Name of a broker; the address of a name server.
	Name string

	c       *Cluster
	broker  bool
	address string

	mu   sync.Mutex
	lis  *listener
	stop context.CancelFunc
	done chan struct{}
	err  error
}

// Start starts a cluster and waits until its brokers are registered.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	if cfg.NameServers == 0 {
		cfg.NameServers = 1
	}
	if cfg.Brokers == 0 {
		cfg.Brokers = 1
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	c := &Cluster{cfg: cfg, brokers: make(map[string]*Node)}
	for range cfg.NameServers {
		n := &Node{c: c}
		if err := n.Start(); err != nil {
			return nil, errors.Join(err, c.Stop())
		}
		n.Name = n.address
		c.names = append(c.names, n)
	}
	for i := range cfg.Brokers {
		if _, err := c.AddBroker(fmt.Sprintf("broker-%c", 'a'+i)); err != nil {
			return nil, errors.Join(err, c.Stop())
		}
	}
	if err := c.Await(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// AddBroker starts one more broker.
func (c *Cluster) AddBroker(name string) (*Node, error) {
	n := &Node{Name: name, c: c, broker: true}
	if err := n.Start(); err != nil {
		return nil, err
	}
	c.brokers[name] = n
	return n, nil
}

// NameServers returns the addresses of the name servers.
func (c *Cluster) NameServers() []string {
	out := make([]string, len(c.names))
	for i, n := range c.names {
		out[i] = n.address
	}
	return out
}

// NameServer returns the i-th name server.
func (c *Cluster) NameServer(i int) *Node { return c.names[i] }

// Broker returns the broker of that name: "broker-a", "broker-b" and so on.
func (c *Cluster) Broker(name string) *Node { return c.brokers[name] }

// Brokers returns the names of the brokers, sorted.
func (c *Cluster) Brokers() []string {
	out := make([]string, 0, len(c.brokers))
	for n := range c.brokers {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// Await waits until all brokers that run are registered with the name servers
// that run.
func (c *Cluster) Await(ctx context.Context) error {
	for {
		a, err := routes.Get(ctx, routes.Static(c.NameServers()...), nil)
		if err == nil && len(a.Failed) == 0 && len(a.Brokers) >= len(c.running()) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for brokers to register: %w: %w", ctx.Err(), err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (c *Cluster) running() []*Node {
	var out []*Node
	for _, n := range c.brokers {
		n.mu.Lock()
		if n.stop != nil {
			out = append(out, n)
		}
		n.mu.Unlock()
	}
	return out
}

// PutTopic creates a topic with so many queues on each of the brokers named, on
// all that run with none named, or changes it, and waits until a name server
// tells of it.
func (c *Cluster) PutTopic(ctx context.Context, topic string, queues int32, brokers ...string) error {
	return c.PutQueues(ctx, topic, queues, queues, brokers...)
}

// PutQueues is PutTopic with different counts of queues to read and to write.
func (c *Cluster) PutQueues(ctx context.Context, topic string, read, write int32, brokers ...string) error {
	if len(brokers) == 0 {
		for _, n := range c.running() {
			brokers = append(brokers, n.Name)
		}
	}
	for _, b := range brokers {
		err := c.Admin(b, func(a tacitv1.AdminServiceClient) error {
			_, err := a.PutTopic(ctx, &tacitv1.PutTopicRequest{Config: &tacitv1.TopicConfig{
				Topic: topic, ReadQueues: read, WriteQueues: write, Permission: &tacitv1.Permission{Readable: true, Writable: true},
			}})
			return err
		})
		if err != nil {
			return fmt.Errorf("put topic %q on %s: %w", topic, b, err)
		}
	}
	for {
		a, err := routes.Get(ctx, routes.Static(c.NameServers()...), nil, topic)
		if err == nil && len(a.Topics) == 1 {
			ok := true
			for _, b := range brokers {
				h, found := a.Topics[0].Host(b)
				ok = ok && found && h.Config.ReadQueues == read && h.Config.WriteQueues == write
			}
			if ok {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for route of topic %q: %w", topic, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Admin calls f with a client of a broker's administration.
func (c *Cluster) Admin(name string, f func(tacitv1.AdminServiceClient) error) error {
	n := c.brokers[name]
	if n == nil {
		return fmt.Errorf("no broker %q", name)
	}
	conn, err := routes.Dial(n.address, nil)
	if err != nil {
		return err
	}
	return errors.Join(f(tacitv1.NewAdminServiceClient(conn)), conn.Close())
}

// Stop stops everything and waits for it.
func (c *Cluster) Stop() error {
	var errs []error
	for _, n := range c.brokers {
		errs = append(errs, n.Stop())
	}
	for _, n := range c.names {
		errs = append(errs, n.Stop())
	}
	return errors.Join(errs...)
}

// Address returns where the node serves; it stays the same over restarts.
func (n *Node) Address() string { return n.address }

// Start starts the node, for the first time or again.
func (n *Node) Start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stop != nil {
		return fmt.Errorf("node %s runs", n.Name)
	}
	address := n.address
	if address == "" {
		address = "127.0.0.1:0"
	}
	lis, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return fmt.Errorf("start node: %w", err)
	}
	n.lis = &listener{Listener: lis, conns: make(map[net.Conn]struct{})}
	n.address = lis.Addr().String()
	run, err := n.build()
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.stop, n.done = cancel, make(chan struct{})
	done := n.done
	go func() { // Stop waits for it
		defer close(done)
		n.err = run(ctx)
	}()
	return nil
}

func (n *Node) build() (func(context.Context) error, error) {
	if !n.broker {
		cfg := nameserver.Default()
		cfg.BrokerExpiry, cfg.Grace = 2*time.Second, time.Second
		if n.c.cfg.NameServer != nil {
			n.c.cfg.NameServer(&cfg)
		}
		s, err := nameserver.New(cfg, nameserver.WithListener(n.lis), nameserver.WithLogger(n.c.cfg.Logger))
		if err != nil {
			return nil, fmt.Errorf("start name server: %w", err)
		}
		return s.Run, nil
	}
	cfg := broker.Default()
	cfg.Name, cfg.NameServers, cfg.DataDir = n.Name, n.c.NameServers(), filepath.Join(n.c.cfg.Dir, n.Name)
	cfg.Advertise = n.address
	cfg.MinFreeBytes, cfg.SegmentBytes = 1<<20, 8<<20
	cfg.RegisterInterval, cfg.Grace, cfg.SessionTimeoutMin = 300*time.Millisecond, time.Second, 100*time.Millisecond
	if n.c.cfg.Broker != nil {
		n.c.cfg.Broker(&cfg)
	}
	opts := []broker.Option{broker.WithListener(n.lis), broker.WithLogger(n.c.cfg.Logger), broker.WithServerOptions(grpc.WaitForHandlers(true))}
	if n.c.cfg.BrokerOptions != nil {
		opts = append(opts, n.c.cfg.BrokerOptions(n.Name)...)
	}
	s, err := broker.New(cfg, opts...)
	if err != nil {
		return nil, fmt.Errorf("start broker %s: %w", n.Name, err)
	}
	return s.Run, nil
}

// Stop stops the node gracefully. Stopping a stopped node does nothing.
func (n *Node) Stop() error { return n.end(false) }

// Kill cuts all connections of the node without a word and stops it.
func (n *Node) Kill() error { return n.end(true) }

func (n *Node) end(cut bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stop == nil {
		return nil
	}
	if cut {
		n.lis.cut()
	}
	n.stop()
	<-n.done
	n.stop = nil
	if cut {
		return nil // it may complain of its listener
	}
	return n.err
}

// Restart stops the node, cutting its connections if cut is set, and starts it.
func (n *Node) Restart(cut bool) error {
	if err := n.end(cut); err != nil {
		return err
	}
	return n.Start()
}

// listener remembers the connections it accepted.
type listener struct {
	net.Listener
	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
	return &accepted{Conn: c, l: l}, nil
}

// cut closes the listener and every connection at once.
func (l *listener) cut() {
	_ = l.Close() // it is to be gone; that is all
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // a reset, as of a dead process
		}
		_ = c.Close()
	}
}

type accepted struct {
	net.Conn
	l *listener
}

// SyscallConn lets the broker wait for something to read, as on a bare connection.
func (a *accepted) SyscallConn() (syscall.RawConn, error) {
	c, ok := a.Conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return c.SyscallConn()
}

func (a *accepted) Close() error {
	a.l.mu.Lock()
	delete(a.l.conns, a.Conn)
	a.l.mu.Unlock()
	return a.Conn.Close()
}
