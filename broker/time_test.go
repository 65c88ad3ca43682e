package broker

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tacitmq/tacit/internal/batch"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// A silent member keeps its queues for its session timeout and no longer.
func TestSilentMemberLosesItsQueuesAfterItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, testConfig(t.TempDir()))
		defer e.stop()
		e.topic("T", 1)
		m1 := e.openSession(e.conn)
		h := hello("g", "c1", 1, "T")
		h.SessionTimeout = durationpb.New(10 * time.Second)
		m1.hello(h)
		m1.acquire(mq("T", 0))
		m1.granted()
		silent := time.Now()
		m2 := e.openSession(e.conn)
		h = hello("g", "c2", 2, "T")
		h.SessionTimeout = durationpb.New(time.Minute)
		m2.hello(h)
		m2.acquire(mq("T", 0))
		m2.granted()
		if took := time.Since(silent); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("granted after %v, the session timeout is 10s", took)
		}
	})
}

// Attempts come after RocketMQ's delay levels, 3 to 18, and the 17th is a dead letter.
func TestRetriesComeAfterTheDelayLevels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t.TempDir())
		e := start(t, cfg)
		defer e.stop()
		e.topic("T", 1)
		e.producer().send(batch.Info{Topic: "T"}, bodies("poison")...)
		queue, offset := mq("T", 0), int64(0)
		var waits []time.Duration
		for {
			sent := time.Now()
			resp, err := e.offset.SendBack(e.ctx(), &tacitv1.SendBackRequest{Group: "g", Queue: queue, Offset: offset})
			if err != nil {
				t.Fatal(err)
			}
			if resp.GetDeadLetter() {
				break
			}
			n := len(waits) + 1
			all := e.poll("%RETRY%g", 0, n)
			waits = append(waits, time.Since(sent).Round(100*time.Millisecond))
			queue, offset = mq("%RETRY%g", 0), all[n-1].Offset
		}
		d := delays()
		if !slices.Equal(waits, d[2:]) {
			t.Errorf("waited %v, want %v", waits, d[2:])
		}
		if got := e.poll("%DLQ%g", 0, 1)[0]; got.ReconsumeTimes != 17 {
			t.Errorf("dead letter %+v", got)
		}
	})
}

// Long polls end at their time, to the millisecond, and leave nothing behind.
func TestPollsEndAtTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, testConfig(t.TempDir()))
		defer e.stop()
		e.topic("T", 8)
		f := e.fetcher()
		begun := time.Now()
		want := make(map[uint64]time.Duration)
		for q := range int32(8) {
			wait := time.Duration(8-q) * time.Second
			id := f.ask(fetchOf(q, int32(wait.Milliseconds())))
			want[id] = wait
		}
		for range 8 {
			r := f.next()
			if took := time.Since(begun); took != want[r.ID] || r.Error != nil {
				t.Errorf("poll of %v ended after %v: %v", want[r.ID], took, dataErr(r.Error))
			}
		}
	})
}
