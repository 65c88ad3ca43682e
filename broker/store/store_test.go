package store_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/vfs"
	"github.com/tacitmq/tacit/message"
)

var ctx = context.Background()

func TestMessagesAreThereAfterReopening(t *testing.T) {
	d, ev := memDisks(), &events{}
	s := open(t, "d", d.options(ev))
	putTopic(t, s, "T", 2)
	q0, q1 := store.Queue{Topic: "T", ID: 0}, store.Queue{Topic: "T", ID: 1}
	var want []string
	for i := range 500 { // several segments
		want = append(want, body(i, 500))
		if a := appendBodies(t, s, q0, want[i]); a.Offset != int64(i) {
			t.Fatalf("offset %d, want %d", a.Offset, i)
		}
	}
	appendBodies(t, s, q1, "x", "y")
	for range 3 {
		wantBodies(t, readAll(t, s, q0, 0), 0, want...)
		wantBodies(t, readAll(t, s, q0, 123), 123, want[123:]...)
		wantBodies(t, readAll(t, s, q1, 0), 0, "x", "y")
		wantBodies(t, readAll(t, s, q1, 1), 1, "y")
		closeStore(t, s)
		s = open(t, "d", d.options(ev))
	}
	if a := appendBodies(t, s, q0, "more"); a.Offset != 500 {
		t.Fatalf("offset %d after reopening", a.Offset)
	}
	closeStore(t, s)
	if len(ev.all) > 0 {
		t.Fatalf("reports: %+v", ev.all)
	}
}

func TestDirectoryInUseIsRefusedByName(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, store.Options{})
	defer closeStore(t, s)
	_, err := store.Open(dir, store.Options{})
	if !errors.Is(err, store.ErrInUse) || !contains(err, dir) {
		t.Fatalf("%v", err)
	}
}

func contains(err error, part string) bool {
	return err != nil && len(part) > 0 && strings.Contains(err.Error(), part)
}

func TestRepeatedSequenceGetsTheFirstOffset(t *testing.T) {
	d, ev := memDisks(), &events{}
	s := open(t, "d", d.options(ev))
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	send := func(epoch uint32, seq uint64) (store.Appended, error) {
		return s.Append(ctx, store.Entry{Batch: encode(t, batch.Info{Topic: "T", ProducerID: 7, ProducerEpoch: epoch, BaseSequence: seq}, "a", "b")})
	}
	for i := range uint64(10) {
		if a, err := send(1, 2*i); err != nil || a.Duplicate || a.Offset != int64(2*i) {
			t.Fatalf("%+v %v", a, err)
		}
	}
	check := func() {
		t.Helper()
		if a, err := send(1, 8); err != nil || !a.Duplicate || a.Offset != 8 {
			t.Fatalf("%+v %v", a, err)
		}
		if _, err := send(0, 8); !errors.Is(err, store.ErrFenced) {
			t.Fatalf("old epoch: %v", err)
		}
		if _, err := send(1, 9); !errors.Is(err, store.ErrBadBatch) {
			t.Fatalf("overlap: %v", err)
		}
		if n := len(readAll(t, s, q, 0)); n != 20 {
			t.Fatalf("%d messages", n)
		}
	}
	check()
	closeStore(t, s)
	s = open(t, "d", d.options(ev))
	check()
	// A crash instead of a clean stop: the window comes from the batches.
	after := disks{d.log.(*vfs.Mem).Kill(), d.state}
	closeStore(t, s)
	s = open(t, "d", after.options(ev))
	check()
	for i := range 100 { // seal some segments: the window comes from the index
		appendBodies(t, s, q, body(i, 3000))
	}
	closeStore(t, s)
	s = open(t, "d", after.options(ev))
	if a, err := send(1, 8); err != nil || !a.Duplicate || a.Offset != 8 {
		t.Fatalf("%+v %v", a, err)
	}
	if a, err := send(2, 0); err != nil || a.Duplicate {
		t.Fatalf("new epoch: %+v %v", a, err)
	}
	closeStore(t, s)
}

func TestSequenceOlderThanTheWindowIsRefused(t *testing.T) {
	s := open(t, "d", memDisks().options(&events{}))
	defer closeStore(t, s)
	putTopic(t, s, "T", 1)
	send := func(seq uint64) error {
		_, err := s.Append(ctx, store.Entry{Batch: encode(t, batch.Info{Topic: "T", ProducerID: 7, BaseSequence: seq}, "a")})
		return err
	}
	for i := range uint64(200) {
		if err := send(i); err != nil {
			t.Fatal(err)
		}
	}
	if err := send(5); !errors.Is(err, store.ErrSequenceExpired) {
		t.Fatal(err)
	}
}

