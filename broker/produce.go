package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rawcodec"
	"github.com/tacitmq/tacit/internal/rpcerr"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// maxUnanswered bounds the requests of one produce stream that are under way or
// whose answers the client has not read; more are not read from the stream.
const maxUnanswered = 4096

// maxTogether answers go in one message: with one message in each batch, a message
// for each answer is a fifth of all work, here and at the client.
const maxTogether = 256

// produceStream is one client's produce stream. One goroutine reads and hands
// batches to the store, one writes answers in the order they come about.
type produceStream struct {
	srv    *Server
	stream grpc.ServerStream

	mu      sync.Mutex
	room    sync.Cond // on mu: fewer are unanswered, or the stream is over
	answers []*produceCall
	open    int  // requests read and not yet answered on the wire
	last    bool // no more are read
	over    bool // answers are dropped

	wake chan struct{} // capacity 1: there are answers
}

// produceCall is one request on its way through the store.
type produceCall struct {
	p     *produceStream
	req   rawcodec.ProduceRequest
	resp  rawcodec.ProduceResponse
	fail  rawcodec.Error
	start time.Time
	done  func(store.Appended, error) // c.stored, made once
}

// Produce serves a client's produce stream.
func (s *Server) Produce(stream grpc.BidiStreamingServer[tacitv1.ProduceRequest, tacitv1.ProduceResponse]) error {
	p := &produceStream{srv: s, stream: stream, wake: make(chan struct{}, 1)}
	p.room.L = &p.mu
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	read := make(chan error, 1)
	s.streams.Go(func() { read <- s.guard(func() error { return p.read(ctx) }) }) // ends with the stream
	wrote := make(chan error, 1)
	s.streams.Go(func() { wrote <- s.guard(func() error { return p.write(ctx) }) }) // ends with the stream, or by flush
	defer p.end()
	select {
	case err := <-read:
		if err != nil {
			return err
		}
		// The client is done sending; it still wants its answers.
		p.flush()
		return <-wrote
	case err := <-wrote:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stopping:
		p.flush()
		select {
		case err := <-wrote:
			return errors.Join(rpcerr.ErrShuttingDown, err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *produceStream) read(ctx context.Context) error {
	for {
		c := p.srv.produceCalls.Get().(*produceCall) //nolint:forcetypeassert // the pool holds nothing else
		c.p = p
		if err := p.stream.RecvMsg(&c.req); err != nil {
			p.srv.recycle(c)
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if !p.admit() {
			p.srv.recycle(c)
			return ctx.Err()
		}
		c.start = time.Now()
		c.resp = rawcodec.ProduceResponse{ID: c.req.ID}
		p.srv.produce(ctx, c)
	}
}

// admit waits for room for one more request.
func (p *produceStream) admit() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.open >= maxUnanswered && !p.last && !p.over {
		p.room.Wait()
	}
	if p.last || p.over {
		return false
	}
	p.open++
	return true
}

// produce checks a batch and hands it on. c.done is called once.
func (s *Server) produce(ctx context.Context, c *produceCall) {
	h, err := s.checkBatch(c.req.Batch)
	if err != nil {
		c.answer(store.Appended{}, err)
		return
	}
	defer shared()
	s.metrics.produceBatches.Inc()
	s.metrics.produceMessages.Add(float64(h.Count))
	s.metrics.produceBytes.Add(float64(h.Length))
	if late := h.DueTime - c.start.UnixMilli(); late > maxDelay.Milliseconds() {
		c.answer(store.Appended{}, rpcerr.Invalid("due_time", "%d: must be at most %v from now", h.DueTime, maxDelay))
		return
	} else if late > 0 {
		s.scheduler.add(ctx, &h, c.req.Batch, c.done)
		return
	}
	s.store.AppendAsync(ctx, store.Entry{Batch: c.req.Batch}, c.done)
}

// checkBatch checks at the door all that the store does not: sizes, topic,
// queue, permission. The store verifies the checksum before it stores.
func (s *Server) checkBatch(b []byte) (batch.Header, error) {
	if len(b) > s.cfg.MaxBatchBytes {
		return batch.Header{}, fmt.Errorf("%w: batch of %d bytes, allowed %d", rpcerr.ErrMessageTooLarge, len(b), s.cfg.MaxBatchBytes)
	}
	h, err := batch.Parse(b)
	if err != nil {
		return h, fmt.Errorf("%w: %w", rpcerr.ErrBadBatch, err)
	}
	if h.Length != len(b) {
		return h, fmt.Errorf("%w: %d bytes follow a batch of %d", rpcerr.ErrBadBatch, len(b)-h.Length, h.Length)
	}
	if h.RawSize > s.cfg.MaxBodyBytes {
		return h, fmt.Errorf("%w: %d bytes of messages before compression, allowed %d", rpcerr.ErrMessageTooLarge, h.RawSize, s.cfg.MaxBodyBytes)
	}
	if len(h.Topic) > 0 && h.Topic[0] == '%' {
		return h, errGroups(string(h.Topic))
	}
	t := s.topics.set().byName[string(h.Topic)]
	if t == nil {
		if t, err = s.autoCreate(string(h.Topic)); err != nil {
			return h, err
		}
	}
	return h, t.canWrite(h.Queue)
}

// autoCreate makes a topic that somebody produces to, if that is allowed.
func (s *Server) autoCreate(name string) (*topic, error) {
	if !s.cfg.AutoCreateTopics {
		return nil, fmt.Errorf("%w: %q", rpcerr.ErrTopicNotFound, name)
	}
	defer shared()
	t, err := s.topics.ensure(name, s.cfg.DefaultQueues)
	if err != nil {
		return nil, fmt.Errorf("create topic at its first message: %w", err)
	}
	s.log.Info("topic created at its first message", zap.String("topic", name), zap.Int32("queues", t.read))
	return t, nil
}

// stored takes the store's answer.
func (c *produceCall) stored(a store.Appended, err error) { c.answer(a, fromStore(err)) }

// answer queues the answer of a request. It does not block.
func (c *produceCall) answer(a store.Appended, err error) {
	if err != nil {
		c.fail = *c.p.srv.dataError(err)
		c.resp.Error = &c.fail
		c.p.srv.metrics.produceErrors.WithLabelValues(c.fail.Reason).Inc()
	} else {
		c.resp.BaseOffset, c.resp.StoreMillis, c.resp.Duplicate = a.Offset, a.StoreTime, a.Duplicate
		c.p.srv.metrics.produceSeconds.Observe(time.Since(c.start).Seconds())
		if a.Duplicate {
			c.p.srv.metrics.produceDuplicates.Inc()
		}
	}
	c.req.Free()
	p := c.p
	p.mu.Lock()
	if p.over {
		p.mu.Unlock()
		p.srv.recycle(c)
		return
	}
	p.answers = append(p.answers, c)
	p.mu.Unlock()
	p.signal()
}

func (p *produceStream) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// write sends answers until the stream is over or, after flush, none is open.
func (p *produceStream) write(ctx context.Context) error {
	var ready []*produceCall
	var resp rawcodec.ProduceResponse
	var more []rawcodec.ProduceResponse
	for {
		p.mu.Lock()
		p.open -= len(ready)
		ready, p.answers = p.answers, ready[:0]
		done := p.last && p.open == 0
		p.room.Broadcast()
		p.mu.Unlock()
		if len(ready) == 0 {
			if done {
				return nil
			}
			select {
			case <-p.wake:
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		for rest := ready; len(rest) > 0; {
			n := min(len(rest), maxTogether)
			more = more[:0]
			for _, c := range rest[1:n] {
				more = append(more, c.resp)
			}
			resp = rest[0].resp
			resp.More = more
			if err := p.stream.SendMsg(&resp); err != nil {
				return err //nolint:wrapcheck // gRPC's own
			}
			for i, c := range rest[:n] {
				p.srv.recycle(c)
				rest[i] = nil
			}
			rest = rest[n:]
		}
	}
}

// flush lets write end once all that was read is answered.
func (p *produceStream) flush() {
	p.mu.Lock()
	p.last = true
	p.room.Broadcast()
	p.mu.Unlock()
	p.signal()
}

// end lets go of everything: answers that still come are dropped.
func (p *produceStream) end() {
	p.mu.Lock()
	p.over = true
	p.room.Broadcast()
	p.mu.Unlock()
}

// recycle gives a call back to the pool.
func (s *Server) recycle(c *produceCall) {
	c.req.Free()
	c.p, c.resp = nil, rawcodec.ProduceResponse{}
	s.produceCalls.Put(c)
}

func newProduceCall() any {
	c := new(produceCall)
	c.done = c.stored
	return c
}
