package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/tacitmq/tacit/broker"
	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/admin"
	"github.com/tacitmq/tacit/internal/obs"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/internal/tempdir"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/nameserver"
)

type devConfig struct {
	nameServer string
	broker     string
	data       string
	topics     []string
	durability store.Durability
	acceptLoss bool
}

func devCommand() *cobra.Command {
	cfg := devConfig{nameServer: "127.0.0.1:9876", broker: "127.0.0.1:10911", durability: store.Fsync}
	o := obs.DefaultConfig("")
	o.LogLevel = "warn"
	cmd := &cobra.Command{
		Use:     "dev",
		GroupID: "run",
		Short:   "Run a name server and a broker in one process, to play with",
		Long: `Runs a name server and a broker in one process. Without --data-dir everything is
gone when it ends.`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.Var(obs.Listen(&cfg.nameServer), "nameserver-listen", "`address` of the name server")
	f.Var(obs.Listen(&cfg.broker), "broker-listen", "`address` of the broker")
	f.StringVar(&cfg.data, "data-dir", "", "`directory` of messages and state; default: one that is removed at the end")
	f.StringSliceVar(&cfg.topics, "topic", nil, "topics to create, as `name` or name:queues")
	f.Var(obs.ChoiceOf(&cfg.durability, broker.DurabilityName, store.Fsync, store.Interval, store.None), "durability", "when a message is acknowledged: fsync, interval or none")
	f.BoolVar(&cfg.acceptLoss, "accept-state-loss", false, "start although stored offsets and leases are missing: with what can still be read of them, or with none")
	o.Bind(f)
	hideShared(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return runDev(cmd, &cfg, o) }
	return cmd
}

func runDev(cmd *cobra.Command, cfg *devConfig, o *obs.Config) (err error) {
	began := time.Now()
	if err := alone(cmd); err != nil {
		return err
	}
	topics, err := parseTopics(cfg.topics)
	if err != nil {
		return err
	}
	data := cfg.data
	if data == "" {
		dir, e := tempdir.New("tacit-dev-")
		if e != nil {
			return e
		}
		data = dir.Path
		defer func() { err = errors.Join(err, dir.Remove()) }()
	}
	tel, err := obs.New(cmd.Context(), o, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	if err := tel.Listen(cmd.Context()); err != nil {
		return err
	}
	nsCfg := nameserver.Default()
	nsCfg.Listen = cfg.nameServer
	ns, err := nameserver.New(nsCfg, nameserver.WithLogger(tel.Log), nameserver.WithRegisterer(tel.Registry), nameserver.WithServerOptions(tel.ServerOptions()...))
	if err != nil {
		return errors.Join(fmt.Errorf("name server: %w", err), tel.Close())
	}
	bCfg := broker.Default()
	bCfg.Name, bCfg.Listen, bCfg.DataDir, bCfg.Durability = "dev", cfg.broker, filepath.Join(data, "broker"), cfg.durability
	bCfg.NameServers, bCfg.AutoCreateTopics, bCfg.Version = []string{dialable(ns.Addr())}, true, obs.Version()
	bCfg.AcceptStateLoss = cfg.acceptLoss
	b, err := broker.New(bCfg, broker.WithLogger(tel.Log), broker.WithRegisterer(tel.Registry),
		broker.WithServerOptions(tel.ServerOptions()...), broker.WithDialOptions(tel.DialOptions()...))
	if err != nil {
		return errors.Join(fmt.Errorf("broker: %w", err), runAndStop(ns), tel.Close())
	}
	tel.Ready(b.Ready)
	return tel.Run(cmd.Context(), func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		// The broker ends first: it signs off at the name server.
		nsCtx, stopNS := context.WithCancel(context.WithoutCancel(ctx))
		defer stopNS()
		g.Go(func() error { return ns.Run(nsCtx) })
		g.Go(func() error {
			defer stopNS()
			return b.Run(ctx)
		})
		g.Go(func() error {
			err := welcome(ctx, cmd, dialable(ns.Addr()), b.Advertised(), tel.HTTPAddr(), topics, began)
			if ctx.Err() != nil {
				return nil //nolint:nilerr // stopped meanwhile
			}
			return err
		})
		return g.Wait()
	})
}

// runAndStop frees what a name server took that never ran.
func runAndStop(ns *nameserver.Server) error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ns.Run(ctx)
}

// welcome waits until the broker is registered, creates topics and says what
// can be done now.
func welcome(ctx context.Context, cmd *cobra.Command, nameServer, brokerAddr string, http net.Addr, topics map[string]int32, began time.Time) error {
	c, err := admin.Open(admin.Config{NameServers: []string{nameServer}})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := waitForBroker(ctx, c); err != nil {
		return err
	}
	for name, queues := range topics {
		_, err := c.CreateTopic(ctx, name, admin.TopicChange{Queues: &queues})
		if err != nil && !errors.Is(err, rpcerr.ErrTopicExists) {
			return fmt.Errorf("create topic %q: %w", name, err)
		}
	}
	out := cmd.OutOrStdout()
	_, _ = fmt.Fprintf(out, "ready in %v: name server %s, broker %s\n", time.Since(began).Round(time.Millisecond), nameServer, brokerAddr)
	if http != nil {
		_, _ = fmt.Fprintf(out, "metrics, health and profiles: http://%s/metrics\n", http)
	}
	prefix := ""
	if nameServer != "127.0.0.1:9876" {
		prefix = "TACIT_NAMESERVERS=" + nameServer + " "
	}
	topic, create := "greetings", " --create 4"
	if len(topics) > 0 {
		topic, create = slices.Min(slices.Collect(maps.Keys(topics))), ""
	}
	_, _ = fmt.Fprintf(out, "try:  %[1]stacit produce %[2]s hello%[3]s\n      %[1]stacit consume %[2]s --from first\nstop it with Ctrl-C\n", prefix, topic, create)
	return nil
}

func waitForBroker(ctx context.Context, c *admin.Client) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if cl, err := c.Cluster(ctx); err == nil && len(cl.Brokers) > 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for the broker: %w", ctx.Err())
		}
	}
}

// parseTopics reads name or name:queues.
func parseTopics(list []string) (map[string]int32, error) {
	out := make(map[string]int32)
	for _, t := range list {
		name, count, has := strings.Cut(t, ":")
		n := int64(broker.Default().DefaultQueues)
		if has {
			var err error
			if n, err = strconv.ParseInt(count, 10, 32); err != nil || n < 1 {
				return nil, obs.Usage("--topic %q: must be name or name:queues", t)
			}
		}
		if err := message.CheckTopic(name); err != nil {
			return nil, &obs.UsageError{Err: fmt.Errorf("--topic %q: %w", t, err)}
		}
		out[name] = int32(n)
	}
	return out, nil
}

// dialable is the address to connect to for one that is listened on.
func dialable(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return a.String()
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(tcp.Port))
}
