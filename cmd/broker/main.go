// Command broker keeps message queues and serves producers and consumers.
package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/tacitmq/tacit/broker"
	"github.com/tacitmq/tacit/internal/obs"
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
		tel, err := obs.New(cmd.Context(), o, cmd.ErrOrStderr())
		if err != nil {
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
	f.StringVar(&cfg.Name, "name", cfg.Name, "`name` of the broker, unique in the cluster and the same over restarts")
	f.StringVar(&cfg.Cluster, "cluster", cfg.Cluster, "`name` of the cluster, shown by tools")
	f.StringVar(&cfg.Listen, "listen", cfg.Listen, "`address` to serve on")
	f.StringVar(&cfg.Advertise, "advertise", cfg.Advertise, "`host:port` that clients are told; default: an address of this host and the port of --listen")
	f.StringSliceVar(&cfg.NameServers, "nameservers", cfg.NameServers, "name servers to register with: `host:port` each, or file:PATH or a URL that lists them")
	f.StringVar(&cfg.DataDir, "data-dir", cfg.DataDir, "`directory` of messages and state")
	f.Var(&durability{&cfg.Durability}, "durability", "when a message is acknowledged: `fsync` (it is on disk), interval or none")
	f.DurationVar(&cfg.SyncInterval, "sync-interval", cfg.SyncInterval, "time between syncs with --durability interval")
	f.Var(&size{&cfg.SegmentBytes}, "segment-size", "`size` of a log file")
	f.DurationVar(&cfg.RetainAge, "retention-age", cfg.RetainAge, "drop messages older than this; 0 keeps them")
	f.Var(&size{&cfg.RetainBytes}, "retention-size", "drop the oldest messages above this `size`; 0 keeps them")
	f.Var(&size{&cfg.MinFreeBytes}, "min-free", "refuse messages when less than this `size` is free on the disk")
	f.BoolVar(&cfg.AcceptStateLoss, "accept-state-loss", cfg.AcceptStateLoss, "start with no offsets and leases if no copy of them can be read")
	f.IntVar(&cfg.MaxBatchBytes, "max-batch-bytes", cfg.MaxBatchBytes, "largest batch of messages, in `bytes`")
	f.IntVar(&cfg.MaxFetchBytes, "max-fetch-bytes", cfg.MaxFetchBytes, "most that one answer of a fetch holds, in `bytes`; one batch at least")
	f.BoolVar(&cfg.AutoCreateTopics, "auto-create-topics", cfg.AutoCreateTopics, "make a topic when somebody produces to it")
	f.Int32Var(&cfg.DefaultQueues, "default-queues", cfg.DefaultQueues, "queues of topics made so, on this broker")
	f.Int32Var(&cfg.MaxQueues, "max-queues", cfg.MaxQueues, "most queues of a topic on this broker")
	f.IntVar(&cfg.MaxTopics, "max-topics", cfg.MaxTopics, "most topics on this broker")
	f.DurationVar(&cfg.SessionTimeoutMin, "session-timeout-min", cfg.SessionTimeoutMin, "shortest session timeout a member may ask for")
	f.DurationVar(&cfg.SessionTimeoutMax, "session-timeout-max", cfg.SessionTimeoutMax, "longest session timeout a member may ask for")
	f.IntVar(&cfg.MaxSessions, "max-sessions", cfg.MaxSessions, "most members connected at once")
	f.Int32Var(&cfg.MaxReconsumeTimes, "max-reconsume-times", cfg.MaxReconsumeTimes, "retries of a message before it becomes a dead letter, unless its consumer says otherwise")
	f.DurationVar(&cfg.RegisterInterval, "register-interval", cfg.RegisterInterval, "time between heartbeats to name servers")
	f.DurationVar(&cfg.Grace, "grace", cfg.Grace, "how long a stop waits for streams to end")
}
