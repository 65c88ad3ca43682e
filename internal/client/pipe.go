package client

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/tacitmq/tacit/internal/rpcerr"
)

// errClosed is what callers get from a client that was closed.
var errClosed = errors.New("client is closed")

// pending is a call that waits for its answer on a pipe. Exactly one of fail and
// the answer's own way ends it.
type pending interface {
	// numbered tells the call its number, under the pipe's lock.
	numbered(id uint64)
	// send writes the request.
	send(s grpc.ClientStream, id uint64) error
	// size is about how many bytes the request takes.
	size() int
	// timeout is how long the answer may take.
	timeout() time.Duration
	fail(err error)
}

// unread bytes of a stream at most, as far as is known, are on their way to the
// broker when a caller writes by itself. gRPC lets a stream have 64 KiB that are not
// on the connection yet and makes who writes more wait; so a caller, which may be
// the goroutine that reads for everybody, never waits.
const unread = 32 << 10

// noticeSize is about how many bytes a notice takes.
const noticeSize = 16

// entry is a pending call with its number and times.
type entry struct {
	id       uint64
	end      int64   // of all that was put on its way up to it, in bytes
	call     pending // nil: a notice without answer, such as a cancel
	notice   func(s grpc.ClientStream, id uint64) error
	deadline time.Time
	written  bool   // or about to be
	heard    uint64 // pipe.heard when it was written or last answered
	// handing is set while an answer is handed over after which the call may go on,
	// until that is decided; failed is why it cannot, if it failed meanwhile.
	handing bool
	failed  error
}

// pipe runs the pipelined calls of one kind to one broker over one stream, which
// it opens when there is something to send and opens again after a failure. A
// failure fails all calls that wait; whoever made them decides what to do. An
// answer to a call that is no longer waited for is dropped.
type pipe struct {
	// open opens the stream.
	open func(ctx context.Context) (grpc.ClientStream, error)
	// receive reads one or more answers and tells end whose each is. finish is
	// called before end returns, with the call that the answer is for, or with nil
	// to free the answer of a call given up.
	receive func(s grpc.ClientStream, p *pipe) error

	mu      sync.Mutex
	nextID  uint64
	live    grpc.ClientStream // that callers may write to, if any
	writing bool              // somebody writes to it, or is about to
	queued  int64             // bytes put on their way
	passed  int64             // of these, what is known to have reached the broker
	out     []*entry          // to be written, in order
	waiting map[uint64]*entry // all that wait for an answer, written or not
	heard   uint64            // answers that came
	cancel  context.CancelFunc
	sweeper *time.Timer // nil while nothing waits
	running bool
	closed  bool

	wake chan struct{} // capacity 1
	wg   sync.WaitGroup
}

func newPipe(open func(context.Context) (grpc.ClientStream, error),
	receive func(grpc.ClientStream, *pipe) error,
) *pipe {
	return &pipe{
		open: open, receive: receive,
		waiting: make(map[uint64]*entry), wake: make(chan struct{}, 1),
	}
}

// start puts a call on its way. While little is under way the caller writes it, which
// spares the change to another goroutine.
func (p *pipe) start(call pending) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		call.fail(errClosed)
		return
	}
	p.nextID++
	call.numbered(p.nextID)
	p.queued += int64(call.size())
	e := &entry{id: p.nextID, end: p.queued, call: call, deadline: time.Now().Add(call.timeout())}
	p.waiting[e.id] = e
	if p.sweeper == nil {
		p.sweeper = time.AfterFunc(sweepEvery, p.sweep)
	}
	if !p.running {
		p.running = true
		p.wg.Go(p.run) // close waits for it
	}
	if p.live == nil || p.writing || len(p.out) > 0 || p.queued-p.passed > unread {
		p.out = append(p.out, e)
		p.mu.Unlock()
		p.kick()
		return
	}
	s := p.live
	p.writing = true
	p.sent(e)
	p.mu.Unlock()
	_ = call.send(s, e.id) // the reader gets the stream's real error
	// gRPC writes to the connection on a goroutine that is ready now, but would wait
	// for this one to make its next calls.
	runtime.Gosched()
	p.mu.Lock()
	p.writing = false
	more := len(p.out) > 0
	p.mu.Unlock()
	if more {
		p.kick()
	}
}

