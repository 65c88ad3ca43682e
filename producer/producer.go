package producer

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
)

// Errors of this package, to be tested with errors.Is.
var (
	// ErrClosed: the producer is closed.
	ErrClosed = errors.New("producer is closed")
	// ErrTimeout: the message's time was up. Whether it is stored is not known,
	// unless the error says that it was never sent.
	ErrTimeout = errors.New("not stored in time")
)

// Errors of brokers and name servers, to be tested with errors.Is.
var (
	ErrTopicNotFound   = rpcerr.ErrTopicNotFound
	ErrNotWritable     = rpcerr.ErrNotWritable
	ErrMessageTooLarge = rpcerr.ErrMessageTooLarge
	ErrDiskFull        = rpcerr.ErrDiskFull
	ErrUnreachable     = rpcerr.ErrUnreachable
)

// Result says what became of one message.
type Result struct {
	// Queue and Offset say where the message is stored, StoreTime since when.
	// The offset of a message with a future DeliverAt is not known, and 0.
	Queue     allocate.Queue
	Offset    int64
	StoreTime time.Time
	// Duplicate: the broker had it already from an attempt whose answer was lost.
	Duplicate bool
	Err       error
}

// Producer sends messages. It is safe for concurrent use. Close it at the end.
type Producer struct {
	cfg     config
	id      uint64 // producer id
	cluster client.Cluster
	watch   client.Watch
	met     *metrics
	begun   time.Time
	base    context.Context //nolint:containedctx // the producer's life, from New to Close
	cancel  context.CancelFunc

	encoders sync.Pool // of *batch.Encoder
	buffers  sync.Pool // of *[]byte

	mu       sync.Mutex
	topics   map[string]*topic
	failed   map[string]time.Time // brokers that failed, and when to try them again first
	silent   map[string]time.Time // brokers that do not answer, and when one batch tries them again
	closed   bool
	used     int64     // bytes of the buffer
	line     []*waiter // for room in it
	pending  int
	drained  chan struct{} // closed when closed and nothing is pending
	flushes  []*flushing
	turn     uint64 // flushes begun
	flying   map[*sending]struct{}
	outcomes []outcome // to be worked off by run
	failures []failure // likewise
	spare    [][]entry // lists to be used again

	routed atomic.Bool
	wake   chan struct{} // capacity 1
	ended  chan struct{} // closed when run has ended
}

// outcome is the answer to a batch.
type outcome struct {
	b   *sending
	res client.ProduceResult
	err error
}

// failure is the end of messages that were in no batch.
type failure struct {
	entries []entry
	err     error
	queue   allocate.Queue
}

