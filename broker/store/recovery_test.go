package store_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	pebblefs "github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/vfs"
)

// A store is opened whose last segment, and its index, hold anything. It must
// open, keep what is intact, take appends and give them back.
func TestRecoveryCopesWithAnything(t *testing.T) {
	log, index, base := recoveryCorpus(t)
	for seed := range seeds(t, 150) {
		rng := rand.New(rand.NewPCG(uint64(seed), 9))
		mem := vfs.NewMem()
		write(t, mem, "d/log/0000000001.log", spoil(rng, log))
		if rng.IntN(2) == 0 {
			write(t, mem, "d/log/0000000001.index", spoil(rng, index))
		}
		d, ev := disks{mem, base.CrashClone(pebblefs.CrashCloneCfg{})}, &events{}
		s := open(t, "d", d.options(ev))
		q := store.Queue{Topic: "T"}
		for round := range 2 {
			lo, end, err := s.Bounds(q)
			if err != nil || lo > end {
				t.Fatalf("seed %d: %d to %d: %v", seed, lo, end, err)
			}
			got := tolerantRead(t, s, q, lo)
			if round > 0 && got[end-1] != "new" {
				t.Fatalf("seed %d: what was appended after recovery is gone: ends at %d, %+v", seed, end, ev.all)
			}
			if a := appendBodies(t, s, q, "new"); a.Offset != end {
				t.Fatalf("seed %d: appended at %d, the queue ended at %d", seed, a.Offset, end)
			}
			closeStore(t, s)
			s = open(t, "d", d.options(ev))
		}
		closeStore(t, s)
	}
}

// spoil returns a damaged copy of b.
func spoil(rng *rand.Rand, b []byte) []byte {
	b = bytes.Clone(b)
	switch rng.IntN(6) {
	case 0:
		b = b[:rng.IntN(len(b))]
	case 1:
		from, to := rng.IntN(len(b)), rng.IntN(len(b))
		n := rng.IntN(300)
		copy(b[to:], b[from:min(from+n, len(b))])
	case 2:
		clear(b[rng.IntN(len(b)):])
	}
	for n := rng.IntN(4); n > 0 && len(b) > 0; n-- {
		b[rng.IntN(min(len(b), 1500))] ^= 1 << rng.IntN(8)
	}
	return b
}

// tolerantRead reads like readAll, but batches with intact checksums may hold a
// malformed body: the store does not look into it.
func tolerantRead(t *testing.T, s *store.Store, q store.Queue, offset int64) map[int64]string {
	t.Helper()
	out := map[int64]string{}
	var res store.Result
	defer res.Release()
	var dec batch.Decoder
	for {
		if err := s.Read(&res, q, offset, 4096, nil); err != nil && !errors.Is(err, store.ErrDamaged) {
			t.Fatal(err)
		}
		for _, b := range res.Batches {
			h, err := batch.Parse(b)
			if err == nil {
				err = batch.Verify(b, &h)
			}
			if err != nil {
				t.Fatal(err)
			}
			it, err := dec.Open(&h, nil)
			if err != nil {
				continue
			}
			var r batch.Record
			for {
				if ok, err := it.Next(&r); !ok || err != nil {
					break
				}
				out[r.Offset] = string(r.Value)
			}
		}
		if res.Next <= offset {
			return out
		}
		offset = res.Next
	}
}

func write(t testing.TB, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

// recoveryCorpus makes a real segment, its index and the state that goes with them.
func recoveryCorpus(t testing.TB) (log, index []byte, state *pebblefs.MemFS) {
	mem := vfs.NewMem()
	state = pebblefs.NewCrashableMem()
	s := open(t, "d", disks{mem, state}.options(&events{}))
	putTopic(t, s, "T", 1)
	for i := range 8 {
		b := encode(t, batch.Info{Topic: "T", ProducerID: 1, BaseSequence: uint64(i)}, body(i, 20))
		if _, err := s.Append(ctx, store.Entry{Batch: b, Origin: uint64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	closeStore(t, s)
	return read(t, mem, "d/log/0000000001.log"), read(t, mem, "d/log/0000000001.index"), state
}
