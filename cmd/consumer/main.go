// Command consumer is a member of a consumer group that prints messages or runs a
// program for each.
package main

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/internal/obs"
)

func main() { os.Exit(obs.Main(command(), os.Args[1:], os.Stdout, os.Stderr)) }

// settings are what the flags set.
type settings struct {
	nameServers []string
	group       string
	topics      []string
	filter      string
	from        string
	mode        string
	orderly     bool
	clientID    string
	instanceID  string
	leaveOnStop bool
	strategies  []string
	format      string
	program     string
	programArgs []string
	offsetFile  string

	concurrency    int
	maxReconsume   int
	totalBytes     int
	retryDelay     time.Duration
	drainLimit     time.Duration
	commitInterval time.Duration
	stallTimeout   time.Duration
	tick           time.Duration
	heartbeat      time.Duration
	sessionTimeout time.Duration
}

func command() *cobra.Command {
	s, o := defaults(), obs.DefaultConfig("") // several on one machine are usual
	o.Service = "tacit-consumer"
	cmd := obs.Root("consumer", "Consume messages as a member of a group")
	cmd.Use = "consumer [flags] [-- ARGUMENT...]"
	cmd.Long = `Consume messages as a member of a group.

The members of a group share the queues of its topics. Messages are printed to
stdout, one a line, or given to a program: with --exec it runs for each message,
which it gets on stdin, with the arguments after "--". If it exits with 0 the
message is consumed; otherwise it comes again later, and is put among the dead
letters after --max-reconsume-times. What is known of the message is in the
variables TACIT_MESSAGE_TOPIC, _TAG, _KEY, _BROKER, _QUEUE, _OFFSET and _ATTEMPT.
What a program prints is printed when it ends, beyond 1 MiB in parts of whole lines.

On SIGINT or SIGTERM the consumer hands out nothing more, waits for what is being
handled, stores its progress and gives its queues to the others. At the second
one it ends at once, and the programs of --exec with it. It does the same as on
SIGTERM when nobody reads its output any more ("| head"): what was not printed is
not consumed.`
	cmd.Args = cobra.ArbitraryArgs
	s.bind(cmd.Flags())
	o.Bind(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s.programArgs = args
		if len(args) > 0 && s.program == "" {
			return obs.Usage("argument %q: arguments are for the program of --exec", args[0])
		}
		return s.run(cmd, o)
	}
	return cmd
}

func defaults() *settings {
	return &settings{
		nameServers: []string{"127.0.0.1:9876"}, filter: "*", from: "last", mode: "exclusive", format: "raw",
		concurrency: consumer.DefaultConcurrency, maxReconsume: consumer.DefaultMaxReconsumeTimes, totalBytes: consumer.DefaultTotalBytes,
		drainLimit: consumer.DefaultDrainLimit, commitInterval: consumer.DefaultCommitInterval, stallTimeout: consumer.DefaultStallTimeout,
		tick: rebalance.DefaultTick, heartbeat: rebalance.DefaultHeartbeat, sessionTimeout: rebalance.DefaultSessionTimeout,
		strategies: []string{allocate.Default().Name()},
	}
}

func (s *settings) bind(f *pflag.FlagSet) {
	f.Var(obs.NameServers(&s.nameServers, false), "nameservers", "name servers: `host:port` each, or file:PATH or a URL that lists them")
	f.StringVar(&s.group, "group", "", "`name` of the consumer group; required")
	f.StringSliceVar(&s.topics, "topic", nil, "`topics` to consume; required")
	f.StringVar(&s.filter, "filter", s.filter, "`tags` to consume, joined by ||; the same in all members of the group")
	f.Var(obs.Text(&s.from, checkFrom), "from", "`where` to begin if the group has no progress: first, last or a time as 2006-01-02T15:04:05Z")
	f.Var(obs.Choice(&s.mode, "exclusive", "immediate", "broadcasting"), "mode", "how queues change hands: exclusive, immediate, or broadcasting to hand every message to every member")
	f.BoolVar(&s.orderly, "orderly", false, "handle the messages of a queue one after another, in order")
	f.StringVar(&s.clientID, "client-id", "", "client `id`; default: one that no other process can have")
	f.StringVar(&s.instanceID, "instance-id", "", "`id` of a static member, whose share is kept for the session timeout when it restarts")
	f.BoolVar(&s.leaveOnStop, "leave-on-stop", false, "with --instance-id: give the queues to the others at once when stopped, as members without one do")
	f.Var(obs.Choices(&s.strategies, allocate.Names()...), "strategy", "allocate `strategies`, most wanted first")
	f.Var(obs.Choice(&s.format, "raw", "json"), "format", "how messages are printed: raw (the body) or json")
	f.StringVar(&s.program, "exec", "", "run this `program` for each message")
	f.StringVar(&s.offsetFile, "offset-file", "", "`file` of a broadcasting member's progress")
	f.Var(obs.Int(&s.concurrency, 1, math.MaxInt32), "concurrency", "handlers or programs that run at once")
	f.Var(obs.Int(&s.maxReconsume, 1, 10_000), "max-reconsume-times", "repeats of a failing message before it becomes a dead letter")
	f.Var(obs.Size(&s.totalBytes, 1<<10, math.MaxInt64), "max-cached-bytes", "most that is fetched ahead over all queues, in `bytes`")
	f.Var(obs.Duration(&s.retryDelay, 0, obs.Forever), "retry-delay", "how long a message waits after its program failed; default: longer with each attempt, from 10s on")
	f.Var(obs.Duration(&s.drainLimit, time.Millisecond, obs.Forever), "drain-limit", "how long a queue that must go, or a stop, waits for running handlers")
	f.Var(obs.Duration(&s.commitInterval, time.Millisecond, obs.Forever), "commit-interval", "time between commits of progress, besides those on release")
	f.Var(obs.Duration(&s.stallTimeout, time.Millisecond, obs.Forever), "stall-timeout", "without progress for this time the queues are given up")
	f.Var(obs.Duration(&s.tick, 0, obs.Forever), "rebalance-interval", "time between looks at the assignment without a notice")
	f.Var(obs.Duration(&s.heartbeat, 0, obs.Forever), "heartbeat-interval", "time between heartbeats")
	f.Var(obs.Duration(&s.sessionTimeout, 0, obs.Forever), "session-timeout", "silence after which brokers give the queues to others")
}

