package store_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/vfs"
)

// failState lets writes to the state fail while full is set.
func (d *disks) failState(full *atomic.Bool) {
	d.state = errorfs.Wrap(d.state, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return vfs.ErrFull
		}
		return nil
	}))
}

// A deletion that the state refuses changes nothing; repeated, it leaves nothing of
// the topic, also after a crash.
func TestDeletionThatFailsOnceLosesNothingLater(t *testing.T) {
	for _, lower := range []bool{false, true} {
		d, ev := memDisks(), &events{}
		var full atomic.Bool
		intact := d.state
		d.failState(&full)
		s := open(t, "d", d.options(ev))
		putTopic(t, s, "T", 2)
		q := store.Queue{Topic: "T", ID: 1}
		remove := func() error {
			if lower {
				return s.PutTopic(store.Topic{Name: "T", Queues: 1})
			}
			return s.DeleteTopic("T")
		}
		for i := range 10 {
			appendBodies(t, s, q, fmt.Sprint("old", i))
		}
		if err := s.State().CommitOffset(ctx, "G", q, 10); err != nil {
			t.Fatal(err)
		}
		full.Store(true)
		if err := remove(); !errors.Is(err, store.ErrNoSpace) {
			t.Fatal(err)
		}
		full.Store(false)
		store.Mend(s)
		if a := appendBodies(t, s, q, "old10"); a.Offset != 10 {
			t.Fatalf("offset %d after a deletion that failed", a.Offset)
		}
		if n := len(readAll(t, s, q, 0)); n != 11 {
			t.Fatalf("%d messages after a deletion that failed", n)
		}
		if err := remove(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Append(ctx, store.Entry{Batch: encode(t, batch.Info{Topic: "T", Queue: 1}, "x")}); !errors.Is(err, store.ErrNoQueue) {
			t.Fatal(err)
		}
		putTopic(t, s, "T", 2)
		want := []string{}
		for i := range 5 {
			want = append(want, fmt.Sprint("new", i))
			appendBodies(t, s, q, want[i])
		}
		if o, ok := s.State().Offset("G", q); ok {
			t.Fatalf("the group is at %d of the new topic", o)
		}
		d = disks{d.log.(*vfs.Mem).Kill(), intact}
		closeStore(t, s)
		s = open(t, "d", d.options(ev))
		wantBodies(t, readAll(t, s, q, 0), 0, want...)
		closeStore(t, s)
		if len(ev.of(store.Damaged))+len(ev.of(store.TopicFound)) > 0 {
			t.Fatalf("%+v", ev.all)
		}
	}
}

// An index that is written after a deletion that failed says nothing of it.
func TestDeletionThatFailedIsInNoIndex(t *testing.T) {
	d, ev := memDisks(), &events{}
	var full atomic.Bool
	intact := d.state
	d.failState(&full)
	s := open(t, "d", d.options(ev))
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	appendBodies(t, s, q, body(0, 1000))
	if err := s.State().CommitOffset(ctx, "G", q, 1); err != nil {
		t.Fatal(err)
	}
	full.Store(true)
	if err := s.DeleteTopic("T"); !errors.Is(err, store.ErrNoSpace) {
		t.Fatal(err)
	}
	for i := 1; i < 100; i++ { // the next segment is begun
		appendBodies(t, s, q, body(i, 1000))
	}
	store.Retain(s)
	d = disks{d.log.(*vfs.Mem).Kill(), intact}
	_ = s.Close() // the state cannot be written
	s = open(t, "d", d.options(ev))
	if n := len(readAll(t, s, q, 0)); n != 100 {
		t.Errorf("%d messages after a deletion that failed: %+v", n, ev.all)
	}
	if at, ok := s.State().Offset("G", q); !ok || at != 1 {
		t.Errorf("the group is at %d %v", at, ok)
	}
	closeStore(t, s)
}

// While a deletion is on its way to the disk, and after it, no commit for the
// topic is stored: it would count for a later topic of that name.
func TestCommitDoesNotOutliveTheDeletionOfItsTopic(t *testing.T) {
	d := memDisks()
	var slow atomic.Bool
	stuck, release := make(chan struct{}, 100), make(chan struct{})
	d.state = errorfs.Wrap(d.state, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if slow.Load() && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo) {
			stuck <- struct{}{}
			<-release
		}
		return nil
	}))
	s := open(t, "d", d.options(&events{}))
	defer closeStore(t, s)
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	appendBodies(t, s, q, "a", "b")
	slow.Store(true)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.DeleteTopic("T"); err != nil {
			t.Error(err)
		}
	})
	<-stuck
	late := make(chan error, 2)
	u := s.State().NewUpdate()
	u.CommitOffset("G", q, 2)
	s.State().ApplyAsync(u, func(err error) { late <- err })
	u.Require(q)
	u.Put("space", "key", nil)
	s.State().ApplyAsync(u, func(err error) { late <- err })
	slow.Store(false)
	close(release)
	wg.Wait()
	for range 2 {
		if err := <-late; !errors.Is(err, store.ErrNoQueue) {
			t.Fatal(err)
		}
	}
	if _, ok, _ := s.State().Get("space", "key"); ok {
		t.Fatal("stored about a queue that is no more")
	}
	putTopic(t, s, "T", 1)
	if o, ok := s.State().Offset("G", q); ok {
		t.Fatalf("the group is at %d of the new topic", o)
	}
	u.Require(q)
	u.CommitOffset("G", q, 0)
	if err := s.State().Apply(ctx, u); err != nil {
		t.Fatal(err)
	}
}

