package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/admin"
	"github.com/tacitmq/tacit/internal/tempdir"
	"github.com/tacitmq/tacit/session"
)

// Names of the demo's topic and group.
const (
	Topic = "orders"
	Group = "packers"
)

// Bounds of the queues of the topic and of the producer's messages a second.
const (
	MinQueues = 8
	MaxQueues = 1024
	MaxRate   = 20_000
)

// startLimit bounds the start of the servers.
const startLimit = 20 * time.Second

// lookEvery is how often the demo looks whether the group has settled.
const lookEvery = 5 * time.Millisecond

// ErrFailed says that the demo ran to its end and something was lost, made up, had
// two owners or did not settle.
var ErrFailed = errors.New("demo failed")

// Config of a demo. Default gives the defaults.
type Config struct {
	// Queues of the topic in the beginning and after it has grown, over both
	// brokers. Defaults: 16, 24.
	Queues, Grown int32
	// Rate of the producer in messages a second. Default: 1 000.
	Rate int
	// Hold is how long the group must stay settled after each event. Default: 500 ms.
	Hold time.Duration
	// Limit is how long an event may take to settle. Default: 30 s.
	Limit time.Duration
	// Keep leaves everything running until the context ends.
	Keep bool
	// JSON prints the result as one line at the end.
	JSON bool
	// Member returns the command of a member process, which must call
	// [RunMember] with this config.
	Member func(ctx context.Context, cfg MemberConfig) *exec.Cmd
	// Color is for terminals.
	Color bool
	// Width of the output in columns. Default: 80.
	Width int
	// Logger of the servers. Default: none.
	Logger *zap.Logger
}

// Default returns the defaults; Member remains to be set.
func Default() Config {
	return Config{Queues: 16, Grown: 24, Rate: 1000, Hold: 500 * time.Millisecond, Limit: 30 * time.Second, Width: 80, Logger: zap.NewNop()}
}

func (c *Config) validate() error {
	var errs []error
	if c.Queues < MinQueues || c.Grown <= c.Queues || c.Grown > MaxQueues {
		errs = append(errs, fmt.Errorf("queues %d, later %d: must be %d or more, growing, at most %d", c.Queues, c.Grown, MinQueues, MaxQueues))
	}
	if c.Rate < 1 || c.Rate > MaxRate {
		errs = append(errs, fmt.Errorf("rate %d: must be 1 to %d messages a second", c.Rate, MaxRate))
	}
	if c.Hold < 0 || c.Limit <= 0 {
		errs = append(errs, fmt.Errorf("hold %v, limit %v: must not be negative", c.Hold, c.Limit))
	}
	if c.Member == nil {
		errs = append(errs, errors.New("command of a member: is missing"))
	}
	return errors.Join(errs...)
}

// Result is what a demo measured.
type Result struct {
	Events     []EventResult `json:"events"`
	Produced   int           `json:"produced"` // messages stored
	Consumed   int           `json:"consumed"` // of them, given to a handler
	Lost       int           `json:"lost"`
	Duplicates int           `json:"duplicates"`
	Settled    bool          `json:"settled"` // after every event
	// Twice counts queues that had two owners at once: never, or the demo fails.
	Twice int `json:"-"`
	// Strange counts hand-outs of messages that nobody sent: none, or the demo fails.
	Strange int `json:"-"`
}

// EventResult is what one event did. Durations are in milliseconds.
type EventResult struct {
	Event        string  `json:"event"`
	SettledMS    float64 `json:"settled_ms"`
	Moved        int     `json:"moved"`
	Minimum      int     `json:"minimum"`
	PausedQueues int     `json:"paused_queues"`
	MaxPauseMS   float64 `json:"max_pause_ms"`
	Lost         int     `json:"lost"`
	Duplicates   int     `json:"duplicates"` // hand-outs of a message after its first

	title   string
	settled bool
	why     string // it has not settled
	twice   int
	before  allocate.Owners
	owners  allocate.Owners
	queues  []allocate.Queue
	members []string
}

