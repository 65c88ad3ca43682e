package consumer

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/route"
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
