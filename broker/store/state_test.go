package store_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	pebblefs "github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tacitmq/tacit/broker/store"
)

func TestStateIsThereAfterReopening(t *testing.T) {
	d, ev := memDisks(), &events{}
	o := d.options(ev)
	o.Now = func() time.Time { return time.UnixMilli(1000) }
	s := open(t, "d", o)
	if err := s.PutTopic(store.Topic{Name: "T", Queues: 3, Config: []byte("cfg")}); err != nil {
		t.Fatal(err)
	}
	q := store.Queue{Topic: "T", ID: 2}
	for range 5 {
		appendBodies(t, s, q, "x")
	}
	lease := store.Lease{Group: "G", Queue: q, EpochBroker: 3, EpochCounter: 4, Holder: "c1", Incarnation: [2]uint64{5, 6}, Timeout: 7 * time.Second}
	u := s.State().NewUpdate()
	u.CommitOffset("G", q, 4)
	u.CommitOffset("H", q, 5)
	u.PutLease(lease)
	u.PutLease(store.Lease{Group: "H", Queue: q})
	for _, k := range []string{"a", "ab", "ac", "b", ""} {
		u.Put("space", k, []byte("v"+k))
		u.Put("space2", k, []byte("w"+k))
	}
	u.Delete("space", "b")
	u.DeleteRange("space2", "ab", "b")
	if err := s.State().Apply(ctx, u); err != nil {
		t.Fatal(err)
	}
	u.DeleteGroup("H")
	if err := s.State().Apply(ctx, u); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		st := s.State()
		if o, ok := st.Offset("G", q); !ok || o != 4 {
			t.Fatal(o, ok)
		}
		if got := st.Groups(); fmt.Sprint(got) != "[G]" {
			t.Fatal(got)
		}
		if got := st.Offsets("G"); len(got) != 1 || got[q] != 4 {
			t.Fatal(got)
		}
		if got := st.Leases(); len(got) != 1 || got[0] != lease {
			t.Fatal(got)
		}
		if got := s.Topics(); len(got) != 1 || got[0].Queues != 3 || string(got[0].Config) != "cfg" {
			t.Fatal(got)
		}
		var keys []string
		for space, prefix := range map[string]string{"space": "a", "space2": ""} {
			if err := st.Scan(space, prefix, func(k string, v []byte) bool { keys = append(keys, k+"="+string(v)); return true }); err != nil {
				t.Fatal(err)
			}
		}
		if len(keys) != 3+3 {
			t.Fatal(keys)
		}
		if _, ok, err := st.Get("space", "b"); ok || err != nil {
			t.Fatal(ok, err)
		}
		if e, err := st.NextEpoch(0); err != nil || e != 1000+uint64(i) {
			t.Fatal(e, err)
		}
		closeStore(t, s)
		s = open(t, "d", o)
	}
	if e, err := s.State().NextEpoch(5000); err != nil || e != 5001 {
		t.Fatal(e, err)
	}
	closeStore(t, s)
}

// Rule: an offset that no message of the queue can have is refused and changes
// nothing.
func TestF_OFF_08_NonsenseOffsetsAreRefused(t *testing.T) {
	s := open(t, "d", memDisks().options(&events{}))
	defer closeStore(t, s)
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	for range 10 {
		appendBodies(t, s, q, "x")
	}
	st := s.State()
	if err := st.CommitOffset(ctx, "G", q, 5); err != nil {
		t.Fatal(err)
	}
	for _, o := range []int64{-1, -1 << 63, 11, 1_000_010, 1<<63 - 1} {
		for _, set := range []func(u *store.Update){
			func(u *store.Update) { u.CommitOffset("G", q, o) },
			func(u *store.Update) { u.ResetOffset("G", q, o) },
		} {
			u := st.NewUpdate()
			u.Put("s", "k", []byte("not stored either"))
			set(u)
			if err := st.Apply(ctx, u); !errors.Is(err, store.ErrOffsetRange) {
				t.Fatalf("%d: %v", o, err)
			}
		}
	}
	if o, _ := st.Offset("G", q); o != 5 {
		t.Fatal(o)
	}
	if _, ok, _ := st.Get("s", "k"); ok {
		t.Fatal("half of a refused update was stored")
	}
	if err := st.CommitOffset(ctx, "G", store.Queue{Topic: "T", ID: 1}, 0); !errors.Is(err, store.ErrNoQueue) {
		t.Fatal(err)
	}
}