// A log that is not synced may lose what lay before the place of a deletion; what
// is written after the crash is not taken for what was deleted.
func TestMessagesAfterAPowerCutAreNotTakenForDeletedOnes(t *testing.T) {
	for seed := range seeds(t, 60) {
		d, ev := memDisks(), &events{}
		o := d.options(ev)
		o.Durability = []store.Durability{store.Interval, store.None}[seed%2]
		s := open(t, "d", o)
		putTopic(t, s, "T", 1)
		q := store.Queue{Topic: "T"}
		rng := rand.New(rand.NewPCG(uint64(seed), 8))
		for i := range rng.IntN(200) {
			appendBodies(t, s, q, body(i, 1000))
		}
		if err := s.DeleteTopic("T"); err != nil {
			t.Fatal(err)
		}
		putTopic(t, s, "T", 1)
		d = disks{d.log.(*vfs.Mem).PowerCut(rng), d.state}
		closeStore(t, s)
		s = open(t, "d", d.options(ev))
		var want []string
		first, _, err := s.Bounds(q)
		if err != nil || first != 0 && len(ev.of(store.OffsetsSkipped)) == 0 {
			t.Fatalf("seed %d: begins at %d: %v", seed, first, err)
		}
		for i := range 5 {
			want = append(want, fmt.Sprint("new", i))
			if a := appendBodies(t, s, q, want[i]); a.Offset != first+int64(i) {
				t.Fatalf("seed %d: offset %d", seed, a.Offset)
			}
		}
		for range 2 {
			wantBodies(t, readAll(t, s, q, first), first, want...)
			d = disks{d.log.(*vfs.Mem).PowerCut(rng), d.state}
			closeStore(t, s)
			s = open(t, "d", d.options(ev))
		}
		closeStore(t, s)
	}
}

// A topic that was deleted and made again after the copy of the state was made
// that the store is opened from begins where it did: the log itself shows it.
func TestTopicMadeAgainIsFoundInTheLogWithoutTheState(t *testing.T) {
	for _, messages := range []int{3, 300} { // in the same segment, in others
		for _, clean := range []bool{false, true} {
			d, ev := memDisks(), &events{}
			o := d.options(ev)
			s := open(t, "d", o)
			putTopic(t, s, "T", 2)
			q := store.Queue{Topic: "T"}
			for i := range messages {
				appendBodies(t, s, q, body(i, 500))
			}
			if err := s.State().CommitOffset(ctx, "G", q, int64(messages)); err != nil {
				t.Fatal(err)
			}
			closeStore(t, s) // makes a copy
			older := d.copies(t)[0]
			s = open(t, "d", o)
			if err := s.DeleteTopic("T"); err != nil {
				t.Fatal(err)
			}
			putTopic(t, s, "T", 2)
			var want []string
			for i := range messages + 2 {
				want = append(want, fmt.Sprint("new", body(i, 500)))
				appendBodies(t, s, q, want[i])
			}
			if !clean {
				d.log = d.log.(*vfs.Mem).Kill()
			}
			closeStore(t, s)
			d.keepOnly(t, older)
			for range 3 {
				s = open(t, "d", d.options(ev))
				wantBodies(t, readAll(t, s, q, 0), 0, want...)
				if at, ok := s.State().Offset("G", q); ok {
					t.Fatalf("the group is at %d of the new topic", at)
				}
				closeStore(t, s)
			}
			if len(ev.of(store.TopicFound)) != 1 || len(ev.of(store.Damaged)) > 0 {
				t.Fatalf("%+v", ev.all)
			}
		}
	}
}

