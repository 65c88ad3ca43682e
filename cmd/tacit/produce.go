package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/tacitmq/tacit/internal/admin"
	"github.com/tacitmq/tacit/internal/cli"
	"github.com/tacitmq/tacit/internal/obs"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/producer"
)

func (g *global) produceCommand() *cobra.Command {
	var m message.Message
	var keys, properties []string
	var delay time.Duration
	var create int32
	cmd := &cobra.Command{
		Use:     "produce TOPIC [MESSAGE...]",
		GroupID: "messages",
		Short:   "Send messages: the arguments, or the lines of stdin",
		Args:    cobra.MinimumNArgs(1),
	}
	f := cmd.Flags()
	g.log.BindLog(f)
	f.StringSliceVar(&keys, "key", nil, "`keys` of the messages; those with one first key go to one queue, in order")
	f.StringVar(&m.Tag, "tag", "", "`tag` of the messages, by which consumers filter")
	f.StringArrayVar(&properties, "property", nil, "`name=value` of a property; may be repeated")
	f.Var(obs.Duration(&delay, 0, obs.Forever), "delay", "how long the messages are held back")
	f.Var(obs.Int(&create, 0, math.MaxInt32), "create", "create the topic with this `number` of queues if it is not there")
	cmd.ValidArgsFunction = g.complete(topicNames)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		out := g.printer(cmd)
		m.Topic, m.Keys = args[0], keys
		for _, p := range properties {
			name, value, ok := strings.Cut(p, "=")
			if !ok {
				return obs.Usage("--property %q: must be name=value", p)
			}
			if m.Properties == nil {
				m.Properties = make(map[string]string)
			}
			m.Properties[name] = value
		}
		if delay > 0 {
			m.DeliverAt = time.Now().Add(delay)
		}
		if err := m.Check(0); err != nil {
			return &obs.UsageError{Err: err}
		}
		if err := g.ensureTopic(cmd.Context(), m.Topic, create); err != nil {
			return err
		}
		log, err := g.logger(cmd)
		if err != nil {
			return err
		}
		timeout := max(g.timeout, time.Second)
		opts := []producer.Option{producer.WithLogger(log), producer.WithTimeout(timeout)}
		if len(keys) > 0 {
			opts = append(opts, producer.WithSelector(producer.ByKey()))
		}
		p, err := producer.New(g.nameServers, opts...)
		if err != nil {
			return &obs.UsageError{Err: err}
		}
		s := &sender{p: p, out: out, each: len(args) > 1, base: m}
		if len(args) > 1 {
			for _, body := range args[1:] {
				s.send(cmd.Context(), []byte(body))
			}
		} else {
			err = s.lines(cmd.Context(), cmd.InOrStdin())
		}
		return errors.Join(err, s.end(cmd.Context(), timeout+time.Second))
	}
	return cmd
}

// ensureTopic finds out whether a topic is there, which a producer would wait
// for, and makes it if queues are given.
func (g *global) ensureTopic(ctx context.Context, topic string, queues int32) error {
	c, err := g.open(ctx, g.timeout)
	if err != nil {
		return err
	}
	defer c.Close()
	cl, err := c.Cluster(ctx)
	if err != nil {
		return err
	}
	switch {
	case len(cl.Topic(topic).Hosts) > 0:
		return nil
	case queues == 0:
		return fmt.Errorf("%w: %q; create it with --create or with 'tacit topic create'", producer.ErrTopicNotFound, topic)
	}
	_, err = c.CreateTopic(ctx, topic, admin.TopicChange{Queues: &queues})
	return settle(err)
}

// sender sends messages and counts what becomes of them.
type sender struct {
	p    *producer.Producer
	out  *printer
	each bool // tell of each message
	base message.Message

	mu     sync.Mutex
	stored int
	failed int
	first  error
}

func (s *sender) send(ctx context.Context, body []byte) {
	m := s.base
	m.Body = body
	s.p.SendAsync(ctx, &m, s.done)
}

// lines sends each line of r.
func (s *sender) lines(ctx context.Context, r io.Reader) error {
	in := cli.ReadLines(r)
	for n := 0; ; n++ {
		line, err := in.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, cli.ErrStopped):
			return cli.StoppedAfter(n)
		case err != nil:
			return err
		}
		s.send(ctx, line)
	}
}

// sentMessage is what is printed of a stored message as JSON.
type sentMessage struct {
	Topic     string `json:"topic"`
	Broker    string `json:"broker"`
	Queue     int32  `json:"queue"`
	Offset    int64  `json:"offset"`
	Duplicate bool   `json:"duplicate,omitempty"`
}

func (s *sender) done(r producer.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Err != nil {
		s.failed++
		if s.first == nil {
			s.first = r.Err
		}
		return
	}
	s.stored++
	switch {
	case s.out.json:
		line, err := json.Marshal(sentMessage{r.Queue.Topic, r.Queue.Broker, r.Queue.ID, r.Offset, r.Duplicate})
		if err == nil {
			_, _ = fmt.Fprintf(s.out, "%s\n", line)
		}
	case s.each && s.base.DeliverAt.IsZero():
		_, _ = fmt.Fprintf(s.out, "stored in %s/%d at offset %d\n", r.Queue.Broker, r.Queue.ID, r.Offset)
	case s.each:
		_, _ = fmt.Fprintf(s.out, "stored on %s until %s\n", r.Queue.Broker, s.base.DeliverAt.Local().Format(time.DateTime))
	}
}

// end waits for all outcomes, at most for limit.
func (s *sender) end(ctx context.Context, limit time.Duration) error {
	closeErr := cli.Close(ctx, s.p, limit, func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.failed
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.each && !s.out.json {
		_, _ = fmt.Fprintf(s.out, "%s stored\n", plural(s.stored, "message", "messages"))
	}
	if s.failed > 0 && !errors.Is(closeErr, cli.ErrStopped) {
		return fmt.Errorf("%s not stored: %w", plural(s.failed, "message", "messages"), s.first)
	}
	return closeErr
}
