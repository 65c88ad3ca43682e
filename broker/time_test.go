package broker

import (
	"fmt"
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
		m2.hello(hello("g", "c2", 2, "T"))
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
		if got := e.poll("%DLQ%g", 0, 1)[0]; got.ReconsumeTimes != 16 {
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

func TestScheduledMessagesSurviveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t.TempDir())
		e := start(t, cfg)
		e.topic("T", 4)
		p := e.producer()
		due := time.Now().Add(time.Hour).UnixMilli()
		var want []string
		for i := range 20 {
			body := fmt.Sprintf("m%02d", i)
			want = append(want, body)
			p.send(batch.Info{Topic: "T", Queue: 3, DueTime: due}, bodies(body)...)
		}
		p.send(batch.Info{Topic: "T", Queue: 0, DueTime: due + 1}, bodies("other")...)
		e.stop()
		e = start(t, cfg)
		defer e.stop()
		// The queue they were meant for goes away while they wait: they come by another.
		if err := e.put("T", 4, 2, false); err != nil {
			t.Fatal(err)
		}
		if err := e.put("T", 2, 2, true); err != nil {
			t.Fatal(err)
		}
		got := texts(e.poll("T", 1, 20))
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("got %q", got)
		}
		if got := texts(e.poll("T", 0, 1)); !slices.Equal(got, []string{"other"}) {
			t.Errorf("got %q", got)
		}
		if now := time.Now().UnixMilli(); now < due || now > due+1000 {
			t.Errorf("delivered at %d, due at %d", now, due)
		}
	})
}

func TestScheduledMessageIsDeliveredOnceAndNotEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, testConfig(t.TempDir()))
		defer e.stop()
		e.topic("T", 1)
		p := e.producer()
		due := time.Now().Add(90 * time.Second).UnixMilli()
		info := batch.Info{Topic: "T", DueTime: due, ProducerID: 3, BaseSequence: 1}
		if r := p.send(info, bodies("later", "too")...); r.BaseOffset != -1 || r.Duplicate {
			t.Errorf("scheduled: %+v", r)
		}
		if r := p.send(info, bodies("later", "too")...); !r.Duplicate {
			t.Errorf("repeated: %+v", r)
		}
		p.send(batch.Info{Topic: "T"}, bodies("now")...)
		p.send(batch.Info{Topic: "T", DueTime: 1}, bodies("past")...)
		got := e.poll("T", 0, 4)
		if want := []string{"now", "past", "later", "too"}; !slices.Equal(texts(got), want) {
			t.Fatalf("got %q, want %q", texts(got), want)
		}
		if at := got[2].StoreTime.UnixMilli(); at < due || at != due {
			t.Errorf("due at %d, delivered at %d", due, at)
		}
		// A repeat that comes after the delivery is noticed by the log.
		if r := p.send(info, bodies("later", "too")...); !r.Duplicate || r.BaseOffset != 2 {
			t.Errorf("repeated after delivery: %+v", r)
		}
	})
}