func TestScheduledBatchIsAppendedOnce(t *testing.T) {
	d, ev := memDisks(), &events{}
	s := open(t, "d", d.options(ev))
	putTopic(t, s, "T", 1)
	st := s.State()
	u := st.NewUpdate()
	u.Schedule(2000, encode(t, batch.Info{Topic: "T"}, "later"))
	u.Schedule(1000, encode(t, batch.Info{Topic: "T"}, "sooner"))
	u.Schedule(3000, encode(t, batch.Info{Topic: "T"}, "last"))
	if err := st.Apply(ctx, u); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	s = open(t, "d", d.options(ev))
	st = s.State()
	due, next, err := st.Due(2500, 10)
	if err != nil || len(due) != 2 || due[0].Due != 1000 || next != 3000 {
		t.Fatalf("%+v %d %v", due, next, err)
	}
	for range 2 { // as if the broker died between append and removal
		for i, b := range due {
			a, err := s.Append(ctx, store.Entry{Batch: b.Batch, Origin: b.ID})
			if err != nil || a.Offset != int64(i) {
				t.Fatalf("%+v %v", a, err)
			}
		}
		closeStore(t, s)
		s = open(t, "d", d.options(ev))
		st = s.State()
	}
	wantBodies(t, readAll(t, s, store.Queue{Topic: "T"}, 0), 0, "sooner", "later")
	for _, b := range due {
		u.Unschedule(b.ID, b.Due)
	}
	if err := st.Apply(ctx, u); err != nil {
		t.Fatal(err)
	}
	if due, next, _ := st.Due(2500, 10); len(due) != 0 || next != 3000 {
		t.Fatalf("%+v %d", due, next)
	}
	if id := st.NewUpdate().Schedule(1, nil); id <= 3 {
		t.Fatalf("id %d given out again", id)
	}
	closeStore(t, s)
}

func TestReadGivesWhatTheFilterMayMatch(t *testing.T) {
	s := open(t, "d", memDisks().options(&events{}))
	defer closeStore(t, s)
	putTopic(t, s, "T", 1)
	for i := range 300 {
		tag := []string{"a", "b", ""}[i%3]
		b := encodeMessages(t, batch.Info{Topic: "T"}, message.Message{Tag: tag, Body: []byte(body(i, 700))})
		if _, err := s.Append(ctx, store.Entry{Batch: b}); err != nil {
			t.Fatal(err)
		}
	}
	got := readAll(t, s, store.Queue{Topic: "T"}, 0, batch.Hash("b"))
	if len(got) != 100 {
		t.Fatalf("%d messages", len(got))
	}
	for o := range got {
		if o%3 != 1 {
			t.Fatalf("offset %d", o)
		}
	}
}

func TestOneReadIsBoundedButNeverEmpty(t *testing.T) {
	s := open(t, "d", memDisks().options(&events{}))
	defer closeStore(t, s)
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	for i := range 10 {
		appendBodies(t, s, q, body(i, 1000))
	}
	var res store.Result
	defer res.Release()
	for _, c := range []struct{ max, batches int }{{0, 1}, {1, 1}, {3500, 3}, {1 << 20, 10}} {
		if err := s.Read(&res, q, 0, c.max, nil); err != nil || len(res.Batches) != c.batches || res.Next != int64(c.batches) || res.Max != 10 {
			t.Fatalf("max %d: %d batches, next %d, %v", c.max, len(res.Batches), res.Next, err)
		}
	}
	for _, o := range []int64{-1, 11} {
		if err := s.Read(&res, q, o, 100, nil); !errors.Is(err, store.ErrOffsetRange) || res.Max != 10 {
			t.Fatalf("offset %d: %v", o, err)
		}
	}
	if err := s.Read(&res, q, 10, 100, nil); err != nil || len(res.Batches) != 0 || res.Next != 10 {
		t.Fatalf("at the end: %v", err)
	}
	if err := s.Read(&res, store.Queue{Topic: "none"}, 0, 100, nil); !errors.Is(err, store.ErrNoQueue) {
		t.Fatal(err)
	}
}

func TestSearchByTimeFindsTheFirstBatchStoredThen(t *testing.T) {
	d, ev := memDisks(), &events{}
	o := d.options(ev)
	var now atomic.Int64 // the store's own goroutines ask too
	o.Now = func() time.Time { return time.UnixMilli(now.Load()) }
	s := open(t, "d", o)
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	for i := range 200 {
		now.Store(1000 + int64(i)*10)
		if i == 100 {
			now.Store(5) // a clock set back does not take store times back
		}
		appendBodies(t, s, q, body(i, 1000))
	}
	check := func() {
		t.Helper()
		for _, c := range []struct{ at, want int64 }{{0, 0}, {1000, 0}, {1001, 1}, {1505, 51}, {1990, 99}, {1991, 101}, {2990, 199}, {2991, 200}} {
			if got, err := s.SearchByTime(q, c.at); err != nil || got != c.want {
				t.Errorf("time %d: %d, want %d (%v)", c.at, got, c.want, err)
			}
		}
	}
	check()
	closeStore(t, s)
	s = open(t, "d", o)
	defer closeStore(t, s)
	check()
}