// options are those of the consumer that do not depend on what it does.
func (s *settings) options() ([]consumer.Option, error) {
	opts := []consumer.Option{
		consumer.WithConcurrency(s.concurrency), consumer.WithMaxReconsumeTimes(s.maxReconsume), consumer.WithTotalBytes(s.totalBytes),
		consumer.WithDrainLimit(s.drainLimit), consumer.WithCommitInterval(s.commitInterval), consumer.WithStallTimeout(s.stallTimeout),
		consumer.WithTiming(s.tick, s.heartbeat, s.sessionTimeout), consumer.WithOffsetFile(s.offsetFile),
		consumer.WithClientID(s.clientID), consumer.WithInstanceID(s.instanceID), consumer.WithLeaveOnStop(s.leaveOnStop),
	}
	if s.group == "" {
		return nil, obs.Usage("--group is required")
	}
	if len(s.topics) == 0 {
		return nil, obs.Usage("--topic is required")
	}
	for _, t := range s.topics {
		opts = append(opts, consumer.WithTopic(t, s.filter))
	}
	switch s.from {
	case "first":
		opts = append(opts, consumer.WithStart(consumer.First()))
	case "last":
	default:
		t, err := time.Parse(time.RFC3339, s.from)
		if err != nil {
			return nil, checkFrom(s.from)
		}
		opts = append(opts, consumer.WithStart(consumer.At(t)))
	}
	modes := map[string]consumer.Mode{"exclusive": consumer.Exclusive, "immediate": consumer.Immediate, "broadcasting": consumer.Broadcasting}
	opts = append(opts, consumer.WithMode(modes[s.mode]))
	var strategies []allocate.Strategy
	for _, name := range s.strategies {
		st, err := allocate.ByName(name)
		if err != nil {
			return nil, err
		}
		strategies = append(strategies, st)
	}
	if len(strategies) > 0 {
		opts = append(opts, consumer.WithStrategies(strategies...))
	}
	return opts, nil
}

// checkFrom accepts what --from takes.
func checkFrom(text string) error {
	if text == "first" || text == "last" {
		return nil
	}
	if _, err := time.Parse(time.RFC3339, text); err != nil {
		return errors.New("must be first, last or a time as 2006-01-02T15:04:05Z")
	}
	return nil
}

func (s *settings) run(cmd *cobra.Command, o *obs.Config) error {
	opts, err := s.options()
	if err != nil {
		return &obs.UsageError{Err: err}
	}
	if s.program == "" {
		if err := obs.CheckStdout(cmd.OutOrStdout()); err != nil {
			return err
		}
	}
	defer obs.KeepPipes()()
	ctx, stop := context.WithCancelCause(cmd.Context())
	defer stop(nil)
	h, end, err := s.handler(cmd, stop)
	if err != nil {
		return &obs.UsageError{Err: err}
	}
	defer end()
	tel, err := obs.New(ctx, o, &log{cmd.ErrOrStderr(), stop})
	if err != nil {
		return err
	}
	opts = append(opts, consumer.WithLogger(tel.Log), consumer.WithRegisterer(tel.Registry))
	c, err := consumer.New(s.nameServers, s.group, h, opts...)
	if err != nil {
		return errors.Join(&obs.UsageError{Err: err}, tel.Close())
	}
	if err := tel.Listen(ctx); err != nil {
		return err
	}
	tel.Ready(c.Ready)
	tel.Log.Info("consumer starts", zap.String("group", s.group), zap.String("client_id", c.ClientID()), zap.Strings("topics", s.topics),
		zap.String("version", obs.Version()))
	err = tel.Run(ctx, c.Run)
	if cause := context.Cause(ctx); cause != nil && cmd.Context().Err() == nil && !obs.ReaderGone(cause) {
		err = errors.Join(cause, err) // the consumer itself ended as it was told to
	}
	return err
}

// log is where the log goes. When nobody reads that any more the program ends.
type log struct {
	io.Writer
	fail context.CancelCauseFunc
}

// Write implements io.Writer.
func (l *log) Write(b []byte) (int, error) {
	n, err := l.Writer.Write(b)
	if obs.ReaderGone(err) {
		l.fail(err)
	}
	return n, err //nolint:wrapcheck // as Write returns it
}
