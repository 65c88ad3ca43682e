package consumer

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/route"
	"github.com/tacitmq/tacit/session"
)

// A failing message is warned of, with where it is, why and when it comes again; a flood of them is not written out.
func TestHandlerFailureIsWarnedOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.WarnLevel)
		f := newFake(t)
		f.topic(1, "a")
		f.fill(queue("a", 0), 1)
		fail := func(*message.Message) error { return RetryAfter(7*time.Second, errors.New("no luck")) }
		m := runPush(t, f, "c1", handle(fail), WithLogger(zap.New(core)))
		time.Sleep(time.Second)
		of := logs.FilterMessageSnippet("handler failed").TakeAll()
		if len(of) != 1 {
			t.Fatalf("%d warnings", len(of))
		}
		got := of[0].ContextMap()
		if got["topic"] != "T" || got["queue"] != int32(0) || got["offset"] != int64(0) || got["reason"] != "no luck" || got["again_in"] != 7*time.Second {
			t.Errorf("warned with %v", got)
		}
		f.fill(queue("a", 0), 500)
		time.Sleep(2 * time.Second)
		f.fill(queue("a", 0), 1)
		time.Sleep(time.Second)
		of = logs.FilterMessageSnippet("handler failed").TakeAll()
		if n := len(of); n > 3*maxWarnings || of[n-1].ContextMap()["failures_not_logged"] == nil {
			t.Errorf("%d warnings of 501 failures, the last with %v", n, of[n-1].ContextMap())
		}
		m.stop()
	})
}

// A topic that does not exist is said once, makes the member not ready, and is waited for.
func TestMissingTopicIsSaidAndWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		f := newFake(t)
		f.topics["T"] = route.Topic{Name: "T"}
		m := runPush(t, f, "c1", handle(func(*message.Message) error { return nil }), WithLogger(zap.New(core)))
		time.Sleep(time.Minute)
		if n := logs.FilterMessageSnippet("does not exist").Len(); n != 1 {
			t.Errorf("%d warnings", n)
		}
		if err := m.Ready(); !errors.Is(err, ErrTopicNotFound) || !strings.Contains(err.Error(), `"T"`) {
			t.Errorf("ready: %v", err)
		}
		f.topic(2, "a")
		time.Sleep(time.Minute)
		if err := m.Ready(); err != nil || len(m.Stats().Queues) != 2 || logs.FilterMessageSnippet("exists now").Len() != 1 {
			t.Errorf("once it exists: %v, %d queues", err, len(m.Stats().Queues))
		}
		m.stop()
	})
}

// A topic that is deleted takes all its queues: that is one line, not one for each.
func TestQueuesLostTogetherAreSaidInOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.WarnLevel)
		f := newFake(t)
		f.topic(6, "a", "b")
		m := runPush(t, f, "c1", handle(func(*message.Message) error { return nil }), WithLogger(zap.New(core)))
		time.Sleep(time.Minute)
		f.mu.Lock()
		for q, l := range f.leases {
			if q.Topic == "T" {
				f.say(f.members[l.holder].sessions[q.Broker], session.LeaseLost{Leases: []session.Owned{{Queue: q, Epoch: l.epoch}}})
				delete(f.leases, q)
			}
		}
		f.mu.Unlock()
		time.Sleep(time.Minute)
		lost := logs.FilterMessageSnippet("lost").All()
		if len(lost) != 1 {
			t.Fatalf("%d lines: %v", len(lost), lost)
		}
		got := lost[0].ContextMap()
		names, _ := got["queues"].([]any)
		if causes, _ := got["causes"].([]any); got["topic"] != "T" || got["count"] != int64(12) || len(causes) == 0 || len(names) != maxLost {
			t.Errorf("said %v", got)
		}
		m.stop()
	})
}

// A queue that stands still for a reason that does not pass says so, once, and when it is over.
func TestQueueThatCannotBeReadIsWarnedOfOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		f := newFake(t)
		f.topic(1, "a")
		f.fill(queue("a", 0), 1)
		until := time.Now().Add(time.Minute)
		f.setFailing(func(what string, _ allocate.Queue) error {
			if what == "fetch" && time.Now().Before(until) {
				return rpcerr.ErrNotReadable
			}
			return nil
		})
		m := runPush(t, f, "c1", handle(func(*message.Message) error { return nil }), WithLogger(zap.New(core)))
		time.Sleep(2 * time.Minute)
		warned := logs.FilterMessageSnippet("queue cannot be read").TakeAll()
		if len(warned) != 1 || warned[0].Level != zap.WarnLevel || warned[0].ContextMap()["queue"] != int32(0) {
			t.Errorf("warned %d times: %v", len(warned), warned)
		}
		if n := logs.FilterMessageSnippet("queue is read again").Len(); n != 1 {
			t.Errorf("said %d times that it is over", n)
		}
		m.stop()
	})
}

// A batch that cannot be decoded holds its queue up, with an error and a count; what lies before it is handed out.
func TestBatchThatCannotBeDecodedIsSaidAndNotSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.WarnLevel)
		reg := prometheus.NewRegistry()
		f := newFake(t)
		f.topic(1, "a")
		q := queue("a", 0)
		f.fill(q, 10)
		f.mu.Lock()
		bad := f.queue(q).batches[5]
		bad[len(bad)-1] ^= 1
		f.mu.Unlock()
		var got seen
		m := runPush(t, f, "c1", handle(func(m *message.Message) error { got.add(m); return nil }), WithLogger(zap.New(core)), WithRegisterer(reg))
		time.Sleep(time.Minute)
		if n := len(got.list()); n != 5 {
			t.Errorf("%d messages came, want those before the bad one: 5", n)
		}
		said := logs.FilterMessageSnippet("cannot be decoded").TakeAll()
		if len(said) != 1 || said[0].Level != zap.ErrorLevel || said[0].ContextMap()["offset"] != int64(5) {
			t.Errorf("said %d times: %v", len(said), said)
		}
		if v := gathered(t, reg, "tacit_consumer_undecodable_batches_total"); v != 1 {
			t.Errorf("counted %v", v)
		}
		f.mu.Lock()
		bad[len(bad)-1] ^= 1
		f.mu.Unlock()
		time.Sleep(10 * time.Second)
		if n := len(got.list()); n != 10 {
			t.Errorf("%d messages came once it is well, want 10", n)
		}
		m.stop()
	})
}

// gathered returns the value of a counter without labels of its own.
func gathered(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return -1
}