// New returns a producer. It does not wait for any server.
func New(nameServers []string, opts ...Option) (*Producer, error) {
	cfg := defaults()
	for _, o := range opts {
		o(&cfg)
	}
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	met, err := newMetrics(cfg.reg)
	if err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	if cfg.client == nil {
		if cfg.client, err = client.Open(client.Config{NameServers: nameServers, Dialer: cfg.dialer, Logger: cfg.log}); err != nil {
			return nil, fmt.Errorf("producer: %w", err)
		}
		cfg.ownClient = true
	}
	var id [8]byte
	rand.Read(id[:])
	p := &Producer{
		cfg: cfg, cluster: cfg.client, met: met, begun: time.Now(),
		id:     binary.LittleEndian.Uint64(id[:]) | 1, // 0 means that repeats are not to be detected
		topics: make(map[string]*topic), flying: make(map[*sending]struct{}), failed: make(map[string]time.Time), silent: make(map[string]time.Time),
		drained: make(chan struct{}), wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	p.encoders.New = func() any { return &batch.Encoder{Compression: cfg.compression} }
	p.base, p.cancel = context.WithCancel(context.Background())
	p.watch = p.cluster.Watch(func() {
		p.routed.Store(true)
		p.kick()
	})
	go p.run() // Close waits for it
	return p, nil
}

// Send sends messages and waits until all are stored or have failed, or ctx ends;
// messages under way then may still be stored. The results are in the order of
// the messages; the error is the first of them. A message must not change before
// Send returns, nor, if ctx ended, while the producer is open.
func (p *Producer) Send(ctx context.Context, msgs ...*message.Message) ([]Result, error) {
	c := &call{results: make([]Result, len(msgs)), done: make(chan struct{})}
	c.left.Store(int64(len(msgs)))
	if len(msgs) == 0 {
		return nil, nil
	}
	ready := make([]entry, 0, len(msgs))
	for i, m := range msgs {
		e := entry{m: m, call: c, index: int32(i)} //nolint:gosec // nobody sends so many at once
		if err := p.check(&e); err != nil {
			e.end(Result{Err: err})
			continue
		}
		ready = append(ready, e)
	}
	p.put(ctx, ready)
	select {
	case <-c.done:
	case <-ctx.Done():
		if err := p.unrouted(ready); err != nil {
			return nil, fmt.Errorf("send: %w: %w", ctx.Err(), err)
		}
		return nil, fmt.Errorf("send: %w", ctx.Err())
	}
	for i := range c.results {
		if err := c.results[i].Err; err != nil {
			return c.results, err
		}
	}
	return c.results, nil
}

// SendAsync sends a message and calls done exactly once with what became of it;
// perhaps before it returns, if the message cannot be sent at all. It waits, up
// to the end of ctx, only for room in the producer's buffer. done must not block:
// the answers to other messages wait for it. So it must not call Send, Flush or
// Close, nor SendAsync where the buffer may be full. The message must not change
// before.
func (p *Producer) SendAsync(ctx context.Context, m *message.Message, done func(Result)) {
	one := [1]entry{{m: m, done: done}}
	if err := p.check(&one[0]); err != nil {
		one[0].end(Result{Err: err})
		return
	}
	p.put(ctx, one[:])
}

// entry is one message on its way.
type entry struct {
	m     *message.Message
	done  func(Result) // or
	call  *call
	added time.Duration // since the producer was made
	due   int64         // Unix milliseconds; 0: at once
	size  int32
	index int32           // in call
	turn  uint64          // how many flushes had begun before
	to    *allocate.Queue // that the selector chose
}

// call is a Send that waits for its messages.
type call struct {
	results []Result
	left    atomic.Int64
	done    chan struct{}
}

// end tells the sender what became of the message.
func (e *entry) end(r Result) {
	if e.done != nil {
		e.done(r)
		return
	}
	e.call.results[e.index] = r
	if e.call.left.Add(-1) == 0 {
		close(e.call.done)
	}
}

// check looks at a message before anything is done with it.
func (p *Producer) check(e *entry) error {
	if e.m == nil {
		return errors.New("send: message is nil")
	}
	if err := e.m.Check(p.cfg.maxBody); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	e.size = int32(batch.MessageSize(e.m)) //nolint:gosec // checked to be far below
	e.due = dueOf(e.m)
	return nil
}

// put puts messages on their way, in order, each once there is room for it.
func (p *Producer) put(ctx context.Context, entries []entry) {
	var few [8]*lane
	lanes := few[:0]
	var late []int // came after Close
	entries = p.chosen(entries)
	now := time.Now()
	p.mu.Lock()
	for i := range entries {
		e := &entries[i]
		if !p.reserve(int64(e.size)) {
			ready := p.flush(lanes) // they make room
			lanes = lanes[:0]
			p.mu.Unlock()
			p.launch(ready)
			err := p.waitForRoom(ctx, int64(e.size))
			if err != nil {
				e.end(Result{Err: err})
			}
			now = time.Now()
			p.mu.Lock()
			if err != nil {
				continue
			}
		}
		if p.closed {
			p.free(int64(e.size))
			late = append(late, i)
			continue
		}
		e.added = now.Sub(p.begun)
		if e.m.BornTime.IsZero() {
			e.m.BornTime = now
		}
		p.pending++
		e.turn = p.turn
		if l := p.place(p.topic(e.m.Topic), e); l != nil && !l.touched {
			l.touched = true
			lanes = append(lanes, l)
		}
	}
	ready := p.flush(lanes)
	p.mu.Unlock()
	p.launch(ready)
	for _, i := range late {
		entries[i].end(Result{Err: ErrClosed})
	}
}

// flush takes the next batches of lanes that got messages.
func (p *Producer) flush(lanes []*lane) (ready []*sending) {
	for _, l := range lanes {
		l.touched = false
		ready = append(ready, p.next(l)...)
	}
	return ready
}

// waiter is a message that waits for room in the buffer.
type waiter struct {
	size  int64
	ready chan struct{} // closed when the room is its own
}

// reserve takes room for a message if there is some and nobody waits for it.
func (p *Producer) reserve(size int64) bool {
	if len(p.line) > 0 || p.used+size > int64(p.cfg.bufferBytes) {
		return false
	}
	p.used += size
	return true
}

// free gives room back, to who waits for it.
func (p *Producer) free(size int64) {
	p.used -= size
	for len(p.line) > 0 && p.used+p.line[0].size <= int64(p.cfg.bufferBytes) {
		p.used += p.line[0].size
		close(p.line[0].ready)
		p.line = p.line[1:]
	}
}

// waitForRoom waits in line until there is room and takes it. Called without the
// lock.
func (p *Producer) waitForRoom(ctx context.Context, size int64) error {
	p.mu.Lock()
	if p.reserve(size) {
		p.mu.Unlock()
		return nil
	}
	w := &waiter{size: size, ready: make(chan struct{})}
	p.line = append(p.line, w)
	p.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.line, w); i >= 0 {
		p.line = slices.Delete(p.line, i, i+1)
		size = 0
	}
	p.free(size) // also if nothing is: a smaller one behind may fit
	return fmt.Errorf("send: wait for room in the buffer: %w", ctx.Err())
}