// The index of a segment tells what was deleted while it was written, also if nothing
// else is left of that in the log.
func TestDeletionIsFoundInAnIndexWithoutTheState(t *testing.T) {
	for _, later := range []int{0, 5} { // messages of the topic that was made again
		d, ev := memDisks(), &events{}
		o := d.options(ev)
		s := open(t, "d", o)
		putTopic(t, s, "T", 1)
		putTopic(t, s, "U", 1)
		q, other := store.Queue{Topic: "T"}, store.Queue{Topic: "U"}
		appendBodies(t, s, q, "a", "b", "c")
		for _, q := range []store.Queue{q, other} {
			appendBodies(t, s, q, "x", "y", "z")
			if err := s.State().CommitOffset(ctx, "G", q, 3); err != nil {
				t.Fatal(err)
			}
		}
		closeStore(t, s)
		older := d.copies(t)[0]
		s = open(t, "d", o)
		if err := s.DeleteTopic("T"); err != nil {
			t.Fatal(err)
		}
		for i := range 80 { // the next segment is begun
			appendBodies(t, s, other, body(i, 1000))
		}
		store.Retain(s)
		putTopic(t, s, "T", 1)
		var want []string
		for i := range later {
			want = append(want, fmt.Sprint("new", i))
			appendBodies(t, s, q, want[i])
		}
		d.log = d.log.(*vfs.Mem).Kill()
		closeStore(t, s)
		d.keepOnly(t, older)
		for range 3 {
			s = open(t, "d", d.options(ev))
			wantBodies(t, readAll(t, s, q, 0), 0, want...)
			if at, ok := s.State().Offset("G", q); ok {
				t.Fatalf("the group is at %d of the new topic", at)
			}
			if at, ok := s.State().Offset("G", other); !ok || at != 3 {
				t.Fatalf("the group is at %d %v of the other topic", at, ok)
			}
			closeStore(t, s)
		}
		if len(ev.of(store.TopicFound)) != 1 || len(ev.of(store.Damaged)) > 0 {
			t.Fatalf("%+v", ev.all)
		}
	}
}

// What an index tells of a deletion forgets nothing of the topic made after it, up to
// when the segment and at last its index are dropped.
func TestDeletionInAnIndexForgetsNothingLater(t *testing.T) {
	d, ev := memDisks(), &events{}
	o := d.options(ev)
	o.RetainBytes = 100 << 10
	s := open(t, "d", o)
	putTopic(t, s, "T", 2)
	q := store.Queue{Topic: "T"}
	appendBodies(t, s, q, "old")
	if err := s.DeleteTopic("T"); err != nil {
		t.Fatal(err)
	}
	putTopic(t, s, "T", 2)
	for i := range 20 {
		for range 25 {
			appendBodies(t, s, q, body(i, 1000))
		}
		_, end, _ := s.Bounds(q)
		if err := s.State().CommitOffset(ctx, "G", q, end); err != nil {
			t.Fatal(err)
		}
		store.Retain(s)
		if i%2 == 0 {
			d.log = d.log.(*vfs.Mem).Kill()
		}
		closeStore(t, s)
		o.FS = d.log
		s = open(t, "d", o)
		if at, ok := s.State().Offset("G", q); !ok || at != end {
			t.Fatalf("round %d: the group is at %d %v, was at %d", i, at, ok, end)
		}
		if a, b, _ := s.Bounds(q); b != end || a > end {
			t.Fatalf("round %d: holds %d to %d, went to %d", i, a, b, end)
		}
	}
	closeStore(t, s)
	if len(ev.of(store.SegmentDropped)) < 3 || len(ev.of(store.TopicFound))+len(ev.of(store.Damaged)) > 0 {
		t.Fatalf("%+v", ev.all)
	}
}
