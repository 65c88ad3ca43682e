package store_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/vfs"
	"github.com/tacitmq/tacit/message"
)

func TestRetentionDropsWholeSegmentsAndRecyclesTheirFiles(t *testing.T) {
	d, ev := memDisks(), &events{}
	mem := d.log.(*vfs.Mem)
	o := d.options(ev)
	o.RetainBytes = 200 << 10
	var now atomic.Int64 // milliseconds; the store's own goroutines ask too
	now.Store(1_000_000)
	o.Now = func() time.Time { return time.UnixMilli(now.Load()) }
	s := open(t, "d", o)
	putTopic(t, s, "T", 2)
	q, idle := store.Queue{Topic: "T"}, store.Queue{Topic: "T", ID: 1}
	appendBodies(t, s, idle, "a", "b", "c")
	var want []string
	for i := range 2000 {
		want = append(want, body(i, 900))
		appendBodies(t, s, q, want[i])
	}
	store.Retain(s)
	lo, hi, err := s.Bounds(q)
	if err != nil || hi != 2000 || lo < 1700 || lo > 1950 {
		t.Fatal(lo, hi, err)
	}
	wantBodies(t, readAll(t, s, q, lo), lo, want[lo:]...)
	var res store.Result
	if err := s.Read(&res, q, 0, 100, nil); !errors.Is(err, store.ErrOffsetRange) || res.Min != lo {
		t.Fatal(err)
	}
	if lo, hi, _ := s.Bounds(idle); lo != 3 || hi != 3 {
		t.Fatalf("idle queue holds %d to %d", lo, hi)
	}
	names, _ := mem.List("d/log")
	if len(names) > 20 {
		t.Fatalf("files left: %v", names)
	}
	// Everything becomes too old, and is gone; offsets go on all the same.
	closeStore(t, s)
	o.RetainAge = time.Minute
	s = open(t, "d", o)
	now.Add(time.Hour.Milliseconds())
	store.Retain(s)
	for range 3 {
		for q, end := range map[store.Queue]int64{q: 2000, idle: 3} {
			if lo, hi, _ := s.Bounds(q); lo != end || hi != end {
				t.Fatalf("%v holds %d to %d", q, lo, hi)
			}
		}
		closeStore(t, s)
		s = open(t, "d", o)
	}
	if a := appendBodies(t, s, idle, "d"); a.Offset != 3 {
		t.Fatalf("offset %d", a.Offset)
	}
	closeStore(t, s)
	if bad := ev.of(store.Damaged); len(bad) > 0 {
		t.Fatalf("%+v", bad)
	}
}

// Recycled files hold batches of their earlier life: none may come back.
func TestRecycledSegmentsDoNotBringOldMessagesBack(t *testing.T) {
	for seed := range seeds(t, 60) {
		rng := rand.New(rand.NewPCG(uint64(seed), 8))
		d, ev := memDisks(), &events{}
		retain := func(o *store.Options) { o.RetainBytes = 100 << 10 }
		o := d.options(ev)
		retain(&o)
		s := open(t, "d", o)
		putTopic(t, s, "T", 1)
		q := store.Queue{Topic: "T"}
		want := []string{}
		for range 4 {
			for range rng.IntN(400) {
				b := body(len(want), 200+rng.IntN(1200))
				appendBodies(t, s, q, b)
				want = append(want, b)
				if rng.IntN(50) == 0 {
					store.Retain(s)
				}
			}
			d = disks{d.log.(*vfs.Mem).PowerCut(rng), d.state}
			closeStore(t, s)
			o = d.options(ev)
			retain(&o)
			s = open(t, "d", o)
			store.Retain(s)
			lo, hi, err := s.Bounds(q)
			if err != nil || hi != int64(len(want)) {
				t.Fatalf("seed %d: %d to %d, want end %d (%v)", seed, lo, hi, len(want), err)
			}
			wantBodies(t, readAll(t, s, q, lo), lo, want[lo:]...)
		}
		closeStore(t, s)
		if bad := ev.of(store.Damaged); len(bad) > 0 {
			t.Fatalf("seed %d: %+v", seed, bad)
		}
	}
}

