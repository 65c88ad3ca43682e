package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/tacitmq/tacit/internal/rpcerr"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/route"
)

const (
	// DefaultTimeout bounds each call to one server.
	DefaultTimeout = 5 * time.Second
	// maxMessage is the largest answer accepted: the routes of 100 000 topics fit.
	maxMessage = 64 << 20
	// maxParallel bounds the calls under way at once.
	maxParallel = 32
)

// Config of a client. Only NameServers is required.
type Config struct {
	// NameServers are host:port addresses; all of them are asked.
	NameServers []string
	// Timeout bounds each call to one server. Default: 5 s.
	Timeout time.Duration
	// DialOptions are added to those of every connection.
	DialOptions []grpc.DialOption
}

func (c *Config) validate() error {
	var errs []error
	if len(c.NameServers) == 0 {
		errs = append(errs, errors.New("name servers: none given"))
	}
	for _, a := range c.NameServers {
		if _, _, err := net.SplitHostPort(a); err != nil {
			errs = append(errs, fmt.Errorf("name server %q: must be host:port", a))
		}
	}
	if c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("timeout %v: must be positive", c.Timeout))
	}
	return errors.Join(errs...)
}

// Client asks name servers and brokers. It is safe for concurrent use.
type Client struct {
	cfg Config

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn // by address
}

// Open returns a client. It connects to nobody yet.
func Open(cfg Config) (*Client, error) {
	cfg.NameServers = slices.Clone(cfg.NameServers)
	slices.Sort(cfg.NameServers)
	cfg.NameServers = slices.Compact(cfg.NameServers)
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("admin client: %w", err)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	return &Client{cfg: cfg, conns: make(map[string]*grpc.ClientConn)}, nil
}

// Close ends all connections.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close() // fails only if it is closed already
	}
	clear(c.conns)
}

// conn returns the connection to an address.
func (c *Client) conn(address string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conn := c.conns[address]; conn != nil {
		return conn, nil
	}
	opts := append(rpcerr.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	conn, err := grpc.NewClient("passthrough:///"+address, append(opts, c.cfg.DialOptions...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	c.conns[address] = conn
	return conn, nil
}

// Failure is a server that did not answer, or refused.
type Failure struct {
	Server  string `json:"server"` // name of a broker; of a name server its address
	Address string `json:"address"`
	Reason  string `json:"error"`
	Err     error  `json:"-"`
}

func (f Failure) String() string {
	if f.Server == f.Address {
		return f.Server + ": " + f.Reason
	}
	return fmt.Sprintf("%s (%s): %s", f.Server, f.Address, f.Reason)
}

func failure(server, address string, err error) Failure {
	return Failure{Server: server, Address: address, Reason: explain(err), Err: err}
}

// explain is the text of an error of a call for people: gRPC's own wrapping
// says nothing to them.
func explain(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	case status.Code(err) == codes.Unimplemented:
		return "does not offer this service: is it the right port?"
	}
	text := err.Error()
	if inner, ok := strings.CutPrefix(text, `connection error: desc = "`); ok {
		text = strings.TrimSuffix(inner, `"`)
		text = strings.TrimPrefix(text, "transport: ")
		text = strings.TrimPrefix(text, "Error while dialing: ")
	}
	if _, reason, ok := strings.Cut(text, ": connect: "); ok && strings.HasPrefix(text, "dial ") {
		return reason
	}
	return text
}

// ask calls f for each server at once, bounded in number and time, and returns
// the answers in the order of the servers with an error for each.
func ask[S, T any](ctx context.Context, c *Client, servers []S, address func(S) string,
	f func(ctx context.Context, conn *grpc.ClientConn, s S) (T, error),
) ([]T, []error) {
	answers, errs := make([]T, len(servers)), make([]error, len(servers))
	var g errgroup.Group
	g.SetLimit(maxParallel)
	for i, s := range servers {
		g.Go(func() error {
			conn, err := c.conn(address(s))
			if err == nil {
				call, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
				defer cancel()
				answers[i], err = f(call, conn, s)
			}
			errs[i] = err
			return nil
		})
	}
	_ = g.Wait() // every error is in errs
	return answers, errs
}

// askBrokers is ask for brokers.
func askBrokers[T any](ctx context.Context, c *Client, brokers []route.Broker,
	f func(ctx context.Context, admin tacitv1.AdminServiceClient, b route.Broker) (T, error),
) ([]T, []error) {
	return ask(ctx, c, brokers, func(b route.Broker) string { return b.Address },
		func(ctx context.Context, conn *grpc.ClientConn, b route.Broker) (T, error) {
			return f(ctx, tacitv1.NewAdminServiceClient(conn), b)
		})
}
