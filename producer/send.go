package producer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
)

const (
	// routeWait is how long messages of a topic that does not exist, or cannot be
	// written, wait for that to change.
	routeWait = 2 * time.Second
	// A batch is sent again after retryBase, growing to retryMax.
	retryBase = 20 * time.Millisecond
	retryMax  = time.Second
	// sidestep is for how long a broker that failed is passed over.
	sidestep = 2 * time.Second
	// Lists of messages hold minList to maxList, which bounds a batch, too;
	// maxSpare of them are kept to be used again.
	minList  = 8
	maxList  = 2048
	maxSpare = 64
	// sweepEvery is how exactly timeouts are kept.
	sweepEvery = 100 * time.Millisecond
)

// topic is what the producer knows and holds of a topic. Guarded by Producer.mu.
type topic struct {
	name    string
	watched bool             // its route has been asked for
	known   bool             // a name server has told of it
	hosted  bool             // it has brokers, whether or not they take messages
	queues  []allocate.Queue // writable, sorted
	at      []*queueState    // of the queues
	several bool             // they are of several brokers

	parked []entry // no queue is known for them
	any    *lane   // messages whose queue the producer chooses
	lanes  map[allocate.Queue]*lane
	states map[allocate.Queue]*queueState
	turn   int
	limit  int64 // bytes of a batch that brokers were seen to take, if above 0
}

// lane is a line of messages: those for one queue, or those for any. One batch is
// under way for each queue, so that the messages of a queue keep their order.
type lane struct {
	topic    *topic
	queue    allocate.Queue // of a fixed lane
	fixed    bool
	waiting  [][]entry // lists of messages, none empty
	count    int       // of messages that wait
	tried    int       // of these at its head, that were sent once and may be stored
	share    int       // least size of a batch, if there is as much
	sent     int       // since nothing was under way
	grown    int       // size of the last list made
	inFlight int
	flying   int64 // bytes of the batches in flight
	trouble  error // of the last attempt, if it failed
	touched  bool  // got messages just now
}

// queueState is how far the producer's numbers on a queue are.
type queueState struct {
	sequence uint64
	busy     bool
}

// sending is a batch under way.
type sending struct {
	p        *Producer
	lane     *lane
	queue    allocate.Queue
	state    *queueState // of the queue
	entries  []entry
	size     int64 // of the entries
	sequence uint64
	bytes    []byte // the batch, a part of buf
	buf      []byte
	attempts int
	deadline time.Time
	movable  bool      // it may go to another broker
	retryAt  time.Time // waits until then, if set
	lastErr  error
	call     client.ProduceCall
}

func (p *Producer) topic(name string) *topic {
	t := p.topics[name]
	if t == nil {
		t = &topic{name: name, turn: rand.IntN(1 << 16), lanes: make(map[allocate.Queue]*lane), states: make(map[allocate.Queue]*queueState)}
		t.any = &lane{topic: t}
		p.topics[name] = t
		p.routed.Store(true) // run asks for its route
		p.kick()
	}
	return t
}

// place puts a message into its lane, or parks it while there is none, and
// returns the lane. With a selector it also parks what comes while others are
// parked, and what was for a queue that is no more: run has it choose anew.
func (p *Producer) place(t *topic, e *entry) *lane {
	if p.cfg.selector == nil && len(t.queues) > 0 {
		p.add(t.any, e)
		return t.any
	}
	if len(t.parked) > 0 || len(t.queues) == 0 || e.to == nil || !t.writable(*e.to) {
		t.parked = append(t.parked, *e)
		if len(t.queues) > 0 {
			p.routed.Store(true)
			p.kick()
		}
		return nil
	}
	l := t.lanes[*e.to]
	if l == nil {
		l = &lane{topic: t, queue: *e.to, fixed: true}
		t.lanes[l.queue] = l
	}
	p.add(l, e)
	return l
}

// next takes the next batches of a lane for which there is a queue. When few
// messages wait they are spread over the batches that may be under way: a burst
// does not end up in one queue.
func (p *Producer) next(l *lane) []*sending {
	var out []*sending
	for l != nil && l.count > 0 {
		q, most := l.queue, l.count
		ok := l.inFlight == 0
		if !l.fixed {
			slots := p.slots(l)
			if ok = slots > 0; ok {
				most = l.most(slots, len(l.topic.queues))
				q, ok = p.pick(l.topic, "")
			}
		}
		if !ok {
			break
		}
		s := &sending{p: p, lane: l, queue: q}
		s.entries, s.size = p.cut(l, most)
		l.sent += len(s.entries)
		s.deadline = p.begun.Add(s.entries[0].added + p.cfg.timeout)
		p.number(s)
		l.inFlight++
		l.flying += s.size
		p.flying[s] = struct{}{}
		out = append(out, s)
	}
	return out
}

