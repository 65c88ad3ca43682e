// Command broker keeps message queues and serves producers and consumers.
package main

import (
	"errors"
	"math"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/tacitmq/tacit/broker"
	"github.com/tacitmq/tacit/internal/obs"
	"github.com/tacitmq/tacit/route"
)

func main() { os.Exit(obs.Main(command(), os.Args[1:], os.Stdout, os.Stderr)) }

func command() *cobra.Command {
	cfg, o := broker.Default(), obs.DefaultConfig(":10912")
	o.Service = "tacit-broker"
	cfg.DataDir = "data"
	if host, err := os.Hostname(); err == nil {
		cfg.Name = host
	}
	cfg.Version = obs.Version()
	cmd := obs.Root("broker", "Keep message queues and serve producers and consumers")
	cmd.Long = `Keep message queues and serve producers and consumers.

A broker stores the queues of its topics below --data-dir, registers with every
name server and serves until it gets SIGINT or SIGTERM. The name identifies it in
the cluster and must stay the same over restarts.`
	cmd.Args = cobra.NoArgs
	bind(cmd.Flags(), &cfg)
	o.Bind(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg.MaxBodyBytes = max(cfg.MaxBodyBytes, cfg.MaxBatchBytes)
		if err := errors.Join(together(&cfg)...); err != nil {
			return &obs.UsageError{Err: err}
		}
		if err := cfg.Validate(); err != nil {
			return &obs.UsageError{Err: err}
		}
		tel, err := obs.New(cmd.Context(), o, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		if err := tel.Listen(cmd.Context()); err != nil {
			return err
		}
		srv, err := broker.New(cfg, broker.WithLogger(tel.Log), broker.WithRegisterer(tel.Registry),
			broker.WithServerOptions(tel.ServerOptions()...), broker.WithDialOptions(tel.DialOptions()...))
		if err != nil {
			return errors.Join(err, tel.Close())
		}
		tel.Ready(srv.Ready)
		tel.Log.Info("broker starts", zap.String("name", cfg.Name), zap.String("listens", srv.Addr().String()),
			zap.String("advertises", srv.Advertised()), zap.String("data", cfg.DataDir), zap.String("version", cfg.Version))
		return tel.Run(cmd.Context(), srv.Run)
	}
	return cmd
}

// bind adds the flags of a broker.
func bind(f *pflag.FlagSet, cfg *broker.Config) {
	f.Var(obs.Text(&cfg.Name, checkName), "name", "`name` of the broker, unique in the cluster and the same over restarts")
	f.Var(obs.Text(&cfg.Cluster, checkCluster), "cluster", "`name` of the cluster, shown by tools")
	f.Var(obs.Listen(&cfg.Listen), "listen", "`address` to serve on")
	f.Var(obs.Dial(&cfg.Advertise), "advertise", "`host:port` that clients are told; default: an address of this host and the port of --listen")
	f.Var(obs.NameServers(&cfg.NameServers, true), "nameservers", "name servers to register with: `host:port` each, or file:PATH or a URL that lists them")
	f.Var(obs.Text(&cfg.DataDir, notEmpty), "data-dir", "`directory` of messages and state")
	f.Var(durability(&cfg.Durability), "durability", "when a message is acknowledged: fsync (it is on disk), interval or none")
	f.Var(obs.Duration(&cfg.SyncInterval, time.Millisecond, time.Hour), "sync-interval", "time between syncs with --durability interval")
	f.Var(obs.Size(&cfg.SegmentBytes, 4<<10, 2<<30), "segment-size", "`size` of a log file, --max-batch-bytes at least")
	f.Var(obs.Duration(&cfg.RetainAge, 0, obs.Forever), "retention-age", "drop messages older than this; 0 keeps them")
	f.Var(obs.Size(&cfg.RetainBytes, 0, math.MaxInt64), "retention-size", "drop the oldest messages above this `size`; 0 keeps them")
	f.Var(obs.Size(&cfg.MinFreeBytes, 0, math.MaxInt64), "min-free", "refuse messages when less than this `size` is free on the disk")
	f.BoolVar(&cfg.AcceptStateLoss, "accept-state-loss", cfg.AcceptStateLoss, "start although stored offsets and leases are missing: with what can still be read of them, or with none")
	f.Var(obs.Size(&cfg.MaxBatchBytes, 1<<10, 64<<20), "max-batch-bytes", "largest batch of messages, in `bytes`")
	f.Var(obs.Size(&cfg.MaxFetchBytes, 1, math.MaxInt64), "max-fetch-bytes", "most that one answer of a fetch holds, in `bytes`; one batch at least")
	f.Var(obs.Size(&cfg.MaxFetchMemory, 1, math.MaxInt64), "max-fetch-memory", "most that answers of fetches hold until clients read them, in `bytes` for all clients together")
	f.BoolVar(&cfg.AutoCreateTopics, "auto-create-topics", cfg.AutoCreateTopics, "make a topic when somebody produces to it")
	f.Var(obs.Int(&cfg.DefaultQueues, 1, route.MaxQueues), "default-queues", "queues of topics made so, on this broker")
	f.Var(obs.Int(&cfg.MaxQueues, 1, route.MaxQueues), "max-queues", "most queues of a topic on this broker")
	f.Var(obs.Int(&cfg.MaxTopics, 1, math.MaxInt32), "max-topics", "most topics on this broker")
	f.Var(obs.Duration(&cfg.SessionTimeoutMin, time.Millisecond, obs.Forever), "session-timeout-min", "shortest session timeout a member may ask for")
	f.Var(obs.Duration(&cfg.GroupInitialDelay, 0, obs.Forever), "group-initial-delay", "how long the first rebalance of a coordinated group waits for more members")
	f.Var(obs.Int(&cfg.GroupMaxSize, 0, 1_000_000), "group-max-size", "greatest number of `members` of a coordinated group; 0: no limit")
	f.Var(obs.Duration(&cfg.GroupSessionTimeout, time.Millisecond, obs.Forever), "group-session-timeout", "after which silence a member of a coordinated group is gone, where the coordinator assigns")
	f.Var(obs.Duration(&cfg.GroupHeartbeat, time.Millisecond, obs.Forever), "group-heartbeat", "heartbeat interval of such members")
	f.Var(obs.Duration(&cfg.SessionTimeoutMax, time.Millisecond, obs.Forever), "session-timeout-max", "longest session timeout a member may ask for")
	f.Var(obs.Int(&cfg.MaxSessions, 1, math.MaxInt32), "max-sessions", "most members connected at once")
	f.Var(obs.Int(&cfg.MaxReconsumeTimes, 0, math.MaxInt32), "max-reconsume-times", "retries of a message before it becomes a dead letter, unless its consumer says otherwise")
	f.Var(obs.Duration(&cfg.RegisterInterval, time.Millisecond, time.Hour), "register-interval", "time between heartbeats to name servers")
	f.Var(obs.Duration(&cfg.Grace, 0, obs.Forever), "grace", "how long a stop waits for streams to end")
}
