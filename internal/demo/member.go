package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/message"
)

const (
	// commitEvery is how often members of the demo store their progress: what a
	// kill makes others repeat.
	commitEvery = 100 * time.Millisecond
	// suspendLimit bounds how long a member tries to store its progress before it
	// ends without goodbye.
	suspendLimit = 5 * time.Second
)

// MemberConfig of a member process.
type MemberConfig struct {
	NameServers []string
	Group       string
	Topic       string
	ID          string // client id
	Static      bool   // keeps its share while it restarts
	Logger      *zap.Logger
}

// RunMember is the whole of a member process: one consumer that does what stdin
// says and reports on stdout what it does. It returns when it has left the
// group, or when it shall end without leaving: then its consumer still runs, and
// its process must end at once.
func RunMember(ctx context.Context, cfg MemberConfig, stdin io.Reader, stdout io.Writer) error {
	out := &reporter{w: stdout}
	c, err := newMember(cfg, out)
	if err != nil {
		return err
	}
	commands := make(chan string)
	go func() { // ends with the process: a read of stdin cannot be broken off
		defer close(commands)
		for in := bufio.NewScanner(stdin); in.Scan(); {
			select {
			case commands <- in.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	if err := out.say(line{word: wordReady, at: time.Now()}); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case cmd := <-commands:
		if cmd != commandJoin {
			return nil
		}
	}

	// ctx ends too when the process is about to, which after a suspension must not
	// make the consumer say goodbye.
	run, leave := context.WithCancel(context.WithoutCancel(ctx))
	stop := ctx.Done()
	suspended := false
	defer func() {
		if !suspended {
			leave()
		}
	}()
	if err := out.say(line{word: wordJoining, at: time.Now()}); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(run) }() // waited for, or ends with the process
	for {
		select {
		case err := <-ended:
			text := ""
			if err != nil {
				text = err.Error()
			}
			return errors.Join(err, out.say(line{word: wordEnded, at: time.Now(), text: text}))
		case <-stop:
			stop = nil
			leave()
		case cmd := <-commands:
			if cmd == commandSuspend {
				suspended = true
				return suspend(ctx, c, cfg.Topic, out)
			}
			commands = nil // a closed channel would be read again and again
			leave()
		}
	}
}

// newMember makes the consumer.
func newMember(cfg MemberConfig, out *reporter) (*consumer.PushConsumer, error) {
	tell := func(word string) func(context.Context, []allocate.Queue) {
		return func(_ context.Context, queues []allocate.Queue) {
			if queues = ofTopic(queues, cfg.Topic); len(queues) > 0 {
				_ = out.say(line{word: word, at: time.Now(), queues: queues}) // without a reader this process ends anyway
			}
		}
	}
	opts := []consumer.Option{
		consumer.WithTopic(cfg.Topic, "*"),
		consumer.WithClientID(cfg.ID),
		consumer.WithStart(consumer.First()),
		consumer.WithCommitInterval(commitEvery),
		consumer.WithLogger(cfg.Logger),
		consumer.WithListener(consumer.ListenerFuncs{Assigned: tell(wordOwn), Revoked: tell(wordRevoked), Lost: tell(wordLost)}),
	}
	if cfg.Static {
		opts = append(opts, consumer.WithInstanceID(cfg.ID))
	}
	c, err := consumer.New(cfg.NameServers, cfg.Group, consumer.Each(func(_ context.Context, m *message.Message) error {
		now := time.Now()
		seq, err := strconv.ParseUint(string(m.Body), 10, 64)
		if err != nil {
			seq = neverSent
		}
		return out.say(line{word: wordMessage, at: now, queues: []allocate.Queue{m.Queue}, seq: seq})
	}), opts...)
	if err != nil {
		return nil, fmt.Errorf("member %s: %w", cfg.ID, err)
	}
	return c, nil
}

// suspend stops handing out, waits until all that was handed out is finished and
// stored, and says so. The consumer must not run on for long after it.
func suspend(ctx context.Context, c *consumer.PushConsumer, topic string, out *reporter) error {
	c.Pause()
	stopped := time.Now()
	ctx, cancel := context.WithTimeout(ctx, suspendLimit)
	defer cancel()
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for {
		s := c.Stats()
		stored := s.Running == 0
		var queues []allocate.Queue
		for _, q := range s.Queues {
			queues = append(queues, q.Queue)
			stored = stored && (q.Unfinished < 0 || q.Committed >= q.Unfinished)
		}
		if stored || ctx.Err() != nil {
			err := out.say(line{word: wordRevoked, at: stopped, queues: ofTopic(queues, topic)})
			out.stop()
			return err
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
		}
	}
}

// ofTopic keeps the queues of a topic: not those of the retry topic.
func ofTopic(queues []allocate.Queue, topic string) []allocate.Queue {
	var out []allocate.Queue
	for _, q := range queues {
		if q.Topic == topic {
			out = append(out, q)
		}
	}
	return out
}

// reporter writes lines, each in one call.
type reporter struct {
	mu     sync.Mutex
	w      io.Writer
	silent bool
}

func (r *reporter) say(l line) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.silent {
		return nil
	}
	if _, err := io.WriteString(r.w, l.String()+"\n"); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// stop drops all later lines.
func (r *reporter) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silent = true
}