// Rule: commits that overtake each other never take the stored offset back, also
// when they were read in between and the power is cut.
func TestF_OFF_09_ConcurrentCommitsNeverGoBack(t *testing.T) {
	d, ev := memDisks(), &events{}
	s := open(t, "d", d.options(ev))
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	const n = 2000
	var bodies []string
	for i := range n {
		bodies = append(bodies, strconv.Itoa(i))
	}
	for i := 0; i < n; i += 500 {
		appendBodies(t, s, q, bodies[i:i+500]...)
	}
	st := s.State()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	var seen int64
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if o, ok := st.Offset("G", q); ok {
				if o < seen {
					t.Errorf("went back from %d to %d", seen, o)
				}
				seen = o
			}
		}
	})
	var commits sync.WaitGroup
	for g := range 8 {
		commits.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 0))
			for range 250 {
				if err := st.CommitOffset(ctx, "G", q, rng.Int64N(n)); err != nil {
					t.Error(err)
				}
			}
			if err := st.CommitOffset(ctx, "G", q, int64(n-g)); err != nil {
				t.Error(err)
			}
		})
	}
	commits.Wait()
	close(stop)
	wg.Wait()
	after := disks{d.log, d.state.(*pebblefs.MemFS).CrashClone(pebblefs.CrashCloneCfg{})}
	if o, _ := st.Offset("G", q); o != n {
		t.Fatal(o)
	}
	closeStore(t, s)
	s = open(t, "d", after.options(ev))
	if o, _ := s.State().Offset("G", q); o != n || o < seen {
		t.Fatal(o)
	}
	u := s.State().NewUpdate()
	u.ResetOffset("G", q, 3)
	if err := s.State().Apply(ctx, u); err != nil {
		t.Fatal(err)
	}
	if o, _ := s.State().Offset("G", q); o != 3 {
		t.Fatal(o)
	}
	closeStore(t, s)
}

func TestLoweringTheQueueCountDeletesQueues(t *testing.T) {
	d, ev := memDisks(), &events{}
	s := open(t, "d", d.options(ev))
	putTopic(t, s, "T", 4)
	for id := range int32(4) {
		q := store.Queue{Topic: "T", ID: id}
		appendBodies(t, s, q, "old")
		if err := s.State().CommitOffset(ctx, "G", q, 1); err != nil {
			t.Fatal(err)
		}
	}
	putTopic(t, s, "T", 2)
	putTopic(t, s, "T", 3)
	check := func() {
		t.Helper()
		infos := s.Snapshot()
		if len(infos) != 3 || infos[1].Max != 1 || infos[2].Max != 0 {
			t.Fatalf("%+v", infos)
		}
		if got := s.State().Offsets("G"); len(got) != 2 {
			t.Fatal(got)
		}
	}
	check()
	closeStore(t, s)
	s = open(t, "d", d.options(ev))
	check()
	closeStore(t, s)
}

func TestCopiesOfTheStateAreMadeAndOldOnesRemoved(t *testing.T) {
	d, ev := memDisks(), &events{}
	o := d.options(ev)
	copies := func() (n int) {
		names, err := d.state.List("d")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if len(name) > len("state-") && name[:6] == "state-" {
				n++
			}
		}
		return n
	}
	for i := range 4 {
		s := open(t, "d", o)
		putTopic(t, s, "T"+strconv.Itoa(i), 1)
		closeStore(t, s)
		if got := copies(); got != min(i+1, 2) {
			t.Fatalf("%d copies after %d stops", got, i+1)
		}
	}
}