// sent takes note that a call is written now. p.mu is held.
func (p *pipe) sent(e *entry) { e.written, e.heard = true, p.heard }

func (p *pipe) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// withdraw takes the call with the number id, read under the pipe's lock, back
// and, if it was written, tells the other side with notice. It reports false if
// the call has been or is being ended, or the number is one of another pipe.
func (p *pipe) withdraw(id *atomic.Uint64, same func(pending) bool, notice func(s grpc.ClientStream, id uint64) error) bool {
	p.mu.Lock()
	e := p.waiting[id.Load()]
	if e == nil || e.handing || !same(e.call) {
		p.mu.Unlock()
		return false
	}
	p.drop(e, notice)
	p.mu.Unlock()
	p.kick()
	return true
}

// drop forgets a call and tells the other side if that has it. p.mu is held; the
// caller kicks the writer afterwards.
func (p *pipe) drop(e *entry, notice func(s grpc.ClientStream, id uint64) error) {
	delete(p.waiting, e.id)
	if e.written {
		p.note(e.id, notice)
	}
}

func (p *pipe) note(id uint64, notice func(s grpc.ClientStream, id uint64) error) {
	p.queued += noticeSize
	p.out = append(p.out, &entry{id: id, end: p.queued, notice: notice})
}

// decide says whether a call goes on that is being handed an answer after which it
// may. It reports false if it has failed; then fail comes next.
func (p *pipe) decide(id *atomic.Uint64, same func(pending) bool, on bool, notice func(s grpc.ClientStream, id uint64) error) bool {
	p.mu.Lock()
	e := p.waiting[id.Load()]
	if e == nil || !e.handing || !same(e.call) {
		p.mu.Unlock()
		return false
	}
	e.handing = false
	if !on {
		p.drop(e, notice)
	}
	p.mu.Unlock()
	p.kick()
	return true
}

// failAll ends every call that waits.
func (p *pipe) failAll(err error) {
	p.mu.Lock()
	all := p.waiting
	p.waiting = make(map[uint64]*entry)
	p.out = nil
	for id, e := range all {
		if e.handing { // whoever hands the answer over fails it afterwards
			e.failed = err
			delete(all, id)
		}
	}
	p.mu.Unlock()
	for _, e := range all {
		e.call.fail(err)
	}
}

// sweep ends calls that have waited too long. A stream on which nothing at all
// was heard for a whole timeout is given up.
func (p *pipe) sweep() {
	now := time.Now()
	var late []*entry
	p.mu.Lock()
	for id, e := range p.waiting {
		if now.Before(e.deadline) || e.handing {
			continue
		}
		late = append(late, e)
		delete(p.waiting, id)
		if e.written && e.heard == p.heard && p.cancel != nil {
			p.cancel()
		}
	}
	if len(p.waiting) > 0 && !p.closed {
		p.sweeper.Reset(sweepEvery)
	} else {
		p.sweeper = nil
	}
	p.mu.Unlock()
	for _, e := range late {
		e.call.fail(fmt.Errorf("no answer within %v: %w", e.call.timeout(), context.DeadlineExceeded))
	}
}

// run opens streams for as long as there is something to send.
func (p *pipe) run() {
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return
		}
		idle := len(p.out) == 0
		p.mu.Unlock()
		if idle {
			<-p.wake // also sent by close
			continue
		}
		if err := p.stream(); err != nil {
			p.failAll(err)
		}
	}
}

// stream serves one stream until it fails or the pipe is closed.
func (p *pipe) stream() error {
	ctx, cancel := context.WithCancel(context.Background()) // ends with this function, or by close or sweep
	defer cancel()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return errClosed
	}
	p.cancel = cancel
	p.mu.Unlock()

	opening := time.AfterFunc(dialTimeout, cancel)
	s, err := p.open(ctx)
	if !opening.Stop() && err == nil {
		err = context.DeadlineExceeded
	}
	if err != nil {
		return unreachable(err)
	}

	ended := make(chan error, 1)
	p.wg.Go(func() { ended <- p.read(s) }) // this function waits for it
	err = p.write(s, ended)
	cancel()
	if err == nil { // the reader is still to end
		err = <-ended
	}
	p.setLive(nil)
	return unreachable(err)
}

