package broker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/internal/wire"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

const (
	// sentBackSpace of the state remembers which attempts were sent back: of one
	// message in one queue each attempt makes one copy, however often it is asked.
	sentBackSpace = "sentback"
	// maxDelay of a message that is sent back.
	maxDelay = 365 * 24 * time.Hour
	// deadLetterLevel makes a message a dead letter at once, as RocketMQ's: an
	// orderly consumer tries in place, and its attempts are not in the log.
	deadLetterLevel = -1
	// maxCause bounds the cause that is kept with a copy, in bytes.
	maxCause = 1 << 10
	// pruneInterval is the time between sweeps of what sentBackSpace remembers.
	pruneInterval = time.Minute
)

// delays are RocketMQ's 18 delay levels: level n is delays[n-1].
func delays() [18]time.Duration {
	const s, m, h = time.Second, time.Minute, time.Hour
	return [18]time.Duration{
		s, 5 * s, 10 * s, 30 * s, m, 2 * m, 3 * m, 4 * m, 5 * m,
		6 * m, 7 * m, 8 * m, 9 * m, 10 * m, 20 * m, 30 * m, h, 2 * h,
	}
}

// retryDelay is how long the copy of the n-th attempt waits (n from 1) unless the
// consumer says otherwise: level n + 2, as RocketMQ's.
func retryDelay(attempt int32) time.Duration {
	d := delays()
	return d[min(int(attempt)+2, len(d))-1]
}

// sendBacks serialises requests for the same message.
type sendBacks struct {
	mu   sync.Mutex
	busy map[string]chan struct{}
}

// lock waits until no other request for the key is under way.
func (b *sendBacks) lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		b.mu.Lock()
		wait := b.busy[key]
		if wait == nil {
			mine := make(chan struct{})
			b.busy[key] = mine
			b.mu.Unlock()
			return func() {
				b.mu.Lock()
				delete(b.busy, key)
				b.mu.Unlock()
				close(mine)
			}, nil
		}
		b.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// SendBack copies a message of this broker's log to the group's retry topic, or
// to its dead letters once its attempts are used up. The copy is on disk when it
// is answered, and is made once for each attempt.
func (s *Server) SendBack(ctx context.Context, req *tacitv1.SendBackRequest) (*tacitv1.SendBackResponse, error) {
	q, delay, err := s.checkSendBack(req)
	if err != nil {
		return nil, err
	}
	name := req.GetGroup()
	epoch := wire.ToEpoch(req.GetEpoch())
	if err := s.driver.check(name, q, epoch); err != nil {
		return nil, err
	}
	if err := s.kept.check(name, q, epoch, req.GetOffset()+1, false); err != nil { // past the message
		return nil, err
	}
	m, compression, err := s.readOne(localQueue(q), req.GetOffset())
	if err != nil {
		return nil, err
	}
	most := req.GetMaxReconsumeTimes()
	if most == 0 {
		most = s.cfg.MaxReconsumeTimes
	}
	attempt := min(m.ReconsumeTimes, math.MaxInt32-1) + 1 // a producer may have set any
	resp := &tacitv1.SendBackResponse{DeadLetter: m.ReconsumeTimes >= most || req.GetDelayLevel() == deadLetterLevel, ReconsumeTimes: attempt}
	if resp.GetDeadLetter() { // which is not repeated
		resp.ReconsumeTimes = max(m.ReconsumeTimes, req.GetReconsumeTimes())
	}

	key := sentBackKey(name, q, req.GetOffset(), attempt)
	unlock, err := s.sendBacks.lock(ctx, key)
	if err != nil {
		return nil, err
	}
	locked := true
	defer func() {
		if locked {
			unlock()
		}
	}()
	state := s.store.State()
	if done, ok, err := state.Get(sentBackSpace, key); err != nil {
		return nil, fmt.Errorf("look for earlier copies: %w", err)
	} else if ok {
		// What is seen may be on its way to the disk; what comes after it is not
		// done before it is there.
		if err := state.Apply(ctx, state.NewUpdate()); err != nil {
			return nil, fmt.Errorf("store the earlier copy: %w", fromStore(err))
		}
		resp.Duplicate, resp.DeadLetter = true, len(done) == 1 && done[0] == 1
		s.metrics.sentBack.WithLabelValues("duplicate").Inc()
		return resp, nil
	}

	topicName, outcome, due := message.RetryTopic(name), "retry", time.Now()
	mark := []byte{0}
	if resp.GetDeadLetter() {
		topicName, outcome, mark = message.DeadLetterTopic(name), "dead letter", []byte{1}
	} else {
		if delay < 0 {
			delay = retryDelay(attempt)
		}
		due = due.Add(delay)
		resp.Delay = durationpb.New(delay)
	}
	if _, err := s.topics.ensure(topicName, 1); err != nil {
		return nil, err
	}
	b, err := copyOf(m, compression, q, topicName, resp.GetReconsumeTimes(), due.UnixMilli(), req.GetCause())
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > s.cfg.SegmentBytes {
		return nil, fmt.Errorf("%w: the copy has %d bytes, a segment %d", rpcerr.ErrMessageTooLarge, len(b), s.cfg.SegmentBytes)
	}
	if err := s.store.HasRoom(len(b)); err != nil {
		return nil, fromStore(err)
	}
	u := state.NewUpdate()
	u.Require(localQueue(q))
	u.Put(sentBackSpace, key, mark)
	u.Schedule(due.UnixMilli(), b)
	stored := make(chan error, 1)
	// The caller may give up; until the outcome is known nobody else begins.
	locked = false
	state.ApplyAsync(u, func(err error) {
		unlock()
		s.scheduler.expect(due.UnixMilli()) // also after an error: it may be stored all the same
		stored <- err
	})
	select {
	case err = <-stored:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("store the copy: %w", fromStore(err))
	}
	s.metrics.sentBack.WithLabelValues(outcome).Inc()
	return resp, nil
}

