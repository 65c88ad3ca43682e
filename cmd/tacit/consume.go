package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/internal/msgjson"
	"github.com/tacitmq/tacit/internal/obs"
	"github.com/tacitmq/tacit/message"
)

type consumeFlags struct {
	group   string
	filter  string
	from    string
	max     int
	wait    time.Duration
	verbose bool
}

func (g *global) consumeCommand() *cobra.Command {
	f := consumeFlags{filter: "*", from: "last"}
	cmd := &cobra.Command{
		Use:     "consume TOPIC",
		GroupID: "messages",
		Short:   "Print messages as they come, as a reader alone or as a member of a group",
		Long: `Prints the messages of a topic, one a line. Without --group it reads all queues
and leaves no trace. With --group it is a member of that group: it shares the
queues with the others and stores its progress; what was not printed, since
nobody reads its output any more ("| head"), is not consumed.`,
		Args: cobra.ExactArgs(1),
	}
	fl := cmd.Flags()
	g.log.BindLog(fl)
	fl.StringVarP(&f.group, "group", "g", "", "consumer `group` to join")
	fl.StringVar(&f.filter, "filter", f.filter, "`tags` to read, joined by ||")
	fl.Var(obs.Text(&f.from, checkFrom), "from", "`where` to begin: first, last or a time; for a group, where it has no progress yet")
	fl.VarP(obs.Int(&f.max, 0, math.MaxInt32), "max", "n", "end after this `number` of messages")
	fl.Var(obs.Duration(&f.wait, 0, obs.Forever), "wait", "end when no message came for this `time`")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "print queue, offset, tag and key before each message")
	cmd.ValidArgsFunction = g.complete(topicNames)
	g.completeFlag(cmd, "group", groupNames)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return g.consume(cmd, g.printer(cmd), args[0], &f)
	}
	return cmd
}

// start reads --from.
func (f *consumeFlags) start() (consumer.Start, error) {
	switch f.from {
	case "first":
		return consumer.First(), nil
	case "last":
		return consumer.Last(), nil
	}
	t, err := parseTime(f.from)
	if err != nil {
		return consumer.Start{}, err
	}
	return consumer.At(t), nil
}

// checkFrom accepts what --from takes.
func checkFrom(text string) error {
	if _, err := parseTime(text); err != nil && text != "first" && text != "last" {
		return fmt.Errorf("must be first, last or a time as %s", timeForms)
	}
	return nil
}

func (g *global) consume(cmd *cobra.Command, out *printer, topic string, f *consumeFlags) (err error) {
	start, err := f.start()
	if err != nil {
		return err
	}
	if f.group != "" { // messages would be consumed that nobody has seen
		if err := obs.CheckStdout(out.Writer); err != nil {
			return err
		}
		defer obs.KeepPipes()()
	}
	if err := message.CheckTopic(topic); err != nil {
		return &obs.UsageError{Err: err}
	}
	log, err := g.logger(cmd)
	if err != nil {
		return err
	}
	// A topic that is not there would be waited for without a word.
	queues, err := g.queues(cmd.Context(), topic)
	if err != nil {
		return err
	}
	opts := []consumer.Option{consumer.WithLogger(log), consumer.WithStart(start)}
	if f.group != "" {
		// What Poll returned counts as consumed when the next one begins and at the
		// end: it must not return what is not going to be printed.
		opts = append(opts, consumer.WithPollMessages(1))
	}
	group := f.group
	if group == "" {
		group = "tacit-consume" // never committed, so never seen
		opts = append(opts, consumer.WithAutoCommit(false))
	} else {
		opts = append(opts, consumer.WithTopic(topic, f.filter))
	}
	c, err := consumer.NewLitePull(g.nameServers, group, opts...)
	if err != nil {
		return &obs.UsageError{Err: err}
	}
	defer func() {
		if p, ok := errors.AsType[printError](err); ok {
			// Closing would say that the message was consumed. Of one that comes again,
			// the queue it was read from is not known.
			if p.message.ReconsumeTimes > 0 || c.Seek(p.message.Queue, p.message.Offset) != nil {
				return
			}
			if obs.ReaderGone(err) {
				err = nil
			}
		}
		end, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), 10*time.Second)
		defer cancel()
		err = errors.Join(err, c.Close(end))
	}()
	if f.group == "" {
		if err := c.Assign(queues...); err != nil {
			return err
		}
	}
	return f.poll(cmd.Context(), c, out)
}

// queues returns the readable queues of a topic.
func (g *global) queues(ctx context.Context, topic string) ([]allocate.Queue, error) {
	a, err := g.open(ctx, g.timeout)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	cl, err := a.Cluster(ctx)
	if err != nil {
		return nil, err
	}
	r := cl.Topic(topic)
	if len(r.Hosts) == 0 {
		return nil, fmt.Errorf("%w: %q", consumer.ErrTopicNotFound, topic)
	}
	return r.Readable(), nil
}

// poll prints messages until there are enough, none came for long enough, or ctx
// ends.
func (f *consumeFlags) poll(ctx context.Context, c *consumer.LitePullConsumer, out *printer) error {
	n := 0
	for {
		wait, cancel := ctx, context.CancelFunc(func() {})
		if f.wait > 0 {
			wait, cancel = context.WithTimeout(ctx, f.wait)
		}
		msgs, err := c.Poll(wait)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // stopped by the user
		case errors.Is(err, context.DeadlineExceeded) || err == nil && len(msgs) == 0 && wait.Err() != nil:
			if f.max > 0 && n < f.max {
				return fmt.Errorf("no message for %v, after %d of %d", f.wait, n, f.max)
			}
			return nil
		case err != nil:
			return err
		}
		for _, m := range msgs {
			if err := f.print(out, m); err != nil {
				return printError{err, m}
			}
			if n++; n == f.max {
				return nil
			}
		}
	}
}

// printError is that of a message that was not printed.
type printError struct {
	error
	message *message.Message
}

func (e printError) Unwrap() error { return e.error }

func (f *consumeFlags) print(out *printer, m *message.Message) error {
	if out.json {
		line, err := msgjson.Append(nil, m)
		if err != nil {
			return err
		}
		_, err = out.Write(line)
		return err
	}
	if f.verbose {
		if _, err := fmt.Fprintf(out, "%s/%d@%d %s %s ", m.Queue.Broker, m.Queue.ID, m.Offset, dash(m.Tag), dash(m.Key())); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "%s\n", m.Body)
	return err
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