// slots is how many more batches of the line may be under way.
func (p *Producer) slots(l *lane) int {
	most := p.cfg.maxInFlight
	if l.flying < smallBytes {
		most = p.cfg.smallInFlight
	}
	return min(most, len(l.topic.queues)) - l.inFlight
}

// number takes the next sequence numbers of a batch's queue for it.
func (p *Producer) number(s *sending) {
	s.state = s.lane.topic.state(s.queue)
	s.state.busy = true
	s.movable = !s.lane.fixed && s.lane.topic.several && p.cfg.failover > 0
	s.sequence = s.state.sequence
	s.state.sequence += uint64(len(s.entries))
}

func (t *topic) state(q allocate.Queue) *queueState {
	st := t.states[q]
	if st == nil {
		st = new(queueState)
		t.states[q] = st
	}
	return st
}

// add puts a message at the end of the line.
func (p *Producer) add(l *lane, e *entry) {
	last := len(l.waiting) - 1
	if last < 0 || len(l.waiting[last]) == cap(l.waiting[last]) {
		l.waiting = append(l.waiting, p.list(l))
		last++
	}
	l.waiting[last] = append(l.waiting[last], *e)
	l.count++
}

// list returns an empty list of messages, as large as the line has use for.
func (p *Producer) list(l *lane) []entry {
	if k := len(p.spare); k > 0 {
		out := p.spare[k-1]
		p.spare = p.spare[:k-1]
		return out
	}
	l.grown = min(maxList, max(minList, 2*l.grown))
	return make([]entry, 0, l.grown)
}

func dueOf(m *message.Message) int64 {
	if m.DeliverAt.IsZero() {
		return 0
	}
	return m.DeliverAt.UnixMilli()
}

// launch encodes batches and sends them. Called without the lock.
func (p *Producer) launch(batches []*sending) {
	for _, s := range batches {
		if err := s.encode(); err != nil {
			p.answered(s, client.ProduceResult{}, err)
			continue
		}
		p.transmit(s)
	}
}

func (s *sending) encode() error {
	enc, _ := s.p.encoders.Get().(*batch.Encoder) // the pool holds nothing else
	defer s.p.encoders.Put(enc)
	var buf []byte
	if b, ok := s.p.buffers.Get().(*[]byte); ok {
		buf = *b
	}
	enc.Reset()
	enc.Use(buf, int(s.size))
	for i := range s.entries {
		enc.Append(s.entries[i].m)
	}
	var err error
	s.bytes, s.buf, err = enc.Seal(batch.Info{
		Topic: s.queue.Topic, Queue: s.queue.ID, ProducerID: s.p.id, BaseSequence: s.sequence, DueTime: s.entries[0].due,
	})
	if err != nil {
		return fmt.Errorf("encode batch: %w", rpcerr.With(rpcerr.ErrInvalidArgument, err))
	}
	if n, most := len(s.bytes), s.p.cfg.largest; n > most {
		return fmt.Errorf("%w: batch of %d bytes, allowed %d", rpcerr.ErrMessageTooLarge, n, most)
	}
	return nil
}

func (p *Producer) transmit(s *sending) {
	s.attempts++
	timeout := max(time.Until(s.deadline), time.Millisecond)
	if s.movable {
		timeout = min(timeout, p.cfg.failover)
	}
	s.call = client.ProduceCall{
		Broker: s.queue.Broker, Batch: s.bytes, Timeout: timeout,
		Done: func(r client.ProduceResult, err error) { p.answered(s, r, err) },
	}
	p.cluster.Produce(&s.call)
}

// answered hands an answer to run: callbacks of users are not called on the
// goroutine that reads for everybody.
func (p *Producer) answered(s *sending, r client.ProduceResult, err error) {
	p.mu.Lock()
	p.outcomes = append(p.outcomes, outcome{s, r, err})
	p.mu.Unlock()
	p.kick()
}