// checkSendBack returns the queue and the delay asked for, -1 if none is.
func (s *Server) checkSendBack(req *tacitv1.SendBackRequest) (q allocate.Queue, delay time.Duration, err error) {
	if err := message.CheckGroup(req.GetGroup()); err != nil {
		return q, 0, err //nolint:wrapcheck // says all
	}
	if q, err = s.ownQueue(req.GetQueue()); err != nil {
		return q, 0, err
	}
	levels := delays()
	switch level := req.GetDelayLevel(); {
	case req.GetOffset() < 0:
		return q, 0, rpcerr.Invalid("offset", "%d: must be 0 or greater", req.GetOffset())
	case level < deadLetterLevel || int(level) > len(levels):
		return q, 0, rpcerr.Invalid("delay_level", "%d: must be %d to %d", level, deadLetterLevel, len(levels))
	case req.GetMaxReconsumeTimes() < 0:
		return q, 0, rpcerr.Invalid("max_reconsume_times", "%d: must be 0 or greater", req.GetMaxReconsumeTimes())
	case req.GetReconsumeTimes() < 0:
		return q, 0, rpcerr.Invalid("reconsume_times", "%d: must be 0 or greater", req.GetReconsumeTimes())
	case req.GetDelay() != nil:
		d := req.GetDelay().AsDuration()
		if err := req.GetDelay().CheckValid(); err != nil || d < 0 || d > maxDelay {
			return q, 0, rpcerr.Invalid("delay", "%v: must be 0 to %v", d, maxDelay)
		}
		return q, d, nil
	case level > 0:
		return q, levels[level-1], nil
	}
	return q, -1, nil
}

// readOne reads the message at an offset of the own log. It returns also how its
// batch is compressed.
func (s *Server) readOne(q store.Queue, offset int64) (*message.Message, batch.Compression, error) {
	var res store.Result
	defer res.Release()
	if err := s.store.Read(&res, q, offset, 1, nil); err != nil {
		return nil, 0, fmt.Errorf("read topic %q queue %d: %w", q.Topic, q.ID, fromStore(err))
	}
	for _, b := range res.Batches {
		h, err := batch.Parse(b)
		if err != nil {
			return nil, 0, fmt.Errorf("read topic %q queue %d offset %d: %w: %w", q.Topic, q.ID, offset, rpcerr.ErrDamaged, err)
		}
		if offset < h.Stamp.BaseOffset || offset >= h.NextOffset() {
			continue
		}
		m, err := findMessage(&h, q.Topic, offset)
		if err != nil {
			return nil, 0, fmt.Errorf("read topic %q queue %d offset %d: %w", q.Topic, q.ID, offset, err)
		}
		return m, h.Compression, nil
	}
	return nil, 0, fmt.Errorf("%w: topic %q queue %d has none at offset %d", rpcerr.ErrMessageNotFound, q.Topic, q.ID, offset)
}

func findMessage(h *batch.Header, topicName string, offset int64) (*message.Message, error) {
	var dec batch.Decoder
	it, err := dec.Open(h, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", rpcerr.ErrBadBatch, err)
	}
	var r batch.Record
	for {
		ok, err := it.Next(&r)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w: %w", rpcerr.ErrBadBatch, err)
		case !ok:
			return nil, rpcerr.ErrMessageNotFound
		case r.Offset == offset:
			m := new(message.Message)
			r.Fill(m, h, topicName, "")
			return m, nil
		}
	}
}