// demo is one run.
type demo struct {
	cfg     Config
	show    *show
	cluster *cluster
	admin   *admin.Client
	command context.Context //nolint:containedctx // the life of member processes: longer than the call that starts one

	mu    sync.Mutex // guards tally
	tally *tally     // nil once all is measured

	members map[string]*process // that should be there
	queues  int32
}

// Run runs the demo and prints to out. It returns an error that wraps
// [ErrFailed] if what it saw is not right.
func Run(ctx context.Context, cfg Config, out io.Writer) (res Result, err error) {
	if err := cfg.validate(); err != nil {
		return res, fmt.Errorf("demo: %w", err)
	}
	dir, err := tempdir.New("tacit-demo-")
	if err != nil {
		return res, fmt.Errorf("demo: %w", err)
	}
	defer func() { err = errors.Join(err, dir.Remove()) }()

	// Servers outlive everything that talks to them, also after an interrupt.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	g, life := errgroup.WithContext(life)
	run, stop := context.WithCancel(ctx)
	context.AfterFunc(life, stop) // a server that fails ends the demo
	d := &demo{
		cfg: cfg, show: newShow(out, cfg.Color, cfg.Width), command: life,
		tally: newTally(), members: make(map[string]*process), queues: cfg.Queues,
	}
	res, err = d.run(run, life, g, dir.Path)
	stop()
	err = errors.Join(err, d.stopMembers())
	if d.admin != nil {
		d.admin.Close()
	}
	end()
	if e := g.Wait(); e != nil && !errors.Is(e, context.Canceled) {
		err = errors.Join(e, err)
	}
	if err == nil && ctx.Err() != nil && !cfg.Keep {
		err = fmt.Errorf("demo: %w", context.Cause(ctx))
	}
	return res, err
}

// run plays the events and judges the result.
func (d *demo) run(ctx, life context.Context, g *errgroup.Group, dir string) (res Result, err error) {
	if err := d.setUp(ctx, life, g, dir); err != nil {
		return res, err
	}
	stopProducer := d.startProducer(ctx, 0)
	defer func() {
		if e := stopProducer(); err == nil {
			err = e
		}
	}()
	d.show.begin(d)
	res.Settled = true
	for i, ev := range d.events() {
		r, err := d.play(ctx, i, ev)
		if err != nil {
			return res, fmt.Errorf("%s: %w", ev.name, err)
		}
		d.show.event(i+1, &r)
		res.Events = append(res.Events, r)
		if !r.settled { // what follows would say nothing
			res.Settled = false
			break
		}
	}
	err = stopProducer()
	stopProducer = func() error { return nil }
	if err != nil {
		return res, err
	}
	d.finish(ctx, &res)
	d.show.summary(&res)
	if d.cfg.Keep {
		return res, errors.Join(res.verdict(), d.keep(ctx, &res))
	}
	if d.cfg.JSON {
		d.show.json(&res)
	}
	return res, res.verdict()
}

// verdict is the error of a result that is not right.
func (r *Result) verdict() error {
	var errs []error
	if !r.Settled {
		last := r.Events[len(r.Events)-1]
		errs = append(errs, fmt.Errorf("%w: the group did not settle after %s: %s", ErrFailed, last.Event, last.why))
	}
	if r.Lost > 0 {
		errs = append(errs, fmt.Errorf("%w: %d messages were lost", ErrFailed, r.Lost))
	}
	if r.Twice > 0 {
		errs = append(errs, fmt.Errorf("%w: %d times a queue had two owners", ErrFailed, r.Twice))
	}
	if r.Strange > 0 {
		errs = append(errs, fmt.Errorf("%w: %s handed out that nobody sent", ErrFailed, counted(r.Strange, "message")))
	}
	return errors.Join(errs...)
}