// run works off answers, routes and timeouts.
func (p *Producer) run() {
	defer close(p.ended)
	sweep := time.NewTimer(sweepEvery)
	defer sweep.Stop()
	var work []outcome
	var retries []*sending
	var sweepAt, wakeAt time.Time
	for {
		select {
		case <-p.wake:
		case <-sweep.C:
		case <-p.base.Done():
			p.abort()
			return
		}
		if p.routed.Swap(false) {
			p.reroute()
		}
		p.mu.Lock()
		work, p.outcomes = p.outcomes, work[:0]
		failures := p.failures
		p.failures = nil
		p.mu.Unlock()
		for _, f := range failures {
			p.tell(f)
		}
		for i := range work {
			if s := p.settle(work[i]); s != nil {
				retries = append(retries, s)
			}
			work[i] = outcome{}
		}
		now := time.Now()
		retries = slices.DeleteFunc(retries, func(s *sending) bool {
			if now.Before(s.retryAt) {
				return false
			}
			p.again(s)
			return true
		})
		if !now.Before(sweepAt) {
			p.expire(now)
			sweepAt = now.Add(sweepEvery)
		}
		next := sweepAt
		for _, s := range retries {
			if s.retryAt.Before(next) {
				next = s.retryAt
			}
		}
		if next != wakeAt {
			wakeAt = next
			sweep.Reset(next.Sub(now))
		}
	}
}

// settle deals with the answer to a batch. It returns the batch if that is to be
// sent again.
func (p *Producer) settle(o outcome) *sending {
	s := o.b
	if o.err == nil {
		p.met.stored(len(s.entries), len(s.bytes), o.res.Duplicate)
		s.results(o.res)
		p.done(s, true)
		return nil
	}
	s.lastErr = o.err
	now := time.Now()
	p.mu.Lock()
	s.lane.trouble = o.err
	if unanswered(o.err) {
		p.passOver(s.queue.Broker, now)
	}
	p.mu.Unlock()
	if errors.Is(o.err, rpcerr.ErrMessageTooLarge) && len(s.entries) > 1 && p.base.Err() == nil {
		p.split(s)
		return nil
	}
	if final(o.err) || p.base.Err() != nil {
		p.lost(s, o.err)
		return nil
	}
	if !now.Before(s.deadline) {
		p.lost(s, fmt.Errorf("%w after %d attempts: %w", ErrTimeout, s.attempts, o.err))
		return nil
	}
	p.met.retried()
	p.cfg.log.Debug("batch failed, sending again", zap.String("topic", s.queue.Topic), zap.String("broker", s.queue.Broker), zap.Int("attempts", s.attempts), zap.Error(o.err))
	if errors.Is(o.err, rpcerr.ErrTopicNotFound) || errors.Is(o.err, rpcerr.ErrQueueNotFound) {
		p.watch.Refresh()
	}
	s.retryAt = now.Add(min(retryMax, retryBase<<min(10, s.attempts-1)))
	return s
}

