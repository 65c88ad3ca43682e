package demo

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/tacitmq/tacit/broker"
	"github.com/tacitmq/tacit/nameserver"
)

// anyPort is where a server listens that may choose its port.
const anyPort = "127.0.0.1:0"

// cluster is a name server and brokers on real sockets, in this process.
type cluster struct {
	dir string
	log *zap.Logger
	g   *errgroup.Group
	ctx context.Context //nolint:containedctx // the cluster's life, which restarts of its brokers share

	nameServer string
	brokers    []*node // sorted by name
}

// node is a broker that can be restarted.
type node struct {
	name    string
	address string
	stop    context.CancelFunc
	ended   chan struct{}
}

// startCluster starts a name server and brokers of these names, each with a
// directory below dir. Everything ends with ctx; wait for it with g.
func startCluster(ctx context.Context, g *errgroup.Group, dir string, names []string, log *zap.Logger) (*cluster, error) {
	c := &cluster{dir: dir, log: log, g: g, ctx: ctx}
	cfg := nameserver.Default()
	cfg.Listen = anyPort
	ns, err := nameserver.New(cfg, nameserver.WithLogger(log))
	if err != nil {
		return nil, fmt.Errorf("start name server: %w", err)
	}
	c.nameServer = ns.Addr().String()
	g.Go(func() error { return ns.Run(ctx) })
	for _, name := range names {
		n := &node{name: name, address: anyPort}
		if err := c.start(n); err != nil {
			return nil, err
		}
		c.brokers = append(c.brokers, n)
	}
	return c, nil
}

// start starts a broker where it was before.
func (c *cluster) start(n *node) error {
	cfg := broker.Default()
	cfg.Name, cfg.Listen, cfg.NameServers, cfg.DataDir = n.name, n.address, []string{c.nameServer}, filepath.Join(c.dir, n.name)
	srv, err := broker.New(cfg, broker.WithLogger(c.log))
	if err != nil {
		return fmt.Errorf("start %s: %w", n.name, err)
	}
	ctx, stop := context.WithCancel(c.ctx)
	n.address, n.stop, n.ended = srv.Addr().String(), stop, make(chan struct{})
	ended := n.ended
	c.g.Go(func() error {
		defer close(ended)
		defer stop()
		return srv.Run(ctx)
	})
	return nil
}

// restart stops a broker, waits for its end and starts it again.
func (c *cluster) restart(ctx context.Context, name string) error {
	for _, n := range c.brokers {
		if n.name != name {
			continue
		}
		n.stop()
		select {
		case <-n.ended:
		case <-ctx.Done():
			return fmt.Errorf("stop %s: %w", name, ctx.Err())
		}
		return c.start(n)
	}
	return errors.New("restart: no broker " + name)
}