// unrouted says why messages wait for the route of their topic, if any does.
func (p *Producer) unrouted(entries []entry) error {
	p.mu.Lock()
	known := true
	for i := range entries {
		if t := p.topics[entries[i].m.Topic]; t != nil {
			known = known && t.known
		}
	}
	p.mu.Unlock()
	if known {
		return nil
	}
	return p.noRoute()
}

// noRoute is what keeps name servers from telling of a topic.
func (p *Producer) noRoute() error {
	if err := p.watch.Ready(); err != nil {
		return err
	}
	return rpcerr.ErrUnreachable
}

// Flush waits until everything sent before is stored or has failed, or ctx ends.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	n := p.pending
	f := &flushing{turn: p.turn, left: n, over: make(chan struct{})}
	if n > 0 {
		p.turn++
		p.flushes = append(p.flushes, f)
	} else {
		close(f.over)
	}
	p.mu.Unlock()
	select {
	case <-f.over:
		return nil
	case <-ctx.Done():
		p.mu.Lock()
		p.flushes = slices.DeleteFunc(p.flushes, func(o *flushing) bool { return o == f })
		p.mu.Unlock()
		return fmt.Errorf("flush: %d messages were under way: %w", n, ctx.Err())
	}
}

// flushing is a Flush that waits for the messages of its turn and those before.
type flushing struct {
	turn uint64
	left int
	over chan struct{}
}

// Close sends nothing new, waits until everything sent before is stored or has
// failed, or ctx ends; what is then still under way fails with [ErrClosed]. A ctx that
// has ended already sets no limit: each message has its own, see [WithTimeout]. Closing
// again does nothing.
func (p *Producer) Close(ctx context.Context) error {
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	if first && p.pending == 0 {
		close(p.drained)
	}
	p.mu.Unlock()
	var err error
	select {
	case <-p.drained:
	case <-ctx.Done():
		err = fmt.Errorf("close producer: %w", ctx.Err())
	}
	if !first {
		return err
	}
	p.cancel()
	p.kick()
	<-p.ended
	p.watch.Close()
	if p.cfg.ownClient {
		p.cluster.Close()
	}
	return err
}

func (p *Producer) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
