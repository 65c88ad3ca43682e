package broker

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

func sendBack(topic string, offset int64) *tacitv1.SendBackRequest {
	return &tacitv1.SendBackRequest{Group: "g", Queue: mq(topic, 0), Offset: offset, Delay: durationpb.New(0)}
}

// A copy for a retry is somewhat larger than its message, and without compression
// much larger than the batch that the message came in: it is delivered all the same.
func TestLargestMessagesAreRetried(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	limit := e.srv.cfg.MaxBatchBytes
	plain := message.Message{Body: make([]byte, limit-150)}
	packed := message.Message{Body: bytes.Repeat([]byte("compressible "), limit/10)}
	enc := batch.Encoder{Compression: batch.Zstd}
	enc.Append(&packed)
	b, err := enc.Finish(nil, batch.Info{Topic: "T"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.producer().try(b); err != nil {
		t.Fatal(err)
	}
	e.producer().send(batch.Info{Topic: "T"}, plain)
	for offset, want := range []message.Message{packed, plain} {
		req := sendBack("T", int64(offset))
		req.Cause = strings.Repeat("why ", 200)
		if resp, err := e.offset.SendBack(e.ctx(), req); err != nil || resp.GetDuplicate() {
			t.Fatal(resp, err)
		}
		if got := e.poll("%RETRY%g", 0, offset+1)[offset]; !bytes.Equal(got.Body, want.Body) {
			t.Fatalf("copy of %d bytes, want %d", len(got.Body), len(want.Body))
		}
	}
}

// However often the callers of a send-back give up and ask again while the disk is
// slow, one copy is made, and it comes without anything else happening.
func TestSendBackWhoseCallersGiveUpMakesOneCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, testConfig(t.TempDir()))
		defer e.stop()
		e.topic("T", 1)
		if _, err := e.srv.topics.ensure("%RETRY%g", 1); err != nil {
			t.Fatal(err)
		}
		e.fill(0, 1)
		state := e.srv.store.State()
		release := make(chan struct{})
		u := state.NewUpdate()
		u.Put("space", "key", nil)
		state.ApplyAsync(u, func(error) { <-release }) // the disk takes its time
		synctest.Wait()
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			if resp, err := e.srv.SendBack(ctx, sendBack("T", 0)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v %v", resp, err)
			}
			cancel()
		}
		close(release)
		time.Sleep(5 * time.Second)
		if _, high, err := e.srv.store.Bounds(localQueueOf("%RETRY%g", 0)); high != 1 || err != nil {
			t.Errorf("%d copies came, %v", high, err)
		}
		if due, _, err := state.Due(math.MaxInt64, 10); len(due) != 0 || err != nil {
			t.Errorf("%d copies are still scheduled, %v", len(due), err)
		}
		if resp, err := e.srv.SendBack(e.ctx(), sendBack("T", 0)); err != nil || !resp.GetDuplicate() {
			t.Errorf("%v %v", resp, err)
		}
	})
}

// After a reset backwards a message that fails again is retried again.
func TestResetLetsMessagesBeRetriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, testConfig(t.TempDir()))
		defer e.stop()
		e.topic("T", 1)
		e.fill(0, 10)
		q := mq("T", 0)
		m, g := e.hold(q)
		for round := range 2 {
			for _, offset := range []int64{2, 5} {
				req := sendBack("T", offset)
				req.Epoch = g.GetEpoch()
				if resp, err := e.offset.SendBack(e.ctx(), req); err != nil || resp.GetDuplicate() != (round == 1 && offset == 2) {
					t.Fatalf("round %d offset %d: %v %v", round, offset, resp, err)
				}
			}
			if round == 0 {
				m.release(g, 6)
				synctest.Wait()
				_, err := e.admin.ResetOffsets(e.ctx(), &tacitv1.ResetOffsetsRequest{Group: "g", Offsets: []*tacitv1.OffsetTarget{{Queue: q, Offset: 3}}})
				if err != nil {
					t.Fatal(err)
				}
				m.acquire(q)
				if g = m.granted(); g.GetOffset() != 3 {
					t.Fatalf("granted from %d", g.GetOffset())
				}
			}
		}
		e.poll("%RETRY%g", 0, 3)
	})
}