// final tells of errors that repeating cannot help.
func final(err error) bool {
	for _, e := range []error{rpcerr.ErrInvalidArgument, rpcerr.ErrMessageTooLarge, rpcerr.ErrBadBatch, rpcerr.ErrProducerFenced} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// refused tells of errors after which a batch is certainly not stored, and its
// broker or queue is not likely to take it soon.
func refused(err error) bool {
	for _, e := range []error{
		rpcerr.ErrDiskFull, rpcerr.ErrOverloaded, rpcerr.ErrLimitReached, rpcerr.ErrShuttingDown, rpcerr.ErrNotWritable,
		rpcerr.ErrTopicNotFound, rpcerr.ErrQueueNotFound,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// unanswered tells of the error of a batch whose broker was silent for too long.
func unanswered(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, rpcerr.ErrUnreachable)
}

// gaveUp tells whether a batch is to go to another broker since its own is silent.
// Where all are, it stays: there a repeat is noticed.
func (p *Producer) gaveUp(s *sending) bool {
	now := time.Now()
	silent := func(broker string) bool { return now.Before(p.silent[broker]) }
	return s.movable && silent(s.queue.Broker) && (unanswered(s.lastErr) || errors.Is(s.lastErr, rpcerr.ErrUnreachable)) &&
		slices.ContainsFunc(s.lane.topic.queues, func(q allocate.Queue) bool { return !silent(q.Broker) })
}

// again sends a batch once more: to the same queue with the same sequence, so
// that the broker notices a repeat; or elsewhere, if its broker refused it, was not
// reached twice or does not answer.
func (p *Producer) again(s *sending) {
	gone := refused(s.lastErr) || errors.Is(s.lastErr, rpcerr.ErrUnreachable) && s.attempts > 1
	expired := errors.Is(s.lastErr, rpcerr.ErrSequenceExpired)
	p.mu.Lock()
	if p.gaveUp(s) {
		ready := p.putBack(s)
		p.mu.Unlock()
		p.launch(ready)
		return
	}
	if gone {
		p.failed[s.queue.Broker] = time.Now().Add(sidestep)
	}
	t := s.lane.topic
	to, move := s.queue, expired
	if gone && !s.lane.fixed {
		if q, ok := p.pick(t, s.queue.Broker); ok {
			to, move = q, true
		}
	}
	if gone && s.lane.fixed && !slices.Contains(t.queues, s.queue) && len(t.queues) > 0 {
		ready := p.replace(s)
		p.mu.Unlock()
		p.launch(ready)
		return
	}
	if !move {
		p.mu.Unlock()
		p.transmit(s)
		return
	}
	s.state.busy = false
	s.queue = to
	p.number(s)
	s.bytes, s.buf = nil, nil // gRPC may still hold the old ones
	p.mu.Unlock()
	p.launch([]*sending{s})
}

// replace places the messages of a queue that is no more anew, those of the batch
// and those that wait behind it, in their order.
func (p *Producer) replace(s *sending) []*sending {
	l, t := s.lane, s.lane.topic
	p.release(s)
	all := append(slices.Clone(s.entries), slices.Concat(l.waiting...)...)
	l.waiting, l.count = nil, 0
	delete(t.lanes, l.queue)
	t.parked = append(all, t.parked...)
	return p.unpark(t)
}

// placeAll places messages of a topic and returns the lanes that got any.
func (p *Producer) placeAll(t *topic, entries []entry) (lanes []*lane) {
	for i := range entries {
		if l := p.place(t, &entries[i]); l != nil && !l.touched {
			l.touched = true
			lanes = append(lanes, l)
		}
	}
	return lanes
}

// results tells the senders where their messages are stored.
func (s *sending) results(r client.ProduceResult) {
	out := Result{Queue: s.queue, Offset: r.Offset, StoreTime: r.StoreTime, Duplicate: r.Duplicate}
	due := s.entries[0].due
	for i := range s.entries {
		s.entries[i].end(out)
		if due <= r.StoreTime.UnixMilli() {
			out.Offset++
		}
	}
}

// lost fails the messages of a batch.
func (p *Producer) lost(s *sending, err error) {
	p.met.failed(len(s.entries))
	for i := range s.entries {
		s.entries[i].end(Result{Queue: s.queue, Err: fmt.Errorf("send to topic %q: %w", s.queue.Topic, err)})
	}
	p.done(s, false)
}

// done makes room and sends what waited for the batch. Its bytes are used again
// if the broker has answered, which it does once it has read them.
func (p *Producer) done(s *sending, answered bool) {
	if answered && s.attempts == 1 {
		buf := s.buf
		p.buffers.Put(&buf)
	}
	p.mu.Lock()
	if answered {
		s.lane.trouble = nil
		delete(p.silent, s.queue.Broker)
	}
	p.free(s.size)
	p.forget(s.entries)
	p.release(s)
	clear(s.entries)
	if len(p.spare) < maxSpare {
		p.spare = append(p.spare, s.entries[:0])
	}
	s.entries = nil
	ready := p.next(s.lane)
	p.mu.Unlock()
	p.launch(ready)
}

func (p *Producer) release(s *sending) {
	s.state.busy = false
	s.lane.inFlight--
	s.lane.flying -= s.size
	delete(p.flying, s)
}

// forget counts messages as ended.
func (p *Producer) forget(entries []entry) {
	p.pending -= len(entries)
	if p.closed && p.pending == 0 && len(entries) > 0 {
		close(p.drained)
	}
	p.flushes = slices.DeleteFunc(p.flushes, func(f *flushing) bool {
		for i := range entries {
			if entries[i].turn <= f.turn {
				f.left--
			}
		}
		if f.left == 0 {
			close(f.over)
		}
		return f.left == 0
	})
}

// fail fails messages that are in no batch. Called under the lock; run tells
// the senders.
func (p *Producer) fail(entries []entry, err error, q allocate.Queue) {
	p.failures = append(p.failures, failure{entries, err, q})
	p.kick()
}

// tell tells the senders of messages that never were in a batch.
func (p *Producer) tell(f failure) {
	size := int64(0)
	p.met.failed(len(f.entries))
	for i := range f.entries {
		size += int64(f.entries[i].size)
		f.entries[i].end(Result{Queue: f.queue, Err: fmt.Errorf("send to topic %q: %w", f.entries[i].m.Topic, f.err)})
	}
	p.mu.Lock()
	p.free(size)
	p.forget(f.entries)
	p.mu.Unlock()
}