// Rule: a topic created again under an old name starts afresh: no message, offset
// or lease of the old one is left.
func TestF_OFF_07_RecreatedTopicStartsAfresh(t *testing.T) {
	d, ev := memDisks(), &events{}
	s := open(t, "d", d.options(ev))
	q := store.Queue{Topic: "T"}
	for round := range 4 {
		putTopic(t, s, "T", 1)
		if _, ok := s.State().Offset("G", q); ok || len(s.State().Leases()) > 0 {
			t.Fatal("an offset or lease was left")
		}
		if lo, hi, _ := s.Bounds(q); lo != 0 || hi != 0 {
			t.Fatalf("round %d: holds %d to %d", round, lo, hi)
		}
		n := 50 + 100*round
		for i := range n {
			appendBodies(t, s, q, fmt.Sprint(round, i, body(i, 500)))
		}
		u := s.State().NewUpdate()
		u.CommitOffset("G", q, int64(n))
		u.PutLease(store.Lease{Group: "G", Queue: q, EpochBroker: 1, Holder: "c"})
		if err := s.State().Apply(ctx, u); err != nil {
			t.Fatal(err)
		}
		if round%2 == 0 {
			d = disks{d.log.(*vfs.Mem).Kill(), d.state}
		}
		closeStore(t, s)
		s = open(t, "d", d.options(ev))
		if got := readAll(t, s, q, 0); len(got) != n || got[0] != fmt.Sprint(round, 0, body(0, 500)) {
			t.Fatalf("round %d: %d messages, first %.10q", round, len(got), got[0])
		}
		if err := s.DeleteTopic("T"); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Bounds(q); !errors.Is(err, store.ErrNoQueue) {
			t.Fatal(err)
		}
		closeStore(t, s)
		s = open(t, "d", d.options(ev))
		if got := s.Topics(); len(got) != 0 {
			t.Fatalf("round %d: %v is back", round, got)
		}
	}
	closeStore(t, s)
	if len(ev.of(store.Damaged))+len(ev.of(store.TornTail))+len(ev.of(store.TopicFound)) > 0 {
		t.Fatalf("%+v", ev.all)
	}
}

// Batches that claim to hold very many messages make offsets run far ahead.
func TestFarAdvancedOffsetsDoNotConfuseTheIndex(t *testing.T) {
	d, ev := memDisks(), &events{}
	o := d.options(ev)
	o.SegmentBytes, o.MaxBatchBytes = 64<<20, 1<<20
	s := open(t, "d", o)
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	enc := batch.Encoder{Compression: batch.Zstd}
	for range batch.MaxCount {
		enc.Append(&message.Message{})
	}
	big, err := enc.Finish(nil, batch.Info{Topic: "T"})
	if err != nil || len(big) > 10_000 {
		t.Fatal(len(big), err)
	}
	const n = 70_000 // 4.6e9 messages
	var wg sync.WaitGroup
	for range n {
		wg.Add(1)
		s.AppendAsync(ctx, store.Entry{Batch: big}, func(_ store.Appended, err error) {
			if err != nil {
				t.Error(err)
			}
			wg.Done()
		})
	}
	wg.Wait()
	for range 2 {
		if _, end, err := s.Bounds(q); err != nil || end != n*batch.MaxCount {
			t.Fatal(end, err)
		}
		var res store.Result
		for _, i := range []int64{0, 1, 32_767, 32_768, 32_769, 65_535, 65_536, 65_537, n - 1} {
			if err := s.Read(&res, q, i*batch.MaxCount+5, 0, nil); err != nil || len(res.Batches) != 1 {
				t.Fatal(i, err)
			}
			if h, err := batch.Parse(res.Batches[0]); err != nil || h.Stamp.BaseOffset != i*batch.MaxCount {
				t.Fatalf("batch %d begins at %d (%v)", i, h.Stamp.BaseOffset, err)
			}
		}
		res.Release()
		closeStore(t, s)
		s = open(t, "d", o)
	}
	closeStore(t, s)
}

// The log may be thrown away while the state is kept; what is written then is new.
func TestLogThrownAwayDoesNotBuryNewMessages(t *testing.T) {
	d, ev := memDisks(), &events{}
	s := open(t, "d", d.options(ev))
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	for i := range 300 {
		appendBodies(t, s, q, body(i, 900))
	}
	if err := s.DeleteTopic("T"); err != nil {
		t.Fatal(err)
	}
	putTopic(t, s, "T", 1)
	closeStore(t, s)
	d.log = vfs.NewMem()
	for range 2 {
		s = open(t, "d", d.options(ev))
		if a := appendBodies(t, s, q, "new"); a.Duplicate {
			t.Fatal(a)
		}
		closeStore(t, s)
	}
	s = open(t, "d", d.options(ev))
	lo, _, err := s.Bounds(q)
	if err != nil {
		t.Fatal(err)
	}
	wantBodies(t, readAll(t, s, q, lo), lo, "new", "new")
	closeStore(t, s)
}

// Retention counts no segment twice while the next one is begun.
func TestRetentionWhileASegmentIsBegunDropsNoMoreThanItMust(t *testing.T) {
	d, ev := memDisks(), &events{}
	var s *store.Store
	var begun atomic.Bool
	d.log = &vfs.Inject{FS: d.log, Fail: func(op vfs.Op, name string) (int, error) {
		if op == vfs.OpWrite && strings.HasSuffix(name, "0000000003.log") && !begun.Swap(true) {
			store.Retain(s)
		}
		return 0, nil
	}}
	o := d.options(ev)
	o.RetainBytes = 100 << 10
	s = open(t, "d", o)
	putTopic(t, s, "T", 1)
	for i := range 130 { // 64 KiB are in a segment
		appendBodies(t, s, store.Queue{Topic: "T"}, body(i, 1000))
	}
	if n := len(ev.of(store.SegmentDropped)); !begun.Load() || n != 1 {
		t.Errorf("%d segments were dropped", n)
	}
	closeStore(t, s)
}