// setUp starts the servers and makes the topic.
func (d *demo) setUp(ctx, life context.Context, g *errgroup.Group, dir string) (err error) {
	if d.cluster, err = startCluster(life, g, dir, []string{"broker-a", "broker-b"}, d.cfg.Logger); err != nil {
		return err
	}
	if d.admin, err = admin.Open(admin.Config{NameServers: []string{d.cluster.nameServer}, Timeout: 2 * time.Second}); err != nil {
		return err //nolint:wrapcheck // cannot be: there is a name server
	}
	limited, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err = until(limited, lookEvery, func() (string, error) {
		c, err := d.admin.Cluster(limited)
		if err != nil || len(c.Brokers) < len(d.cluster.brokers) {
			return "brokers are not registered", nil //nolint:nilerr // it may come
		}
		return "", nil
	})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	if _, err := d.admin.CreateTopic(ctx, Topic, admin.TopicChange{Queues: &d.queues}); err != nil {
		return fmt.Errorf("create topic: %w", err)
	}
	return nil
}

// startProducer starts the producer and returns how to stop it and wait for all
// outcomes.
func (d *demo) startProducer(ctx context.Context, first uint64) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { // stop waits for it
		ended <- produce(ctx, []string{d.cluster.nameServer}, Topic, d.cfg.Rate, first, func(seq uint64, at time.Time) {
			d.observe(func(t *tally) { t.send(seq, at) })
		}, func(seq uint64, err error) {
			d.observe(func(t *tally) { t.outcome(seq, err == nil) })
		})
	}()
	return func() error {
		cancel()
		return <-ended
	}
}

// observe lets f change the tally, while there is one.
func (d *demo) observe(f func(*tally)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tally != nil {
		f(d.tally)
	}
}

// play makes an event happen, waits until the group has settled and stays so, and
// measures.
func (d *demo) play(ctx context.Context, index int, ev event) (EventResult, error) {
	r := EventResult{Event: ev.name, title: ev.title}
	d.observe(func(t *tally) {
		t.event = index
		r.before = t.owners()
	})
	limited, cancel := context.WithTimeout(ctx, d.cfg.Limit)
	defer cancel()
	began, err := ev.do(limited)
	if err != nil {
		if ctx.Err() == nil && limited.Err() != nil { // it did not come about in time
			r.why, r.SettledMS = err.Error(), milliseconds(d.cfg.Limit)
			return r, nil
		}
		return r, err
	}
	settled, why, err := d.settle(limited, d.cfg.Hold)
	if err != nil {
		return r, err
	}
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	r.settled, r.why = why == "", why
	now := time.Now()
	if why == "" {
		d.consumeAll(limited, index, now)
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
	}
	var last time.Time
	var m measure
	d.observe(func(t *tally) {
		last, m = t.lastChange(began), t.measure(began, now)
		t.firstOwners(r.before)
		r.owners, r.Lost, r.Duplicates = t.owners(), t.lost(index, now), t.repeated[index]
	})
	if last.IsZero() || ev.untilSeen {
		last = settled
	}
	if !r.settled {
		last = now
	}
	r.SettledMS = milliseconds(last.Sub(began))
	r.Moved, r.twice, r.PausedQueues, r.MaxPauseMS = m.moved, m.twice, len(m.pauses), milliseconds(m.maxPause)
	r.members, r.queues = d.memberIDs(), d.allQueues()
	r.Minimum = allocate.MinimumMoves(r.before, r.queues, r.members)
	return r, nil
}

// settle waits until the group is as it should be and stays so for a while. It
// returns since when, or why not when the context ends. A member that ends
// though it should not is an error.
func (d *demo) settle(ctx context.Context, hold time.Duration) (since time.Time, why string, err error) {
	want := expectation{topic: Topic, queues: int(d.queues), members: d.memberIDs()}
	for _, n := range d.cluster.brokers {
		want.brokers = append(want.brokers, n.name)
	}
	err = until(ctx, lookEvery, func() (string, error) {
		for id, p := range d.members {
			if p.hasEnded() {
				return "", fmt.Errorf("member %s ended: %w", id, p.failure())
			}
		}
		g, failures, err := d.admin.DescribeGroup(ctx, Group)
		now := time.Now()
		if err != nil {
			why, since = err.Error(), time.Time{}
			return why, nil //nolint:nilerr // it may pass: a broker restarts
		}
		var told allocate.Owners
		d.observe(func(t *tally) { told = t.owners() })
		if why = want.unsettled(g, failures, told); why != "" {
			since = time.Time{}
			return why, nil
		}
		if since.IsZero() {
			since = now
		}
		if now.Sub(since) < hold {
			return "it has not been settled for long enough", nil
		}
		return "", nil
	})
	if late, ok := errors.AsType[*lateError](err); ok {
		return since, late.why, nil
	}
	return since, "", err
}

