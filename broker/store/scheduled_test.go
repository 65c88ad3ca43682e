package store_test

import (
	"math"
	"strings"
	"testing"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
)

// What is due may be large, and all of it at once more than there is memory.
func TestDueBatchesAreBoundedInBytes(t *testing.T) {
	o := memDisks().options(&events{})
	o.SegmentBytes, o.MaxBatchBytes = 16<<20, 8<<20
	s := open(t, "d", o)
	defer closeStore(t, s)
	putTopic(t, s, "T", 1)
	st := s.State()
	b := encode(t, batch.Info{Topic: "T"}, strings.Repeat("x", 5<<20))
	for i := range 10 {
		u := st.NewUpdate()
		u.Schedule(int64(i), b)
		if err := st.Apply(ctx, u); err != nil {
			t.Fatal(err)
		}
	}
	for left := 10; left > 0; {
		due, next, err := st.Due(math.MaxInt64, 256)
		if err != nil || len(due) == 0 || len(due) > 4 || len(due) < left && next != due[len(due)-1].Due+1 {
			t.Fatalf("%d batches, next %d, %v", len(due), next, err)
		}
		left -= len(due)
		u := st.NewUpdate()
		for _, d := range due {
			u.Unschedule(d.ID, d.Due)
		}
		if err := st.Apply(ctx, u); err != nil {
			t.Fatal(err)
		}
	}
}

// A batch that was accepted when it was scheduled is stored when it is due, also
// if the limit was lowered meanwhile.
func TestScheduledBatchMayBeLargerThanTheLimit(t *testing.T) {
	s := open(t, "d", memDisks().options(&events{}))
	defer closeStore(t, s)
	putTopic(t, s, "T", 1)
	b := encode(t, batch.Info{Topic: "T"}, body(0, 40<<10))
	if _, err := s.Append(ctx, store.Entry{Batch: b}); err == nil {
		t.Fatal("the limit is not below the batch")
	}
	if _, err := s.Append(ctx, store.Entry{Batch: b, Origin: 1}); err != nil {
		t.Fatal(err)
	}
	wantBodies(t, readAll(t, s, store.Queue{Topic: "T"}, 0), 0, body(0, 40<<10))
}
