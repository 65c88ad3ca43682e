package store_test

import (
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/vfs"
)

// A clock that was set back between two runs, or within one, takes no store time
// back. Retention drops nothing early for it, and what is scheduled is neither early
// nor lost nor delivered twice.
func TestClockThatIsSetBackHarmsNothing(t *testing.T) {
	for _, killed := range []bool{false, true} {
		for _, within := range []bool{false, true} {
			name := "killed " + strconv.FormatBool(killed) + ", within a run " + strconv.FormatBool(within)
			t.Run(name, func(t *testing.T) { runClock(t, killed, within) })
		}
	}
}

func runClock(t *testing.T, killed, within bool) {
	const hour = int64(time.Hour / time.Millisecond)
	var clock atomic.Int64
	began := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC).UnixMilli()
	clock.Store(began)
	d, ev := memDisks(), &events{}
	o := d.options(ev)
	o.Now = func() time.Time { return time.UnixMilli(clock.Load()) }
	o.RetainAge = 30 * time.Minute
	s := open(t, "d", o)
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	for i := range 100 {
		clock.Add(1000)
		appendBodies(t, s, q, body(i, 1000))
	}
	last := clock.Load()
	epoch, err := s.State().NextEpoch(0)
	if err != nil {
		t.Fatal(err)
	}
	due := last + 60_000
	u := s.State().NewUpdate()
	id := u.Schedule(due, encode(t, batch.Info{Topic: "T"}, "delayed"))
	if err := s.State().Apply(ctx, u); err != nil {
		t.Fatal(err)
	}

	clock.Add(-hour)
	if !within {
		if killed {
			d.log = d.log.(*vfs.Mem).Kill()
			o.FS = d.log
		}
		closeStore(t, s)
		s = open(t, "d", o)
	}
	if next, err := s.State().NextEpoch(0); err != nil || next <= epoch {
		t.Fatalf("epoch %d after %d: %v", next, epoch, err)
	}
	for i := range 100 {
		clock.Add(1000)
		if a := appendBodies(t, s, q, body(100+i, 1000)); a.StoreTime < last {
			t.Fatalf("stored at %d, after %d", a.StoreTime, last)
		}
	}
	store.Retain(s)
	if lo, hi, _ := s.Bounds(q); lo != 0 || hi != 200 {
		t.Fatalf("holds %d to %d", lo, hi)
	}
	for _, c := range []struct{ at, want int64 }{{began, 0}, {began + 50_500, 50}, {last, 99}, {last + 1, 200}, {last - hour, 0}} {
		if got, err := s.SearchByTime(q, c.at); err != nil || got != c.want {
			t.Fatalf("%d ms after the beginning: offset %d, want %d: %v", c.at-began, got, c.want, err)
		}
	}
	if b, next, err := s.State().Due(clock.Load(), 10); err != nil || len(b) != 0 || next != due {
		t.Fatalf("due before its time: %v, next %d, %v", b, next, err)
	}

	clock.Store(due)
	for range 2 { // it is delivered once, though it is tried again
		b, _, err := s.State().Due(clock.Load(), 10)
		if err != nil || len(b) != 1 || b[0].ID != id {
			t.Fatalf("%v %v", b, err)
		}
		a, err := s.Append(ctx, store.Entry{Batch: b[0].Batch, Origin: id})
		if err != nil || a.Offset != 200 || a.StoreTime < due {
			t.Fatalf("%+v %v", a, err)
		}
	}
	u.Unschedule(id, due)
	if err := s.State().Apply(ctx, u); err != nil {
		t.Fatal(err)
	}

	clock.Store(last + hour/3)
	store.Retain(s)
	if lo, _, _ := s.Bounds(q); lo != 0 {
		t.Fatalf("begins at %d after 20 minutes of 30", lo)
	}
	clock.Store(last + hour)
	store.Retain(s)
	if lo, hi, _ := s.Bounds(q); lo != 201 || hi != 201 {
		t.Fatalf("holds %d to %d after an hour", lo, hi)
	}
	if bad := ev.of(store.Damaged); len(bad) > 0 {
		t.Fatalf("%+v", bad)
	}
	// Store times go on where they were, also when no message is left.
	clock.Store(last - hour)
	closeStore(t, s)
	s = open(t, "d", o)
	if a := appendBodies(t, s, q, "on"); a.Offset != 201 || a.StoreTime < due {
		t.Fatalf("%+v, the newest was stored at %d", a, due)
	}
	closeStore(t, s)
}
