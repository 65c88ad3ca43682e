package store

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tacitmq/tacit/internal/batch"
)

// pending is a batch that waits to be written.
type pending struct {
	batch  []byte
	header batch.Header
	origin uint64
	queue  *queue
	done   func(Appended, error)
	pooled bool // goes back to Store.nodes when it is answered

	state atomic.Uint32
	below *pending // in the intake's stack

	// The committer's.
	next   *pending // of the same queue in the group
	result Appended
	err    error
}

// States of a pending batch.
const (
	waiting uint32 = iota
	taken          // by the committer: it will be answered
	withdrawn
)

// intake is where appends wait for the committer. It is a stack that appenders
// push onto without a lock: a lock that hundreds of them want is handed from one
// to the next at the pace of the scheduler.
type intake struct {
	top    atomic.Pointer[pending]
	bytes  atomic.Int64 // of batches not yet written
	limit  int64
	users  atomic.Int64 // appenders on their way in
	closed atomic.Bool
	idle   atomic.Bool // the committer waits for wake
	wake   chan struct{}

	mu      sync.Mutex
	room    sync.Cond    // there is room again
	blocked atomic.Int64 // appenders that wait for room
	ops     []func()
	hasOps  atomic.Bool
}

// AppendAsync stores a batch and calls done once, from a goroutine of the store
// or, if the batch is refused at the door or nothing else is going on, before it
// returns. Batches that one goroutine hands over for one queue are stored in that
// order. done must not block, and must not call methods of the store that wait for
// an append.
//
// It blocks while more than Options.PendingBytes wait, at most until ctx ends, which
// is then the error. A batch that found room is stored whatever becomes of ctx.
func (s *Store) AppendAsync(ctx context.Context, e Entry, done func(Appended, error)) {
	p, _ := s.nodes.Get().(*pending)
	if p == nil {
		p = &pending{}
	}
	p.pooled, p.done = true, done
	if err := s.enqueue(ctx, p, e, false); err != nil {
		*p = pending{}
		s.nodes.Put(p)
		done(Appended{}, err)
	}
}

// enqueue checks the batch and hands it to the committer. waits says that the caller
// waits for it.
func (s *Store) enqueue(ctx context.Context, p *pending, e Entry, waits bool) (err error) {
	p.batch, p.origin = e.Batch, e.Origin
	if p.header, err = batch.Parse(e.Batch); err != nil {
		return fmt.Errorf("%w: %w", ErrBadBatch, err)
	}
	h := &p.header
	if h.Length != len(e.Batch) {
		return fmt.Errorf("%w: %d bytes after the batch", ErrBadBatch, len(e.Batch)-h.Length)
	}
	most := s.o.MaxBatchBytes
	if e.Origin != 0 { // accepted when it was scheduled, maybe under another limit
		most = int(min(batch.MaxSize, s.o.SegmentBytes))
	}
	if h.Length > most {
		return fmt.Errorf("%w: batch of %d bytes, allowed %d", ErrBadBatch, h.Length, most)
	}
	if err := batch.VerifyBody(e.Batch, h); err != nil {
		return fmt.Errorf("%w: %w", ErrBadBatch, err)
	}
	if p.queue = s.lookup(h.Topic, h.Queue); p.queue == nil {
		return fmt.Errorf("%w: %s/%d", ErrNoQueue, h.Topic, h.Queue)
	}
	turn, err := s.in.push(ctx, p)
	if turn {
		s.commitHere(waits)
	}
	return err
}

// push leaves p for the committer, once there is room. If the committer sleeps it is
// now the caller's turn to commit, or to wake it.
func (in *intake) push(ctx context.Context, p *pending) (turn bool, err error) {
	if in.bytes.Load() > in.limit {
		if err := in.waitForRoom(ctx); err != nil {
			return false, err
		}
	}
	in.users.Add(1)
	defer in.users.Add(-1)
	if in.closed.Load() {
		return false, ErrClosed
	}
	in.bytes.Add(int64(len(p.batch)))
	for {
		p.below = in.top.Load()
		if in.top.CompareAndSwap(p.below, p) {
			break
		}
	}
	return in.begin(), nil
}

func (in *intake) waitForRoom(ctx context.Context) error {
	in.blocked.Add(1)
	defer in.blocked.Add(-1)
	defer context.AfterFunc(ctx, func() {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.room.Broadcast()
	})()
	in.mu.Lock()
	defer in.mu.Unlock()
	for in.bytes.Load() > in.limit && !in.closed.Load() {
		if ctx.Err() != nil {
			return fmt.Errorf("wait for room: %w", context.Cause(ctx))
		}
		in.room.Wait()
	}
	return nil
}

