package broker

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
)

const (
	// dueRound batches are delivered at once; fewer than the store remembers
	// origins, so that none is delivered twice.
	dueRound = 256
	// scheduleBytes bounds the batches on their way to the state.
	scheduleBytes = 64 << 20
	// dueLook bounds the sleep of the scheduler: the wall clock may be set.
	dueLook = time.Second
	// scheduledSpace of the state remembers which sequences of which producers
	// were scheduled, so that a repeat after a lost answer is noticed.
	scheduledSpace = "scheduled"
)

// scheduler keeps batches until they are due and puts them into their queues
// then. A batch rests in the state until it is in the log; the log knows it by
// its origin and takes it once, also if the broker dies in between.
type scheduler struct {
	st      *store.Store
	log     *zap.Logger
	metrics *metrics
	topics  *topics

	room *semaphore.Weighted // bytes on their way to the disk
	mu   sync.Mutex
	next int64         // when the loop looks again, Unix milliseconds
	kick chan struct{} // capacity 1: something is due earlier
}

func newScheduler(st *store.Store, ts *topics, log *zap.Logger, m *metrics) *scheduler {
	return &scheduler{
		st: st, topics: ts, log: log, metrics: m, kick: make(chan struct{}, 1), room: semaphore.NewWeighted(scheduleBytes),
	}
}

// add schedules a producer's batch. done is told once it is on disk, with offset
// -1: the offset is not known before the batch is due. It blocks while too much
// waits for the disk.
func (s *scheduler) add(ctx context.Context, h *batch.Header, b []byte, done func(store.Appended, error)) {
	if err := batch.VerifyBody(b, h); err != nil {
		done(store.Appended{}, fmt.Errorf("%w: %w", rpcerr.ErrBadBatch, err))
		return
	}
	state := s.st.State()
	u := state.NewUpdate()
	now := time.Now().UnixMilli()
	if h.ProducerID != 0 {
		key := sequenceKey(h)
		if _, ok, err := state.Get(scheduledSpace, key); err != nil {
			done(store.Appended{}, err)
			return
		} else if ok {
			// The first one may be on its way to the disk; what comes after it is not
			// done before it is there.
			state.ApplyAsync(u, func(err error) { done(store.Appended{Offset: -1, StoreTime: now, Duplicate: true}, err) })
			return
		}
		u.Put(scheduledSpace, key, nil)
	}
	if err := s.st.HasRoom(h.Length); err != nil {
		done(store.Appended{}, err)
		return
	}
	due, size := h.DueTime, int64(min(h.Length, scheduleBytes))
	if err := s.room.Acquire(ctx, size); err != nil {
		done(store.Appended{}, err)
		return
	}
	u.Schedule(due, b)
	state.ApplyAsync(u, func(err error) {
		s.room.Release(size)
		s.expect(due) // also after an error: it may be stored all the same
		if err == nil {
			s.metrics.scheduled.Inc()
		}
		done(store.Appended{Offset: -1, StoreTime: now}, err)
	})
}

// sequenceKey names a batch of a producer.
func sequenceKey(h *batch.Header) string {
	return fmt.Sprintf("%016x/%08x/%s/%08x/%016x", h.ProducerID, h.ProducerEpoch, h.Topic, h.Queue, h.BaseSequence)
}

// expect makes the loop look at due at the latest.
func (s *scheduler) expect(due int64) {
	s.mu.Lock()
	earlier := s.next == 0 || due < s.next
	s.mu.Unlock()
	if earlier {
		select {
		case s.kick <- struct{}{}:
		default:
		}
	}
}

// run delivers what is due until ctx ends.
func (s *scheduler) run(ctx context.Context) error {
	failing := false
	for {
		next, err := s.round(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopping; what is still due is delivered after the next start
		}
		if err != nil && !failing {
			s.log.Error("scheduled messages not delivered, trying on", zap.Error(err))
		}
		failing = err != nil
		// If nothing seems to be scheduled it looks all the same: what could not be
		// stored may be found stored later.
		wait := dueLook
		if !failing && next != 0 {
			wait = min(max(time.Until(time.UnixMilli(next)), 0), dueLook)
		}
		if !s.pause(ctx, wait) {
			return nil
		}
	}
}

// pause waits for d, or for a kick.
func (s *scheduler) pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.kick:
	case <-ctx.Done():
		return false
	}
	return true
}