// consumeAll waits until all messages sent before a moment are stored and were
// given to a handler, or ctx ends: then some are lost.
func (d *demo) consumeAll(ctx context.Context, event int, before time.Time) {
	_ = until(ctx, lookEvery, func() (string, error) { // what is missing in the end is counted
		var missing, unknown int
		d.observe(func(t *tally) { missing, unknown = t.outstanding(event, before) })
		if missing+unknown > 0 {
			return "messages are not consumed", nil
		}
		return "", nil
	})
}

// finish waits for the last messages and counts.
func (d *demo) finish(ctx context.Context, res *Result) {
	limited, cancel := context.WithTimeout(ctx, d.cfg.Limit)
	defer cancel()
	now := time.Now()
	d.consumeAll(limited, len(res.Events), now)
	d.observe(func(t *tally) {
		res.Produced, res.Consumed, res.Duplicates = t.totals()
		res.Lost, res.Strange = res.Produced-res.Consumed, t.strange
		for i := range res.Events {
			res.Events[i].Lost, res.Events[i].Duplicates = t.lost(i, now), t.repeated[i]
			res.Twice += res.Events[i].twice
		}
	})
}

// keep leaves everything running, the producer too, until ctx ends.
func (d *demo) keep(ctx context.Context, res *Result) error {
	d.mu.Lock()
	first := uint64(len(d.tally.messages)) //nolint:gosec // a count
	d.tally = nil
	d.mu.Unlock()
	stop := d.startProducer(ctx, first)
	d.show.kept(d)
	if d.cfg.JSON {
		d.show.json(res)
	}
	<-ctx.Done()
	return stop()
}

// stopMembers lets all members leave, and kills those that do not.
func (d *demo) stopMembers() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, p := range d.members {
		_ = p.tell(commandLeave) // one that has ended is no matter now
	}
	var errs []error
	for _, p := range d.members {
		if err := p.waitEnd(ctx); err != nil {
			errs = append(errs, err, p.cmd.Process.Kill())
			<-p.ended
		}
	}
	return errors.Join(errs...)
}

func (d *demo) memberIDs() []string {
	out := make([]string, 0, len(d.members))
	for id := range d.members {
		out = append(out, id)
	}
	slices.SortFunc(out, allocate.CompareStrings)
	return out
}

// allQueues returns the queues that the topic has now.
func (d *demo) allQueues() []allocate.Queue {
	present := make(map[string]int32)
	for _, n := range d.cluster.brokers {
		present[n.name] = 0
	}
	var out []allocate.Queue
	for broker, n := range admin.Spread(d.queues, present) {
		for id := range n {
			out = append(out, allocate.Queue{Topic: Topic, Broker: broker, ID: id})
		}
	}
	slices.SortFunc(out, allocate.Queue.Compare)
	return out
}

// viewBroker is the broker whose view counts for the demo's group.
func (d *demo) viewBroker() string {
	var names []string
	for _, n := range d.cluster.brokers {
		names = append(names, n.name)
	}
	return session.RankBrokers(Group, Topic, names)[0]
}

// lateError says what a wait was waiting for in vain.
type lateError struct{ why string }

func (e *lateError) Error() string { return "not in time: " + e.why }

// until looks at a condition at once and then at intervals, until it holds,
// which it says with "", or fails. A [lateError] says why it did not hold when
// ctx ended.
func until(ctx context.Context, every time.Duration, holds func() (why string, err error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := ""
	for {
		why, err := holds()
		if err != nil || why == "" {
			return err
		}
		if ctx.Err() != nil {
			if last == "" {
				last = why
			}
			return &lateError{why: last}
		}
		last = why // the next look may fail for want of time alone
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func milliseconds(d time.Duration) float64 {
	return float64(d.Round(100*time.Microsecond)) / float64(time.Millisecond)
}
