// Command producer sends the lines of a file or of stdin as messages.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/tacitmq/tacit/internal/cli"
	"github.com/tacitmq/tacit/internal/obs"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/producer"
)

func main() { os.Exit(obs.Main(command(), os.Args[1:], os.Stdout, os.Stderr)) }

// settings are what the flags set.
type settings struct {
	nameServers []string
	topic       string
	file        string
	keyField    string
	key         string
	tag         string
	generate    int
	size        int
	rate        float64
	delay       time.Duration
	compression string
	timeout     time.Duration
	progress    string
}

func command() *cobra.Command {
	s := &settings{
		nameServers: []string{"127.0.0.1:9876"}, file: "-", size: 100, compression: "none", timeout: producer.DefaultTimeout, progress: "auto",
	}
	o := obs.DefaultConfig("")
	o.Service = "tacit-producer"
	cmd := obs.Root("producer", "Send the lines of a file or of stdin as messages")
	cmd.Long = `Send the lines of a file or of stdin as messages, each line one.

With --key-field the lines are JSON objects and the key of each message is the
value of that field: messages with one key go to one queue, in order. With
--generate messages are made up. A progress bar is shown if stderr is a terminal.

The exit code is 0 if every message is stored.`
	cmd.Args = cobra.NoArgs
	s.bind(cmd.Flags())
	o.Bind(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return s.run(cmd, o) }
	return cmd
}

func (s *settings) bind(f *pflag.FlagSet) {
	f.Var(obs.NameServers(&s.nameServers, false), "nameservers", "name servers: `host:port` each, or file:PATH or a URL that lists them")
	f.StringVar(&s.topic, "topic", "", "`topic` to send to; required")
	f.StringVar(&s.file, "file", s.file, "`file` to read lines from; - is stdin")
	f.StringVar(&s.keyField, "key-field", "", "`field` of each line, a JSON object, that is the message's key")
	f.StringVar(&s.key, "key", "", "`key` of all messages")
	f.StringVar(&s.tag, "tag", "", "`tag` of all messages, by which consumers filter")
	f.Var(obs.Int(&s.generate, -1, math.MaxInt64), "generate", "make up this `number` of messages instead of reading; -1 goes on for ever")
	f.Var(obs.Size(&s.size, 0, message.MaxBodyBytes), "size", "`bytes` of a message made up")
	f.Var(obs.Float(&s.rate, 0, math.Inf(1)), "rate", "`messages` a second; 0 is as fast as possible")
	f.Var(obs.Duration(&s.delay, 0, obs.Forever), "delay", "how long each message is held back")
	f.Var(obs.Choice(&s.compression, "none", "s2", "zstd"), "compression", "of batches: none, s2 or zstd")
	f.Var(obs.Duration(&s.timeout, time.Millisecond, obs.Forever), "timeout", "how long a message may be under way, repeats included")
	f.Var(obs.Choice(&s.progress, "auto", "always", "never"), "progress", "show a progress bar: auto, always or never")
}

func (s *settings) options() ([]producer.Option, error) {
	compressions := map[string]producer.Compression{"none": producer.None, "s2": producer.S2, "zstd": producer.Zstd}
	switch {
	case s.topic == "":
		return nil, obs.Usage("--topic is required")
	case s.key != "" && s.keyField != "":
		return nil, obs.Usage("--key and --key-field: only one may be given")
	}
	opts := []producer.Option{producer.WithCompression(compressions[s.compression]), producer.WithTimeout(s.timeout)}
	if s.key != "" || s.keyField != "" {
		opts = append(opts, producer.WithSelector(producer.ByKey()))
	}
	return opts, nil
}

func (s *settings) run(cmd *cobra.Command, o *obs.Config) error {
	opts, err := s.options()
	if err != nil {
		return err
	}
	if err := message.CheckTopic(s.topic); err != nil {
		return &obs.UsageError{Err: err}
	}
	in, err := s.open(cmd.InOrStdin())
	if err != nil {
		return err
	}
	defer in.close()
	tel, err := obs.New(cmd.Context(), o, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	p, err := producer.New(s.nameServers, append(opts, producer.WithLogger(tel.Log), producer.WithRegisterer(tel.Registry))...)
	if err != nil {
		return errors.Join(&obs.UsageError{Err: err}, tel.Close())
	}
	if err := tel.Listen(cmd.Context()); err != nil {
		return err
	}
	w := &sender{s: s, p: p, began: time.Now(), bar: newBar(s.progress, in.total, cmd.ErrOrStderr())}
	return tel.Run(cmd.Context(), func(ctx context.Context) error {
		err := w.send(ctx, in)
		e := cli.Close(ctx, p, s.timeout+time.Second, func() int { return int(w.failed.Load()) })
		if err = errors.Join(err, e); !errors.Is(e, cli.ErrStopped) {
			err = errors.Join(err, w.failure())
		}
		w.bar.end()
		took := time.Since(w.began)
		if err == nil && w.stored.Load()+w.failed.Load() == 0 && ctx.Err() == nil {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "the input is empty: nothing was sent, and topic %s not looked for\n", s.topic)
		}
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%d messages stored, %d failed, %v, %.0f/s\n", w.stored.Load(), w.failed.Load(),
			took.Round(time.Millisecond), float64(w.stored.Load())/took.Seconds())
		tel.Log.Debug("producer ends", zap.Error(err))
		return err
	})
}

