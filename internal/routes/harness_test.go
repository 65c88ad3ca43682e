package routes

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tacitmq/tacit/nameserver"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/route"
)

// network carries connections to addresses in this process.
type network struct {
	t *testing.T

	mu    sync.Mutex
	lis   map[string]*bufconn.Listener
	hole  map[string]bool // dialling gets a connection that nobody reads
	dials map[string]int
	open  map[string]int // connections that are open
}

func newNetwork(t *testing.T) *network {
	return &network{
		t: t, lis: make(map[string]*bufconn.Listener), hole: make(map[string]bool),
		dials: make(map[string]int), open: make(map[string]int),
	}
}

// counted tells the network when it is closed.
type counted struct {
	net.Conn
	close func()
}

func (c *counted) Close() error {
	c.close()
	return c.Conn.Close()
}

func (n *network) dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	lis, hole := n.lis[address], n.hole[address]
	n.dials[address]++
	n.mu.Unlock()
	var conn net.Conn
	switch {
	case hole:
		a, b := net.Pipe()
		context.AfterFunc(n.t.Context(), func() { _ = b.Close() })
		conn = a
	case lis == nil:
		return nil, fmt.Errorf("dial %s: connection refused", address)
	default:
		var err error
		if conn, err = lis.DialContext(ctx); err != nil {
			return nil, err
		}
	}
	n.mu.Lock()
	n.open[address]++
	n.mu.Unlock()
	return &counted{conn, sync.OnceFunc(func() {
		n.mu.Lock()
		n.open[address]--
		n.mu.Unlock()
	})}, nil
}

func (n *network) connections(address string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.open[address]
}

// server runs a name server at an address until stop is called or the test ends.
func (n *network) server(address string) (stop func()) {
	n.t.Helper()
	lis := bufconn.Listen(1 << 16)
	srv, err := nameserver.New(nameserver.Default(), nameserver.WithListener(lis))
	if err != nil {
		n.t.Fatal(err)
	}
	n.mu.Lock()
	n.lis[address] = lis
	n.mu.Unlock()
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }() // ended by stop
	stop = sync.OnceFunc(func() {
		n.mu.Lock()
		delete(n.lis, address)
		n.mu.Unlock()
		cancel()
		if err := <-done; err != nil {
			n.t.Errorf("name server: %v", err)
		}
	})
	n.t.Cleanup(stop)
	return stop
}

// broker registers with all name servers of a source, as a broker does.
type broker struct {
	n     *network
	entry *tacitv1.BrokerEntry

	mu     sync.Mutex
	topics []string
}

// broker runs one until the test ends.
func (n *network) broker(name string, source Source, topics ...string) *broker {
	b := &broker{n: n, topics: topics, entry: &tacitv1.BrokerEntry{Broker: name, Address: name + ":1", BrokerEpoch: 1}}
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan struct{})
	go func() { // ended by the cleanup
		defer close(done)
		Each(ctx, source, time.Second, zap.NewNop(), b.register)
	}()
	n.t.Cleanup(func() {
		cancel()
		<-done
	})
	return b
}

func (b *broker) set(topics ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.topics = topics
	b.entry.ConfigVersion++
}

// register keeps b registered at one name server, everything in each message.
func (b *broker) register(ctx context.Context, address string) {
	conn, err := Dial(address, b.n.dial)
	if err != nil {
		b.n.t.Error(err)
		return
	}
	defer conn.Close()
	for ctx.Err() == nil {
		stream, err := client(conn).Register(ctx)
		for err == nil {
			b.mu.Lock()
			m := &tacitv1.RegisterRequest{Full: true, Entry: &tacitv1.BrokerEntry{
				Broker: b.entry.GetBroker(), Address: b.entry.GetAddress(), BrokerEpoch: 1, ConfigVersion: b.entry.GetConfigVersion(),
			}}
			for _, name := range b.topics {
				m.Topics = append(m.Topics, &tacitv1.TopicConfig{
					Topic: name, ReadQueues: 4, WriteQueues: 4, Permission: &tacitv1.Permission{Readable: true, Writable: true},
				})
			}
			b.mu.Unlock()
			if err = stream.Send(m); err == nil {
				if _, err = stream.Recv(); err == nil {
					sleep(ctx, time.Second)
				}
			}
		}
		sleep(ctx, time.Second)
	}
}

// run starts a watcher that ends with the test or with stop.
func run(t *testing.T, n *network, source Source, opts ...Option) (w *Watcher, stop func()) {
	t.Helper()
	w = New(source, append([]Option{WithDialer(n.dial), WithListInterval(time.Second)}, opts...)...)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }() // ended by stop
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("watcher: %v", err)
		}
	})
	t.Cleanup(stop)
	return w, stop
}

// hosts returns the brokers that a watcher has for a topic.
func hosts(w *Watcher, topic string) string {
	t, known := w.Lookup(topic)
	if known == route.Unknown {
		return "unknown"
	}
	return strings.Join(t.Brokers(), ",")
}

// list is a source that tests change.
type changing struct {
	mu  sync.Mutex
	now []string
	err error
}

func (c *changing) set(err error, addresses ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now, c.err = addresses, err
}

func (c *changing) Addresses(context.Context) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now, c.err
}