// round delivers all that is due now and returns when the next batch will be.
func (s *scheduler) round(ctx context.Context) (int64, error) {
	for {
		s.mu.Lock()
		s.next = 0 // whatever is added from here on kicks
		s.mu.Unlock()
		due, next, err := s.st.State().Due(time.Now().UnixMilli(), dueRound)
		if err != nil {
			return 0, fmt.Errorf("look for due messages: %w", err)
		}
		if len(due) == 0 {
			s.mu.Lock()
			s.next = next
			s.mu.Unlock()
			return next, nil
		}
		if err := s.deliver(ctx, due); err != nil {
			return 0, err
		}
	}
}

// deliver appends batches and takes those that are in the log out of the state.
func (s *scheduler) deliver(ctx context.Context, due []store.Scheduled) error {
	errs := make([]error, len(due))
	var wg sync.WaitGroup
	for i, d := range due {
		wg.Add(1)
		s.st.AppendAsync(ctx, store.Entry{Batch: d.Batch, Origin: d.ID}, func(_ store.Appended, err error) {
			errs[i] = err
			wg.Done()
		})
	}
	wg.Wait()
	u := s.st.State().NewUpdate()
	var failed error
	done := 0
	for i, d := range due {
		err := errs[i]
		if err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrNoSpace) && !errors.Is(err, store.ErrClosed) {
			err = s.redirect(ctx, d, err)
		}
		if err != nil {
			failed = err
			continue
		}
		u.Unschedule(d.ID, d.Due)
		if h, err := batch.Parse(d.Batch); err == nil && h.ProducerID != 0 {
			u.Delete(scheduledSpace, sequenceKey(&h))
		}
		s.metrics.delivered.Inc()
		s.metrics.deliverySeconds.Observe(max(time.Since(time.UnixMilli(d.Due)), 0).Seconds())
		done++
	}
	if done > 0 {
		if err := s.st.State().Apply(ctx, u); err != nil {
			return fmt.Errorf("take delivered messages out: %w", err)
		}
	}
	if failed != nil {
		return fmt.Errorf("append due messages: %w", failed)
	}
	return nil
}

// redirect delivers a batch that the log refused as it is: to another queue of its
// topic if its own was removed while it waited, and without the producer's
// sequence if that is too old by now. It drops the batch if the topic is gone.
func (s *scheduler) redirect(ctx context.Context, d store.Scheduled, cause error) error {
	drop := func(why string) error {
		s.log.Warn("scheduled messages dropped", zap.String("reason", why), zap.Error(cause), zap.Uint64("id", d.ID))
		s.metrics.undeliverable.Inc()
		return nil
	}
	h, err := batch.Parse(d.Batch)
	if err != nil || errors.Is(cause, store.ErrBadBatch) {
		return drop("the batch cannot be read: " + hex.EncodeToString(d.Batch[:min(len(d.Batch), 16)]))
	}
	t := s.topics.set().byName[string(h.Topic)]
	if t == nil || t.read == 0 {
		return drop("the topic was deleted")
	}
	b, err := recode(&h, batch.Info{
		Topic: t.name, Queue: h.Queue % t.read, DueTime: h.DueTime,
	}, nil)
	if err != nil {
		return drop(err.Error())
	}
	if _, err = s.st.Append(ctx, store.Entry{Batch: b, Origin: d.ID}); errors.Is(err, store.ErrBadBatch) {
		return drop(err.Error())
	}
	return err
}

// recode encodes the messages of a batch again; change may alter each or refuse
// it by returning false.
func recode(h *batch.Header, info batch.Info, change func(*message.Message) bool) ([]byte, error) {
	var dec batch.Decoder
	it, err := dec.Open(h, nil)
	if err != nil {
		return nil, fmt.Errorf("open batch: %w", err)
	}
	enc := batch.Encoder{Compression: h.Compression}
	var r batch.Record
	for {
		ok, err := it.Next(&r)
		if err != nil {
			return nil, fmt.Errorf("read batch: %w", err)
		}
		if !ok {
			break
		}
		var m message.Message
		r.Fill(&m, h, string(h.Topic), "")
		if change == nil || change(&m) {
			enc.Append(&m)
		}
	}
	b, err := enc.Finish(nil, info)
	if err != nil {
		return nil, fmt.Errorf("encode batch: %w", err)
	}
	return b, nil
}
