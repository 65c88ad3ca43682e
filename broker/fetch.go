package broker

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/rawcodec"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/session"
)

const (
	// maxPolls bounds the requests of one fetch stream that are outstanding.
	maxPolls = 1 << 16
	// maxTags of one request.
	maxTags = message.MaxFilterTags
	// fetchWorkers serve one stream at once: while one reads from the disk or
	// waits for the client, the other reads what is next. More would only hold
	// more memory for a client that is slow.
	fetchWorkers = 2
	// unwritten bytes of a stream's answers may not be on its connection yet for
	// another to be sent by somebody who must not wait: gRPC makes senders wait when
	// there are 64 KiB of them.
	unwritten = 32 << 10
)

// fetchStream is one client's fetch stream. Requests that have something to read,
// or may have, stand in line; those that have nothing are parked in the store
// without a goroutine, and come back into the line when a message arrives or
// their time is up. Workers exist while somebody stands in line.
type fetchStream struct {
	srv    *Server
	stream grpc.ServerStream
	work   func() // f.serveLine, made once

	mu      sync.Mutex
	polls   map[uint64]*poll
	line    []*poll // to be served, first come first served
	dues    dues    // parked polls by deadline
	timer   *time.Timer
	workers int
	over    bool
	err     error

	send    sync.Mutex    // one message at a time
	sent    uint64        // bytes of all answers, guarded by send
	written atomic.Uint64 // of these, what is known to be on the connection
	done    chan struct{}

	// Guarded by fetchMemory.mu.
	holds int64     // bytes of batches not yet on the wire
	moved time.Time // when some were last given back, or the first taken
	gone  bool      // holds no more
}

type pollState uint8

const (
	pollInLine  pollState = iota // in the line
	pollServed                   // a worker has it
	pollParked                   // armed in the store
	pollAgain                    // woken while a worker had it
	pollDropped                  // answered or cancelled
)

// poll is one outstanding request.
type poll struct {
	f        *fetchStream
	id       uint64
	group    string
	queue    allocate.Queue
	at       store.Queue
	offset   int64
	maxBytes int
	epoch    session.Epoch
	tags     []uint64
	wait     time.Duration
	follow   bool      // the client wants more after an answer
	deadline time.Time // of the wait
	due      int       // index in dues, -1 if not there
	state    pollState
	cancel   atomic.Bool
	waiter   store.Waiter
}

// Fetch serves a client's fetch stream.
func (s *Server) Fetch(stream grpc.BidiStreamingServer[tacitv1.FetchRequest, tacitv1.FetchResponse]) error {
	f := &fetchStream{srv: s, stream: stream, polls: make(map[uint64]*poll), done: make(chan struct{})}
	f.work = f.serveLine
	f.timer = time.AfterFunc(time.Hour, f.expire) // stopped by end
	f.timer.Stop()
	defer f.end()
	read := make(chan error, 1)
	s.streams.Go(func() { read <- s.guard(f.read) }) // ends with the stream
	ctx := stream.Context()
	select {
	case err := <-read:
		return err
	case <-f.done:
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.err
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stopping:
		return rpcerr.ErrShuttingDown
	}
}

func (f *fetchStream) read() error {
	var req rawcodec.FetchRequest
	for {
		switch err := f.stream.RecvMsg(&req); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err //nolint:wrapcheck // gRPC's own
		}
		runtime.Gosched() // a batch that came with it goes first
		if req.Cancel {
			f.cancelled(req.ID)
			continue
		}
		f.srv.metrics.fetches.Inc()
		p, err := f.open(&req)
		if err != nil {
			f.answer(&answer{resp: rawcodec.FetchResponse{ID: req.ID, NextOffset: req.Offset, Error: f.srv.dataError(err)}})
			continue
		}
		f.begin(p)
	}
}

// begin has a poll wait or be served.
func (f *fetchStream) begin(p *poll) {
	defer shared()
	if !f.parkAtEnd(p) {
		f.enqueue(p)
	}
}