func TestLookupFindsMessagesByKey(t *testing.T) {
	d, ev := memDisks(), &events{}
	s := open(t, "d", d.options(ev))
	putTopic(t, s, "T", 2)
	putTopic(t, s, "U", 1)
	for i := range 300 {
		b := encodeMessages(t, batch.Info{Topic: "T", Queue: int32(i % 2)}, message.Message{Keys: []string{body(i%100, 3), "all"}, Body: []byte(body(i, 800))})
		if _, err := s.Append(ctx, store.Entry{Batch: b}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		locs, err := s.LookupKey("T", batch.Hash("042"), 10)
		if err != nil || len(locs) != 3 || locs[0].Offset != 121 || locs[2].Offset != 21 {
			t.Fatalf("%+v %v", locs, err)
		}
		if locs, err := s.LookupKey("T", batch.Hash("all"), 50); err != nil || len(locs) != 50 {
			t.Fatalf("%d %v", len(locs), err)
		}
		if locs, err := s.LookupKey("U", batch.Hash("042"), 10); err != nil || len(locs) != 0 {
			t.Fatalf("%+v %v", locs, err)
		}
		closeStore(t, s)
		s = open(t, "d", d.options(ev))
	}
	closeStore(t, s)
}

func TestBadBatchesAreRefused(t *testing.T) {
	s := open(t, "d", memDisks().options(&events{}))
	defer closeStore(t, s)
	putTopic(t, s, "T", 1)
	good := encode(t, batch.Info{Topic: "T"}, "x")
	flipped := append([]byte(nil), good...)
	flipped[len(flipped)-1] ^= 1
	for name, b := range map[string][]byte{
		"empty":     nil,
		"short":     good[:50],
		"trailing":  append(append([]byte(nil), good...), 0),
		"damaged":   flipped,
		"too large": encode(t, batch.Info{Topic: "T"}, body(1, 17<<10)),
	} {
		if _, err := s.Append(ctx, store.Entry{Batch: b}); !errors.Is(err, store.ErrBadBatch) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.Append(ctx, store.Entry{Batch: encode(t, batch.Info{Topic: "T", Queue: 1}, "x")}); !errors.Is(err, store.ErrNoQueue) {
		t.Error(err)
	}
	if lo, hi, err := s.Bounds(store.Queue{Topic: "T"}); lo != 0 || hi != 0 || err != nil {
		t.Error(lo, hi, err)
	}
}

func TestIntervalAndNoneKeepEverythingWhenTheProcessIsKilled(t *testing.T) {
	for _, dur := range []store.Durability{store.Interval, store.None} {
		d, ev := memDisks(), &events{}
		o := d.options(ev)
		o.Durability, o.SyncInterval = dur, time.Millisecond
		s := open(t, "d", o)
		putTopic(t, s, "T", 1)
		var want []string
		for i := range 300 {
			want = append(want, body(i, 400))
			appendBodies(t, s, store.Queue{Topic: "T"}, want[i])
		}
		killed := disks{d.log.(*vfs.Mem).Kill(), d.state}
		closeStore(t, s)
		o.FS = killed.log
		s = open(t, "d", o)
		wantBodies(t, readAll(t, s, store.Queue{Topic: "T"}, 0), 0, want...)
		closeStore(t, s)
		if bad := append(ev.of(store.Damaged), ev.of(store.TornTail)...); len(bad) > 0 {
			t.Fatalf("%+v", bad)
		}
	}
}

// Without sync a power cut loses messages. Offsets that were committed are still
// never given to other messages.
func TestOffsetsAreNotUsedAgainAfterALossOfMessages(t *testing.T) {
	d, ev := memDisks(), &events{}
	o := d.options(ev)
	o.Durability = store.None
	s := open(t, "d", o)
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	for i := range 20 {
		appendBodies(t, s, q, body(i, 100))
	}
	if err := s.State().CommitOffset(ctx, "G", q, 15); err != nil {
		t.Fatal(err)
	}
	cut := disks{d.log.(*vfs.Mem).PowerCut(rand.New(rand.NewPCG(2, 2))), d.state}
	closeStore(t, s)
	o.FS = cut.log
	s = open(t, "d", o)
	defer closeStore(t, s)
	_, end, err := s.Bounds(q)
	if err != nil || end < 15 {
		t.Fatal(end, err)
	}
	if a := appendBodies(t, s, q, "new"); a.Offset != end {
		t.Fatalf("offset %d, want %d", a.Offset, end)
	}
	if got := readAll(t, s, q, 15); got[end] != "new" {
		t.Fatal(got)
	}
	if end == 15 && len(ev.of(store.Damaged)) == 0 {
		t.Fatal("the loss was not reported")
	}
}
