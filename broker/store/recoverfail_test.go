package store_test

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	pebblefs "github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/vfs"
)

var errGone = errors.New("input/output error")

// failAfter makes every call on the log's disk but reads fail from the n-th on, as
// it is when a machine goes down in the middle of something.
func failAfter(d disks, n int64) disks {
	var left atomic.Int64
	left.Store(n)
	return disks{state: d.state, log: &vfs.Inject{FS: d.log, Fail: func(op vfs.Op, _ string) (int, error) {
		if op == vfs.OpRead || op == vfs.OpOpen || left.Add(-1) >= 0 {
			return 0, nil
		}
		return 0, errGone
	}}}
}

// Recovery itself is cut off, by a disk that fails after some calls and then by the
// power, again and again: what was acknowledged is there when it succeeds.
func TestRecoveryThatWasCutOffLosesNothing(t *testing.T) {
	all := 0
	for seed := range seeds(t, 60) {
		rng := rand.New(rand.NewPCG(uint64(seed), 11))
		d, ev := memDisks(), &events{}
		s := open(t, "d", d.options(ev))
		putTopic(t, s, "T", 1)
		q := store.Queue{Topic: "T"}
		var want []string
		for i := range 20 + rng.IntN(300) {
			want = append(want, body(i, 100+rng.IntN(900)))
			appendBodies(t, s, q, want[i])
		}
		committed := int64(rng.IntN(len(want)))
		if err := s.State().CommitOffset(ctx, "G", q, committed); err != nil {
			t.Fatal(err)
		}
		// More is under way when the power goes.
		for i := range rng.IntN(30) {
			s.AppendAsync(ctx, store.Entry{Batch: encode(t, batch.Info{Topic: "T"}, body(i, 800))}, func(store.Appended, error) {})
		}
		next := cut(d, rng)
		closeStore(t, s)
		d = next
		failed := 0
		for range 6 {
			s, err := store.Open("d", failAfter(d, rng.Int64N(12)).options(ev))
			if err != nil {
				failed++
			} else {
				_ = s.Close() // some of it fails
			}
			if rng.IntN(2) == 0 {
				d = cut(d, rng)
			}
		}
		all += failed
		s = open(t, "d", d.options(ev))
		got := readAll(t, s, q, 0)
		for i, b := range want {
			if got[int64(i)] != b {
				t.Fatalf("seed %d: offset %d is %.20q, want %.20q; %d attempts failed: %+v", seed, i, got[int64(i)], b, failed, ev.all)
			}
		}
		if o, _ := s.State().Offset("G", q); o != committed {
			t.Fatalf("seed %d: the offset is %d, want %d: %+v", seed, o, committed, ev.all)
		}
		if a := appendBodies(t, s, q, "on"); a.Offset < int64(len(got)) {
			t.Fatalf("seed %d: offset %d again", seed, a.Offset)
		}
		closeStore(t, s)
		if bad := ev.of(store.Damaged); len(bad) > 0 {
			t.Fatalf("seed %d: %+v", seed, bad)
		}
	}
	if all == 0 {
		t.Fatal("no recovery failed")
	}
	t.Logf("%d recoveries failed", all)
}

// cut is what both disks hold after a power cut now.
func cut(d disks, rng *rand.Rand) disks {
	return disks{
		d.log.(*vfs.Mem).PowerCut(rng),
		d.state.(*pebblefs.MemFS).CrashClone(pebblefs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng}),
	}
}

// After a failed sync the system may say that all is well and have nothing on disk:
// what was answered with an error is not shown, not found later, and in nobody's way.
func TestFailedSyncIsNeverTakenForSuccess(t *testing.T) {
	for _, restart := range []bool{false, true} {
		d, ev := memDisks(), &events{}
		mem := d.log.(*vfs.Mem)
		var fail atomic.Bool
		d.log = &vfs.Inject{FS: mem, Fail: func(op vfs.Op, name string) (int, error) {
			if op == vfs.OpSync && strings.HasSuffix(name, ".log") && fail.Load() {
				return 0, errGone
			}
			return 0, nil
		}}
		s := open(t, "d", d.options(ev))
		putTopic(t, s, "T", 1)
		q := store.Queue{Topic: "T"}
		appendBodies(t, s, q, "a")
		fail.Store(true)
		for range 3 {
			if _, err := s.Append(ctx, store.Entry{Batch: encode(t, batch.Info{Topic: "T"}, "b")}); !errors.Is(err, errGone) {
				t.Fatal(err)
			}
			wantBodies(t, readAll(t, s, q, 0), 0, "a")
		}
		fail.Store(false)
		if restart {
			closeStore(t, s)
			s = open(t, "d", d.options(ev))
		}
		appendBodies(t, s, q, "c")
		wantBodies(t, readAll(t, s, q, 0), 0, "a", "c")
		after := disks{mem.PowerCut(rand.New(rand.NewPCG(1, 12))), d.state}
		closeStore(t, s)
		s = open(t, "d", after.options(ev))
		wantBodies(t, readAll(t, s, q, 0), 0, "a", "c")
		closeStore(t, s)
		if bad := append(ev.of(store.Damaged), ev.of(store.TornTail)...); len(bad) > 0 {
			t.Fatalf("%+v", bad)
		}
	}
}