// parkAtEnd parks a poll that waits for the next message of its queue, as most do,
// without a worker. Whatever else there is to say about a poll a worker says.
func (f *fetchStream) parkAtEnd(p *poll) bool {
	s := f.srv
	t := s.topics.set().byName[p.at.Topic]
	if t == nil || t.canRead(p.at.ID) != nil || p.expired() {
		return false
	}
	if _, end, err := s.store.Bounds(p.at); err != nil || p.offset != end {
		return false
	}
	if s.checkLease(p) != nil {
		return false
	}
	f.mu.Lock()
	p.state = pollServed
	f.mu.Unlock()
	if ready, err := s.store.Arm(&p.waiter, p.at, p.offset); err != nil || ready {
		return false
	}
	f.settleParked(p)
	return true
}

// open checks a request.
func (f *fetchStream) open(r *rawcodec.FetchRequest) (*poll, error) {
	if r.Group != "" {
		if err := message.CheckGroup(r.Group); err != nil {
			return nil, err //nolint:wrapcheck // says all
		}
	}
	cfg := f.srv.cfg
	switch {
	case r.Broker != "" && r.Broker != cfg.Name:
		return nil, fmt.Errorf("%w: queue of broker %q, this is %q", rpcerr.ErrQueueNotFound, r.Broker, cfg.Name)
	case r.Offset < 0:
		return nil, rpcerr.Invalid("offset", "%d: must be 0 or greater", r.Offset)
	case r.MaxBytes < 0:
		return nil, rpcerr.Invalid("max_bytes", "%d: must be 0 or greater", r.MaxBytes)
	case r.WaitMillis < 0 || time.Duration(r.WaitMillis)*time.Millisecond > cfg.MaxWait:
		return nil, rpcerr.Invalid("wait_millis", "%d: must be 0 to %d", r.WaitMillis, cfg.MaxWait.Milliseconds())
	case len(r.TagHashes) > maxTags:
		return nil, rpcerr.Invalid("tag_hashes", "has %d entries: must be at most %d", len(r.TagHashes), maxTags)
	}
	maxBytes := int(r.MaxBytes)
	if maxBytes == 0 || maxBytes > cfg.MaxFetchBytes {
		maxBytes = cfg.MaxFetchBytes
	}
	p := &poll{
		f: f, id: r.ID, group: r.Group,
		queue:    allocate.Queue{Topic: r.Topic, Broker: cfg.Name, ID: r.QueueID},
		at:       store.Queue{Topic: r.Topic, ID: r.QueueID},
		offset:   r.Offset,
		maxBytes: maxBytes,
		epoch:    session.Epoch{Broker: r.EpochBroker, Counter: r.EpochCounter},
		wait:     time.Duration(r.WaitMillis) * time.Millisecond,
		follow:   r.Follow && r.WaitMillis > 0,
		due:      -1,
	}
	if len(r.TagHashes) > 0 {
		p.tags = slices.Clone(r.TagHashes)
	}
	if p.wait > 0 {
		p.deadline = time.Now().Add(p.wait)
	}
	p.waiter.Wake = p.wake
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over { // the stream has ended, and its last request was read meanwhile
		return nil, rpcerr.ErrShuttingDown
	}
	if f.polls[p.id] != nil {
		return nil, rpcerr.Invalid("id", "%d: is that of a request not yet answered", p.id)
	}
	if len(f.polls) >= maxPolls {
		return nil, fmt.Errorf("%w: %d fetches outstanding", rpcerr.ErrOverloaded, maxPolls)
	}
	f.polls[p.id] = p
	return p, nil
}

// enqueue puts a poll in line.
func (f *fetchStream) enqueue(p *poll) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.enqueueLocked(p)
}

func (f *fetchStream) enqueueLocked(p *poll) {
	if f.over {
		return
	}
	p.state = pollInLine
	f.unpark(p)
	f.line = append(f.line, p)
	if f.workers < fetchWorkers {
		f.workers++
		f.srv.fetchers.run(f.work)
	}
}