func (p *pipe) setLive(s grpc.ClientStream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live = s
}

// write writes what is put on its way. It returns nil if the stream must end for
// a reason that the reader will tell, else the reader's error.
func (p *pipe) write(s grpc.ClientStream, ended <-chan error) error {
	var batch []*entry
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return nil
		}
		batch = batch[:0]
		if !p.writing { // else who writes sends the wake
			batch, p.out = p.out, batch
			p.writing = len(batch) > 0
		}
		for _, e := range batch {
			p.sent(e)
		}
		p.mu.Unlock()
		if len(batch) > 0 {
			if !p.writeAll(s, batch) {
				return nil // the reader gets the stream's real error
			}
			continue // more may have come meanwhile
		}
		select {
		case <-p.wake:
		case err := <-ended:
			return err
		}
	}
}

// writeAll writes entries, unless the stream fails, and lets others write.
func (p *pipe) writeAll(s grpc.ClientStream, batch []*entry) bool {
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.writing = false
	}()
	for i, e := range batch {
		if err := p.writeOne(s, e); err != nil {
			return false
		}
		batch[i] = nil
	}
	return true
}

func (p *pipe) writeOne(s grpc.ClientStream, e *entry) error {
	if e.notice != nil {
		return e.notice(s, e.id)
	}
	p.mu.Lock()
	_, wanted := p.waiting[e.id]
	p.mu.Unlock()
	if !wanted {
		return nil
	}
	return e.call.send(s, e.id)
}

// read reads answers. Callers may write once there was one: until then gRPC may open
// the stream once more, on another connection, and whoever writes waits for that.
func (p *pipe) read(s grpc.ClientStream) error {
	for first := true; ; first = false {
		if err := p.receive(s, p); err != nil {
			return err
		}
		if first {
			p.setLive(s)
		}
	}
}

// end ends the call that an answer is for.
func (p *pipe) end(id uint64, finish func(pending)) {
	p.mu.Lock()
	p.heard++
	e := p.waiting[id]
	delete(p.waiting, id)
	if e != nil { // what was written before has come, too
		p.passed = max(p.passed, e.end)
	}
	p.mu.Unlock()
	if e == nil {
		finish(nil)
		return
	}
	finish(e.call)
}

// again hands over an answer after which its call goes on if it is so decided. If
// nobody waits for it any more, notice tells the other side.
func (p *pipe) again(id uint64, finish func(pending), notice func(s grpc.ClientStream, id uint64) error) {
	p.mu.Lock()
	p.heard++
	e := p.waiting[id]
	if e == nil {
		p.note(id, notice)
		p.mu.Unlock()
		p.kick()
		finish(nil)
		return
	}
	p.passed = max(p.passed, e.end)
	e.heard, e.deadline, e.handing = p.heard, time.Now().Add(e.call.timeout()), true
	p.mu.Unlock()
	finish(e.call)
	p.mu.Lock()
	err := e.failed
	undecided := e.handing && err == nil
	if undecided {
		p.drop(e, notice)
	}
	p.mu.Unlock()
	switch {
	case err != nil:
		e.call.fail(err)
	case undecided:
		p.kick()
	}
}

// close fails what waits and ends all goroutines of the pipe.
func (p *pipe) close() {
	p.mu.Lock()
	p.closed = true
	if p.cancel != nil {
		p.cancel()
	}
	if p.sweeper != nil {
		p.sweeper.Stop()
	}
	p.mu.Unlock()
	p.kick()
	p.failAll(errClosed)
	p.wg.Wait()
}

// unreachable makes the end of a stream an error that says so; an error of the
// broker's own table stays what it is.
func unreachable(err error) error {
	if errors.Is(err, errClosed) {
		return err
	}
	if e, ok := errors.AsType[*rpcerr.Error](err); ok && e.Reason() != "" {
		return err
	}
	return rpcerr.With(rpcerr.ErrUnreachable, fmt.Errorf("stream ended: %w", err))
}