// copyOf encodes the copy of a message, which keeps where it came from first.
func copyOf(m *message.Message, compression batch.Compression, from allocate.Queue, to string, times int32, due int64, cause string) ([]byte, error) {
	c := *m
	c.ReconsumeTimes = times
	c.Properties = make(map[string]string, len(m.Properties)+4)
	maps.Copy(c.Properties, m.Properties)
	if _, ok := c.Properties[message.PropertyOriginTopic]; !ok {
		c.Properties[message.PropertyOriginTopic] = from.Topic
		c.Properties[message.PropertyOriginQueue] = from.Broker + "/" + strconv.Itoa(int(from.ID))
		c.Properties[message.PropertyOriginOffset] = strconv.FormatInt(m.Offset, 10)
	}
	if cause != "" {
		c.Properties[message.PropertyRetryReason] = strings.ToValidUTF8(cause[:min(len(cause), maxCause)], "")
	}
	enc := batch.Encoder{Compression: compression}
	enc.Append(&c)
	b, err := enc.Finish(nil, batch.Info{Topic: to, DueTime: due})
	if err != nil {
		return nil, fmt.Errorf("encode the copy: %w", err)
	}
	return b, nil
}

// sentBackKey orders by queue, group and offset, so that what is known of a topic,
// of the queues from one on, and of the messages before or from an offset on, is
// one range each. Names hold no NUL.
func sentBackKey(name string, q allocate.Queue, offset int64, attempt int32) string {
	k := []byte(sentBackFrom(name, localQueue(q), offset))
	return string(binary.BigEndian.AppendUint32(k, uint32(attempt)))
}

// sentBackFrom is where the attempts at messages from an offset on begin.
func sentBackFrom(name string, q store.Queue, offset int64) string {
	return string(binary.BigEndian.AppendUint64([]byte(sentBackPrefix(name, q)), uint64(offset)))
}

// sentBackEnd is behind all attempts of the group in q: offsets are not negative.
func sentBackEnd(name string, q store.Queue) string { return sentBackPrefix(name, q) + "\xff" }

func sentBackPrefix(name string, q store.Queue) string {
	k := append([]byte(q.Topic), 0)
	k = binary.BigEndian.AppendUint32(k, uint32(q.ID))
	return string(append(append(k, name...), 0))
}

// parseSentBack takes a key apart as far as the offset.
func parseSentBack(key string) (name string, q store.Queue, offset int64, ok bool) {
	topicName, rest, ok := strings.Cut(key, "\x00")
	if !ok || len(rest) < 4 {
		return "", q, 0, false
	}
	q = store.Queue{Topic: topicName, ID: int32(binary.BigEndian.Uint32([]byte(rest)))}
	name, rest, ok = strings.Cut(rest[4:], "\x00")
	if !ok || len(rest) != 12 {
		return "", q, 0, false
	}
	return name, q, int64(binary.BigEndian.Uint64([]byte(rest))), true
}

// forgetSentBack adds to u that nothing was sent back from the queues of a topic
// from one on: those of a later topic of this name begin at offset 0 again.
func forgetSentBack(u *store.Update, topicName string, from int32) {
	k := append([]byte(topicName), 0)
	u.DeleteRange(sentBackSpace, string(binary.BigEndian.AppendUint32(k, uint32(from))), topicName+"\x01")
}

// pruneSentBack forgets attempts that no member can repeat any more, because the
// group's progress is past the message, until ctx ends.
func (s *Server) pruneSentBack(ctx context.Context) error {
	for sleep(ctx, pruneInterval) {
		if err := s.pruneOnce(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrClosed) {
			s.log.Warn("old send-backs not forgotten", zap.Error(err))
		}
	}
	return nil
}

func (s *Server) pruneOnce(ctx context.Context) error {
	type progress struct {
		name  string
		queue store.Queue
	}
	state := s.store.State()
	lowest := make(map[progress]int64)
	err := state.Scan(sentBackSpace, "", func(key string, _ []byte) bool {
		if name, q, offset, ok := parseSentBack(key); ok {
			if _, known := lowest[progress{name, q}]; !known { // keys come in order
				lowest[progress{name, q}] = offset
			}
		}
		return true
	})
	if err != nil {
		return err //nolint:wrapcheck // the caller says what it was
	}
	u := state.NewUpdate()
	some := false
	for p, first := range lowest {
		// A range deletion costs every later read; make none for nothing.
		if offset, ok := state.Offset(p.name, p.queue); ok && first < offset {
			u.DeleteRange(sentBackSpace, sentBackPrefix(p.name, p.queue), sentBackFrom(p.name, p.queue, offset))
			some = true
		}
	}
	if !some {
		return nil
	}
	return state.Apply(ctx, u) //nolint:wrapcheck // the caller says what it was
}