// wake is called by the store when a parked poll has something to read.
func (p *poll) wake(calm bool) {
	f := p.f
	if calm && f.serveNow(p) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch p.state {
	case pollParked:
		f.enqueueLocked(p)
	case pollServed: // between Arm and parking
		p.state = pollAgain
	case pollInLine, pollAgain, pollDropped:
	}
}

// serveLine serves the line until it is empty.
func (f *fetchStream) serveLine() {
	for {
		f.mu.Lock()
		if len(f.line) == 0 || f.over {
			f.workers--
			f.mu.Unlock()
			return
		}
		p := f.line[0]
		f.line[0] = nil
		f.line = f.line[1:]
		if len(f.line) == 0 {
			f.line = nil
		}
		p.state = pollServed
		f.mu.Unlock()
		f.serve(p)
	}
}

// serveNow answers a parked poll on the goroutine that stored what it waits for, if
// that need not wait for anything.
func (f *fetchStream) serveNow(p *poll) bool {
	if !f.send.TryLock() {
		return false
	}
	served, following := f.serveLocked(p)
	f.send.Unlock()
	if following {
		f.begin(p)
	}
	return served
}

func (f *fetchStream) serveLocked(p *poll) (served, following bool) {
	if f.sent-f.written.Load() > unwritten {
		return false, false
	}
	f.mu.Lock()
	if p.state != pollParked || f.over {
		f.mu.Unlock()
		return false, false
	}
	f.takeParked(p)
	f.mu.Unlock()
	res, err := f.look(p, false)
	if err != nil || len(res.Batches) == 0 {
		res.release()
		f.enqueue(p) // a worker finds out why, or waits
		return true, false
	}
	a := f.reply(p, res, nil)
	f.respond(&a)
	return true, a.resp.Following
}

// serve answers a poll, or parks it, or puts it at the end of the line.
func (f *fetchStream) serve(p *poll) {
	res, err := f.look(p, true)
	// Whoever wants all messages and finds none has come to left out offsets, and is
	// told of them: its group's progress is behind them.
	over := err == nil && len(p.tags) == 0 && res.Next > p.offset
	if err != nil || len(res.Batches) > 0 || over || p.expired() {
		f.finish(p, res, err)
		return
	}
	p.offset = res.Next
	res.release()
	ready, err := f.srv.store.Arm(&p.waiter, p.at, p.offset)
	switch {
	case err != nil:
		f.finish(p, nil, fromStore(err))
		return
	case ready: // there is more behind what the filter left out, or it came just now
		f.enqueue(p)
		return
	}
	f.settleParked(p)
}

// settleParked parks a poll that is armed in the store, unless it was woken, cancelled
// or is late before it is.
func (f *fetchStream) settleParked(p *poll) {
	f.mu.Lock()
	if p.state == pollServed && !f.over && !p.expired() {
		p.state = pollParked
		f.park(p)
		f.mu.Unlock()
		return
	}
	f.mu.Unlock()
	f.srv.store.Disarm(&p.waiter)
	f.enqueue(p)
}

func (p *poll) expired() bool {
	return p.cancel.Load() || p.deadline.IsZero() || !time.Now().Before(p.deadline)
}

// checkLease checks the lease of a poll that names one.
func (s *Server) checkLease(p *poll) error {
	if p.epoch.IsZero() {
		return nil
	}
	if err := s.driver.check(p.group, p.queue, p.epoch); err != nil {
		return err
	}
	return s.kept.check(p.group, p.queue, p.epoch, p.offset, true)
}

// look checks that the poll may read, and reads. Unless it may wait it fails when there
// is no memory.
func (f *fetchStream) look(p *poll, wait bool) (*fetched, error) {
	s := f.srv
	t := s.topics.set().byName[p.at.Topic]
	if t == nil {
		return nil, fmt.Errorf("%w: %q", rpcerr.ErrTopicNotFound, p.at.Topic)
	}
	if err := t.canRead(p.at.ID); err != nil {
		return nil, err
	}
	var took int64
	var err error
	if wait {
		took, err = s.fetchMemory.take(f.stream.Context(), f, int64(p.maxBytes))
	} else {
		took, err = s.fetchMemory.tryTake(f, int64(p.maxBytes))
	}
	if err != nil {
		return nil, err
	}
	if err := s.checkLease(p); err != nil {
		s.fetchMemory.give(f, took)
		return nil, err
	}
	res := s.newFetched(f, took)
	if err := s.store.Read(&res.Result, p.at, p.offset, p.maxBytes, p.tags); err != nil {
		return res, fromStore(err)
	}
	res.trim()
	return res, nil
}