// input is where messages come from.
type input struct {
	next  func(ctx context.Context) (line []byte, err error) // io.EOF at the end
	total int64                                              // bytes of a file or messages made up, 0 if not known
	lines bool                                               // total is in bytes of lines
	close func()
}

func (s *settings) open(stdin io.Reader) (*input, error) {
	if s.generate != 0 {
		return s.made(), nil
	}
	in := &input{lines: true, close: func() {}}
	r := stdin
	if s.file != "-" {
		f, err := os.Open(s.file)
		if err != nil {
			return nil, fmt.Errorf("open file of messages: %w", err)
		}
		if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
			in.total = st.Size()
		}
		r, in.close = f, func() { _ = f.Close() } // it was only read
	}
	in.next = cli.ReadLines(r).Next
	return in, nil
}

// made makes messages up: a number, filled up to the size.
func (s *settings) made() *input {
	n := 0
	in := &input{close: func() {}, total: int64(max(0, s.generate))}
	in.next = func(context.Context) ([]byte, error) {
		if n == s.generate {
			return nil, io.EOF
		}
		n++
		b := append(strconv.AppendInt(nil, int64(n), 10), ' ')
		for len(b) < s.size {
			b = append(b, 'a'+byte(len(b)%26))
		}
		return b, nil
	}
	return in
}

// sender sends messages and counts what becomes of them.
type sender struct {
	s     *settings
	p     *producer.Producer
	bar   *bar
	began time.Time

	stored, failed atomic.Int64
	once           sync.Once
	first          error // of the messages that failed
}

// send sends until there is nothing more or ctx ends.
func (w *sender) send(ctx context.Context, in *input) error {
	for n := 1; ; n++ {
		line, err := in.next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, cli.ErrStopped):
			return cli.StoppedAfter(n - 1)
		case err != nil:
			return err
		}
		m := &message.Message{Topic: w.s.topic, Tag: w.s.tag, Body: line}
		if w.s.keyField != "" {
			key, err := field(line, w.s.keyField)
			if err != nil {
				return fmt.Errorf("line %d: %w", n, err)
			}
			m.Keys = []string{key}
		} else if w.s.key != "" {
			m.Keys = []string{w.s.key}
		}
		if w.s.delay > 0 {
			m.DeliverAt = time.Now().Add(w.s.delay)
		}
		if !w.pace(ctx, n) {
			if w.s.generate < 0 {
				return nil // there is no other end
			}
			return cli.StoppedAfter(n - 1)
		}
		done := 1
		if in.lines {
			done = len(line) + 1
		}
		w.p.SendAsync(ctx, m, func(r producer.Result) { w.told(r, done) })
	}
}

// pace waits until the n-th message may be sent.
func (w *sender) pace(ctx context.Context, n int) bool {
	if w.s.rate > 0 {
		at := w.began.Add(time.Duration(float64(n-1) / w.s.rate * float64(time.Second)))
		if d := time.Until(at); d > 0 {
			t := time.NewTimer(d)
			defer t.Stop()
			select {
			case <-t.C:
			case <-ctx.Done():
			}
		}
	}
	return ctx.Err() == nil
}

func (w *sender) told(r producer.Result, done int) {
	w.bar.add(done)
	if r.Err == nil {
		w.stored.Add(1)
		return
	}
	w.failed.Add(1)
	w.once.Do(func() { w.first = r.Err })
}

func (w *sender) failure() error {
	if n := w.failed.Load(); n > 0 {
		return fmt.Errorf("%d messages are not stored, the first because: %w", n, w.first)
	}
	return nil
}

// field returns a field of a JSON object as text.
func field(line []byte, name string) (string, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(line, &object); err != nil {
		return "", fmt.Errorf("no JSON object: %w", err)
	}
	raw, ok := object[name]
	if !ok {
		return "", fmt.Errorf("no field %q", name)
	}
	var text string
	if err := json.Unmarshal(raw, &text); err == nil {
		if text == "" {
			return "", fmt.Errorf("field %q is empty", name)
		}
		return text, nil
	}
	return string(raw), nil
}