// release says that so many bytes wait no longer.
func (in *intake) release(bytes int) {
	in.bytes.Add(-int64(bytes))
	if in.blocked.Load() > 0 {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.room.Broadcast()
	}
}

// begin takes the turn of a committer that sleeps, which ends with a send to wake, or
// by setting idle again.
func (in *intake) begin() bool { return in.idle.Load() && in.idle.CompareAndSwap(true, false) }

func (in *intake) wakeUp() {
	if in.begin() {
		in.wake <- struct{}{} // capacity 1, and one send for each time idle was set
	}
}

// pending tells whether there is something to do.
func (in *intake) pending() bool { return in.top.Load() != nil || in.hasOps.Load() }

// wait returns when there is something to do. It reports false when the intake is
// closed and nothing is left.
func (in *intake) wait() bool {
	for {
		if in.pending() {
			return true
		}
		if in.closed.Load() {
			for in.users.Load() > 0 {
				runtime.Gosched() // they are between two instructions
			}
			if !in.pending() {
				return false
			}
			continue
		}
		in.idle.Store(true)
		if (in.pending() || in.closed.Load()) && in.begin() {
			continue
		}
		<-in.wake // if it is somebody else's turn now, it sends
	}
}

// take returns what waits, in order, appended to ps.
func (in *intake) take(ps []*pending) []*pending {
	for p := in.top.Swap(nil); p != nil; {
		below := p.below
		p.below = nil
		if p.state.CompareAndSwap(waiting, taken) {
			ps = append(ps, p)
		}
		p = below
	}
	slices.Reverse(ps)
	return ps
}

// withdraw takes a batch back that the committer does not have yet.
func (in *intake) withdraw(p *pending) bool {
	if !p.state.CompareAndSwap(waiting, withdrawn) {
		return false
	}
	in.release(len(p.batch))
	return true
}

// gather lets those that were just answered hand over their next batches before
// the next group is closed: one sync for all of them, not one for the first.
func (in *intake) gather(last, bytes int) {
	const rounds = 8
	for before, i := int64(0), 0; last > 1 && i < rounds; i++ {
		runtime.Gosched()
		now := in.bytes.Load()
		if now == before || now >= int64(bytes) {
			return
		}
		before = now
	}
}

func (in *intake) takeOps() []func() {
	if !in.hasOps.Load() {
		return nil
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	ops := in.ops
	in.ops = nil
	in.hasOps.Store(false)
	return ops
}

func (in *intake) close() {
	in.mu.Lock()
	in.closed.Store(true)
	in.room.Broadcast()
	in.mu.Unlock()
	in.wakeUp()
}

// onCommitter runs f between two groups and waits for it.
func (s *Store) onCommitter(f func()) error {
	done := make(chan struct{})
	in := &s.in
	in.users.Add(1)
	if in.closed.Load() {
		in.users.Add(-1)
		return ErrClosed
	}
	in.mu.Lock()
	in.ops = append(in.ops, func() { f(); close(done) })
	in.hasOps.Store(true)
	in.mu.Unlock()
	in.wakeUp()
	in.users.Add(-1)
	<-done
	return nil
}

// call is one Append that waits.
type call struct {
	pending
	ch  chan struct{}
	res Appended
	err error
}

// Append stores a batch and waits until it is as durable as the options say. A
// batch that has not begun to be written is withdrawn when ctx ends; else Append
// waits for the outcome.
func (s *Store) Append(ctx context.Context, e Entry) (Appended, error) {
	c, _ := s.calls.Get().(*call)
	if c == nil {
		c = &call{ch: make(chan struct{}, 1)}
		c.done = func(a Appended, err error) {
			c.res, c.err = a, err
			c.ch <- struct{}{}
		}
	}
	done := c.done
	c.pending = pending{done: done}
	if err := s.enqueue(ctx, &c.pending, e, true); err != nil {
		s.calls.Put(c)
		return Appended{}, err
	}
	select {
	case <-c.ch:
	case <-ctx.Done():
		if s.in.withdraw(&c.pending) {
			// The committer still has to pass over c: it is not used again.
			return Appended{}, fmt.Errorf("append: %w", context.Cause(ctx))
		}
		<-c.ch
	}
	res, err := c.res, c.err
	s.calls.Put(c)
	return res, err
}