// finish answers a poll, which may go on.
func (f *fetchStream) finish(p *poll, res *fetched, err error) {
	a := f.reply(p, res, err)
	f.answer(&a)
	if a.resp.Following {
		f.begin(p)
	}
}

// answer is what goes to the client, and what is in it.
type answer struct {
	resp rawcodec.FetchResponse
	res  *fetched
}

// reply makes the answer to a poll, which goes on if the client wants that and has all
// there is, and is forgotten otherwise.
func (f *fetchStream) reply(p *poll, res *fetched, err error) (a answer) {
	a.resp = rawcodec.FetchResponse{ID: p.id, NextOffset: p.offset}
	f.mu.Lock()
	f.unpark(p)
	cancelled := p.cancel.Load()
	following := p.follow && err == nil && !cancelled && len(res.Batches) > 0 && res.Next >= res.Max && !f.over
	if following {
		p.state, p.offset, p.deadline = pollServed, res.Next, time.Now().Add(p.wait)
		a.resp.Following = true
	} else {
		p.state = pollDropped
		delete(f.polls, p.id)
	}
	f.mu.Unlock()
	if res != nil {
		a.resp.MinOffset, a.resp.MaxOffset = res.Min, res.Max
	}
	switch {
	case err != nil:
		a.resp.Error = f.srv.dataError(err)
		f.srv.metrics.fetchErrors.WithLabelValues(a.resp.Error.Reason).Inc()
		res.release()
	case cancelled:
		res.release()
	default:
		a.resp.NextOffset = res.Next
		if a.resp.Data = res.data(f.srv); a.resp.Data != nil {
			f.srv.metrics.fetchBytes.Add(float64(a.resp.Data.Len()))
			a.res = res
		}
	}
	return a
}

func (f *fetchStream) answer(a *answer) {
	f.send.Lock()
	defer f.send.Unlock()
	f.respond(a)
}

func (f *fetchStream) respond(a *answer) {
	f.sent += uint64(64 + a.resp.Data.Len())
	if a.res != nil {
		a.res.turn = f.sent
	}
	err := f.stream.SendMsg(&a.resp)
	a.resp.Free() // what was not sent
	if err != nil {
		f.fail(err)
	}
}

// passed notes that an answer is on the connection, and so are those before it.
func (f *fetchStream) passed(turn uint64) {
	for {
		was := f.written.Load()
		if was >= turn || f.written.CompareAndSwap(was, turn) {
			return
		}
	}
}

// cancelled ends a poll at the client's wish; it is answered without batches.
func (f *fetchStream) cancelled(id uint64) {
	defer shared()
	f.mu.Lock()
	p := f.polls[id]
	if p == nil { // answered already
		f.mu.Unlock()
		return
	}
	p.cancel.Store(true)
	if p.state != pollParked {
		f.mu.Unlock() // whoever has it sees the mark
		return
	}
	f.takeParked(p)
	f.mu.Unlock()
	f.srv.store.Disarm(&p.waiter)
	f.enqueue(p)
}

// fail ends the stream from this side; it reports whether it had not ended yet.
func (f *fetchStream) fail(err error) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil || f.over {
		return false
	}
	f.err = err
	close(f.done)
	return true
}

// end lets go of all polls.
func (f *fetchStream) end() {
	f.mu.Lock()
	f.over = true
	f.timer.Stop()
	f.line = nil
	parked := slices.Clone(f.dues)
	for _, p := range parked {
		f.unpark(p)
		p.state = pollDropped
	}
	f.polls = nil
	f.mu.Unlock()
	for _, p := range parked {
		f.srv.store.Disarm(&p.waiter)
	}
	f.srv.fetchMemory.forget(f)
}
