//go:build e2e && unix

package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/producer"
)

// place is where a message is stored.
type place struct {
	queue  allocate.Queue
	offset int64
}

// body returns the body of message id, which can be checked without any memory
// of it.
func body(id uint64) []byte {
	chance := rand.New(rand.NewPCG(id, 7))
	b := binary.BigEndian.AppendUint64(nil, id)
	for range chance.IntN(200) {
		b = binary.LittleEndian.AppendUint64(b, chance.Uint64())
	}
	return b
}

// parseBody returns the id of a message, or why it is none of ours.
func parseBody(b []byte) (uint64, error) {
	if len(b) < 8 {
		return 0, fmt.Errorf("body of %d bytes", len(b))
	}
	id := binary.BigEndian.Uint64(b)
	if !bytes.Equal(b, body(id)) {
		return 0, fmt.Errorf("body of message %d is not what was sent", id)
	}
	return id, nil
}

// load sends messages for as long as it is wanted and remembers what was
// acknowledged.
type load struct {
	topic string

	mu       sync.Mutex
	acked    map[uint64]place
	repeats  int       // found stored when they were sent again
	last     time.Time // of the last acknowledgement
	failures []error
	allowed  int       // to be acknowledged, 0: as many as there are
	more     sync.Cond // on mu: allowed or acked have changed
}

// allow bounds what is acknowledged, about, until it is called again: a test that
// reads everything must not fall behind for ever.
func (l *load) allow(most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.allowed = most
	l.more.Broadcast()
}

// await waits until more may be sent, or ctx ends.
func (l *load) await(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.allowed > 0 && len(l.acked) >= l.allowed && ctx.Err() == nil {
		l.more.Wait()
	}
}

func newLoad(topic string) *load {
	l := &load{topic: topic}
	l.more.L = &l.mu
	return l
}

// produce sends up to most messages with ids from first on, until ctx ends,
// waits for their end and closes the producer.
func (l *load) produce(ctx context.Context, names []string, first uint64, most int, opts ...producer.Option) error {
	p, err := producer.New(names, opts...)
	if err != nil {
		return fmt.Errorf("make producer: %w", err)
	}
	defer context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.more.Broadcast()
	})()
	window := make(chan struct{}, 512)
	for id := first; id < first+uint64(most); id++ {
		l.await(ctx)
		select {
		case <-ctx.Done():
		case window <- struct{}{}:
		}
		if ctx.Err() != nil {
			break
		}
		m := &message.Message{Topic: l.topic, Keys: []string{strconv.FormatUint(id, 10)}, Body: body(id)}
		p.SendAsync(ctx, m, func(r producer.Result) {
			l.note(id, r)
			<-window
		})
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), flowLimit)
	defer cancel()
	return errors.Join(p.Flush(end), p.Close(end))
}

func (l *load) note(id uint64, r producer.Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Err != nil {
		if !errors.Is(r.Err, context.Canceled) {
			l.failures = append(l.failures, fmt.Errorf("send message %d: %w", id, r.Err))
		}
		return
	}
	if l.acked == nil {
		l.acked = make(map[uint64]place)
	}
	l.acked[id] = place{r.Queue, r.Offset}
	l.last = time.Now()
	if r.Duplicate {
		l.repeats++
	}
}

// count returns how many are acknowledged, and when the last one was.
func (l *load) count() (int, time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked), l.last
}

// snapshot returns what is acknowledged now.
func (l *load) snapshot() map[uint64]place {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.acked)
}

// check fails the test for messages that could not be sent.
func (l *load) check(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.failures); n > 0 {
		t.Errorf("%d messages could not be sent, the first: %v", n, l.failures[0])
	}
}

// shelf is what was read of a log.
type shelf struct {
	t     *testing.T
	at    map[place]uint64
	times map[uint64]int // how often each id is stored
	next  map[allocate.Queue]int64
}

func newShelf(t *testing.T) *shelf {
	return &shelf{t: t, at: make(map[place]uint64), times: make(map[uint64]int), next: make(map[allocate.Queue]int64)}
}

// read reads queues from where it was until done says so.
func (s *shelf) read(names []string, queues []allocate.Queue, done func() (bool, string)) {
	t := s.t
	t.Helper()
	c, err := consumer.NewLitePull(names, "shelf", consumer.WithAutoCommit(false), consumer.WithPollMessages(5000))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), stopLimit)
		defer cancel()
		if err := c.Close(end); err != nil {
			t.Errorf("close reader: %v", err)
		}
	}()
	if err := c.Assign(queues...); err != nil {
		t.Fatal(err)
	}
	for _, q := range queues {
		if err := c.Seek(q, s.next[q]); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), flowLimit)
	defer cancel()
	for {
		ok, state := done()
		if ok {
			return
		}
		msgs, err := c.Poll(ctx)
		if err != nil {
			t.Fatalf("read the log: %v; %s", err, state)
		}
		for _, m := range msgs {
			s.put(m)
		}
	}
}

func (s *shelf) put(m *message.Message) {
	s.t.Helper()
	id, err := parseBody(m.Body)
	if err != nil {
		s.t.Errorf("%v/%d: %v", m.Queue, m.Offset, err)
		return
	}
	if m.Key() != strconv.FormatUint(id, 10) {
		s.t.Errorf("%v/%d: key %q of message %d", m.Queue, m.Offset, m.Key(), id)
	}
	p := place{m.Queue, m.Offset}
	if _, twice := s.at[p]; twice {
		s.t.Errorf("%v/%d was read twice", m.Queue, m.Offset)
	}
	s.at[p] = id
	s.times[id]++
	s.next[m.Queue] = max(s.next[m.Queue], m.Offset+1)
}

// missing returns which of the messages are not where they were acknowledged.
func (s *shelf) missing(acked map[uint64]place) (out []uint64) {
	for id, p := range acked {
		if got, ok := s.at[p]; !ok || got != id {
			out = append(out, id)
		}
	}
	return out
}

// ends returns for each queue the offset after the last one acknowledged.
func ends(acked map[uint64]place) map[allocate.Queue]int64 {
	out := make(map[allocate.Queue]int64)
	for _, p := range acked {
		out[p.queue] = max(out[p.queue], p.offset+1)
	}
	return out
}

// reached is a condition of read: every queue was read up to there.
func (s *shelf) reached(ends map[allocate.Queue]int64) func() (bool, string) {
	return func() (bool, string) {
		for q, end := range ends {
			if s.next[q] < end {
				return false, fmt.Sprintf("%v read to %d of %d", q, s.next[q], end)
			}
		}
		return true, ""
	}
}

func queuesOf(topic, broker string, n int32) []allocate.Queue {
	var out []allocate.Queue
	for id := range n {
		out = append(out, allocate.Queue{Topic: topic, Broker: broker, ID: id})
	}
	return out
}
