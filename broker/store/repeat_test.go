package store_test

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/vfs"
)

func TestRestartRemembersTheRepeatsOfManyProducers(t *testing.T) {
	const producers, batches = 700, 64
	d, ev := memDisks(), &events{}
	o := d.options(ev)
	o.SegmentBytes = 64 << 20
	s := open(t, "d", o)
	putTopic(t, s, "T", 1)
	entry := func(p, seq uint64) store.Entry {
		return store.Entry{Batch: encode(t, batch.Info{Topic: "T", ProducerID: p + 1, BaseSequence: seq}, "x")}
	}
	var wg sync.WaitGroup
	for p := range uint64(producers) {
		for seq := range uint64(batches) {
			wg.Add(1)
			s.AppendAsync(ctx, entry(p, seq), func(_ store.Appended, err error) {
				defer wg.Done()
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	closeStore(t, s)
	s = open(t, "d", o)
	for p := range uint64(producers) {
		for _, seq := range []uint64{0, batches - 1} {
			if a, err := s.Append(ctx, entry(p, seq)); err != nil || !a.Duplicate {
				t.Fatalf("producer %d sequence %d: %+v %v", p, seq, a, err)
			}
		}
	}
	closeStore(t, s)
}

// A group of many batches of one producer that cannot be written leaves the window
// as it was: what is repeated is noticed, what is new is stored.
func TestFailedGroupLeavesTheProducersWindowAsItWas(t *testing.T) {
	for name, failing := range map[string]struct {
		epoch uint32
		first uint64
	}{"same epoch": {1, 10}, "next epoch": {2, 0}} {
		t.Run(name, func(t *testing.T) {
			d := memDisks()
			var bad atomic.Bool
			var gate sync.Mutex
			waits := make(chan struct{}, 1)
			d.log = &vfs.Inject{FS: d.log, Fail: func(op vfs.Op, name string) (int, error) {
				if op != vfs.OpWrite || !strings.HasSuffix(name, ".log") {
					return 0, nil
				}
				if !gate.TryLock() {
					waits <- struct{}{}
					gate.Lock()
				}
				gate.Unlock()
				if bad.Load() {
					return 0, vfs.ErrFull
				}
				return 0, nil
			}}
			s := open(t, "d", d.options(&events{}))
			putTopic(t, s, "T", 2)
			entry := func(epoch uint32, seq uint64) store.Entry {
				return store.Entry{Batch: encode(t, batch.Info{Topic: "T", ProducerID: 7, ProducerEpoch: epoch, BaseSequence: seq}, "x")}
			}
			for seq := range uint64(10) {
				if _, err := s.Append(ctx, entry(1, seq)); err != nil {
					t.Fatal(err)
				}
			}
			// While one is being written the others gather for the next group.
			gate.Lock()
			var wg sync.WaitGroup
			wg.Add(1)
			s.AppendAsync(ctx, store.Entry{Batch: encode(t, batch.Info{Topic: "T", Queue: 1}, "x")}, func(store.Appended, error) { wg.Done() })
			<-waits
			for seq := range uint64(70) {
				wg.Add(1)
				s.AppendAsync(ctx, entry(failing.epoch, failing.first+seq), func(_ store.Appended, err error) {
					defer wg.Done()
					if !errors.Is(err, store.ErrNoSpace) {
						t.Error(err)
					}
				})
			}
			bad.Store(true)
			gate.Unlock()
			wg.Wait()
			bad.Store(false)

			for seq := range uint64(10) {
				if a, err := s.Append(ctx, entry(1, seq)); err != nil || !a.Duplicate || a.Offset != int64(seq) {
					t.Fatalf("repeat of %d: %+v %v", seq, a, err)
				}
			}
			for seq := range uint64(70) {
				if a, err := s.Append(ctx, entry(failing.epoch, failing.first+seq)); err != nil || a.Duplicate || a.Offset != int64(10+seq) {
					t.Fatalf("%d: %+v %v", failing.first+seq, a, err)
				}
			}
			closeStore(t, s)
		})
	}
}

// A batch with a low sequence that comes late, as a delayed one does, hides
// nothing: what was forgotten before it is not stored again.
func TestLateLowSequenceDoesNotHideForgottenOnes(t *testing.T) {
	s := open(t, "d", memDisks().options(&events{}))
	defer closeStore(t, s)
	putTopic(t, s, "T", 1)
	send := func(seq uint64) (store.Appended, error) {
		return s.Append(ctx, store.Entry{Batch: encode(t, batch.Info{Topic: "T", ProducerID: 7, BaseSequence: seq}, "x")})
	}
	for seq := uint64(10); seq < 70; seq++ {
		if _, err := send(seq); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := send(5); err != nil {
		t.Fatal(err)
	}
	for seq := uint64(70); seq < 100; seq++ {
		if _, err := send(seq); err != nil {
			t.Fatal(err)
		}
	}
	for seq := uint64(5); seq < 100; seq++ {
		a, err := send(seq)
		if !a.Duplicate && !errors.Is(err, store.ErrSequenceExpired) {
			t.Fatalf("%d: %+v %v", seq, a, err)
		}
	}
}