// What was sent back from queues is forgotten in the moment they go, so that a
// crash leaves nothing that a later topic would be taken for.
func TestSendBacksGoWithTheirQueues(t *testing.T) {
	cfg := testConfig(t.TempDir())
	for name, remove := range map[string]func(e *env) error{
		"topic deleted": func(e *env) error { return e.srv.topics.remove("T", false) },
		"queue removed": func(e *env) error {
			_, err := e.srv.topics.put(&topic{name: "T", read: 1, write: 1, readable: true, writable: true}, false, true)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.DataDir = t.TempDir()
			e := start(t, cfg)
			e.topic("T", 2)
			e.topic("T2", 2)
			req := sendBack("T", 0)
			req.Queue.QueueId = 1
			e.fill(1, 1)
			if _, err := e.offset.SendBack(e.ctx(), req); err != nil {
				t.Fatal(err)
			}
			e.producer().send(batch.Info{Topic: "T2"}, bodies("other")...)
			if _, err := e.offset.SendBack(e.ctx(), sendBack("T2", 0)); err != nil {
				t.Fatal(err)
			}
			if err := remove(e); err != nil {
				t.Fatal(err)
			}
			e.stop()
			e = start(t, cfg)
			e.topic("T", 2)
			e.fill(1, 1)
			if resp, err := e.offset.SendBack(e.ctx(), req); err != nil || resp.GetDuplicate() {
				t.Errorf("new message: %v %v", resp, err)
			}
			if resp, err := e.offset.SendBack(e.ctx(), sendBack("T2", 0)); err != nil || !resp.GetDuplicate() {
				t.Errorf("message of another topic: %v %v", resp, err)
			}
		})
	}
}

// Queues that the log has and an older copy of the state does not know are read,
// and no change deletes them unasked.
func TestQueuesThatAnOlderStateDoesNotKnowAreRead(t *testing.T) {
	cfg := testConfig(t.TempDir())
	e := start(t, cfg)
	e.topic("T", 2)
	e.stop()
	copies, err := filepath.Glob(cfg.DataDir + "/state-*")
	if err != nil || len(copies) == 0 {
		t.Fatal(copies, err)
	}
	older := copies[len(copies)-1]
	e = start(t, cfg)
	e.topic("T", 4)
	e.producer().send(batch.Info{Topic: "T", Queue: 3}, bodies("x", "y")...)
	e.stop()
	if copies, err = filepath.Glob(cfg.DataDir + "/state*"); err != nil {
		t.Fatal(err)
	}
	for _, c := range copies {
		if c != older {
			if err := os.RemoveAll(c); err != nil {
				t.Fatal(err)
			}
		}
	}
	cfg.AcceptStateLoss = true
	e = start(t, cfg)
	if got := texts(e.poll("T", 3, 2)); len(got) != 2 || got[0] != "x" {
		t.Errorf("%q", got)
	}
	if err := e.put("T", 3, 3, false); err == nil || !contains(err, "has 2 messages") && !contains(err, "may still be written") {
		t.Errorf("lowered: %v", err)
	}
	if _, high, err := e.srv.store.Bounds(localQueueOf("T", 3)); high != 2 || err != nil {
		t.Error(high, err)
	}
}

// A producer may have set any number of earlier attempts: the dead letter can be read.
func TestMessageWithEndlessAttemptsBecomesADeadLetter(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	e.producer().send(batch.Info{Topic: "T"}, message.Message{Body: []byte("x"), ReconsumeTimes: math.MaxInt32})
	resp, err := e.offset.SendBack(e.ctx(), sendBack("T", 0))
	if err != nil || !resp.GetDeadLetter() {
		t.Fatal(resp, err)
	}
	if m := e.poll("%DLQ%g", 0, 1)[0]; string(m.Body) != "x" {
		t.Errorf("%+v", m)
	}
}

// Delayed messages and copies are refused like others when the disk is full: they
// would take what is kept for offsets and leases.
func TestDelayedMessagesAreRefusedWhenTheDiskIsFull(t *testing.T) {
	cfg := testConfig(t.TempDir())
	e := start(t, cfg)
	e.topic("T", 1)
	e.fill(0, 1)
	e.stop()
	cfg.MinFreeBytes = 1 << 60 // more than any disk has
	e = start(t, cfg)
	later := time.Now().Add(time.Hour).UnixMilli()
	if r, err := e.producer().try(encodeBatch(t, batch.Info{Topic: "T", DueTime: later}, bodies("x")...)); !errors.Is(err, rpcerr.ErrDiskFull) {
		t.Errorf("%+v %v", r, err)
	}
	if resp, err := e.offset.SendBack(e.ctx(), sendBack("T", 0)); !errors.Is(rpcerr.FromError(err), rpcerr.ErrDiskFull) {
		t.Errorf("%v %v", resp, err)
	}
	if due, _, err := e.srv.store.State().Due(math.MaxInt64, 10); len(due) != 0 || err != nil {
		t.Errorf("%d are scheduled, %v", len(due), err)
	}
}

// A message is not kept longer than anything else waits.
func TestDueTimeTooFarAwayIsRefused(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	p := e.producer()
	for _, due := range []int64{math.MaxInt64, time.Now().Add(366 * 24 * time.Hour).UnixMilli()} {
		if _, err := p.try(encodeBatch(t, batch.Info{Topic: "T", DueTime: due}, bodies("x")...)); !errors.Is(err, rpcerr.ErrInvalidArgument) {
			t.Errorf("due %d: %v", due, err)
		}
	}
}
