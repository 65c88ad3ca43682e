package store_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/vfs"
)

// Rule: a damaged state never starts groups over silently: the newest intact
// copy is used and named, and without one the store refuses to open.
func TestF_STO_01_DamagedStateIsOpenedFromTheNewestIntactCopy(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	damage := map[string]func(b []byte) []byte{
		"empty":  func([]byte) []byte { return nil },
		"half":   func(b []byte) []byte { return b[:len(b)/2] },
		"zeros":  func(b []byte) []byte { return make([]byte, len(b)) },
		"random": func(b []byte) []byte { fill(b, rng.Uint64()); return b },
	}
	prepare := func(t *testing.T) string {
		dir := t.TempDir()
		s := open(t, dir, store.Options{})
		putTopic(t, s, "T", 1)
		q := store.Queue{Topic: "T"}
		for i := range 10 {
			appendBodies(t, s, q, strconv.Itoa(i))
		}
		u := s.State().NewUpdate()
		for g := range 1000 {
			u.CommitOffset("group-"+strconv.Itoa(g), q, int64(g%11))
		}
		if err := s.State().Apply(ctx, u); err != nil {
			t.Fatal(err)
		}
		closeStore(t, s)
		return dir
	}
	spoil := func(t *testing.T, dir string, how func([]byte) []byte) {
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(f, how(b), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	intact := func(t *testing.T, dir string, restored bool) {
		ev := &events{}
		s := open(t, dir, store.Options{Report: ev.report})
		for g := range 1000 {
			if got, ok := s.State().Offset("group-"+strconv.Itoa(g), store.Queue{Topic: "T"}); !ok || got != int64(g%11) {
				t.Fatalf("group-%d: %d %v", g, got, ok)
			}
		}
		wantBodies(t, readAll(t, s, store.Queue{Topic: "T"}, 7), 7, "7", "8", "9")
		closeStore(t, s)
		evs := ev.of(store.StateRestored)
		if restored && (len(evs) != 1 || !strings.Contains(evs[0].File, "state-")) {
			t.Fatalf("which copy was used is not said: %+v", ev.all)
		}
	}
	for name, how := range damage {
		t.Run(name, func(t *testing.T) {
			dir := prepare(t)
			spoil(t, filepath.Join(dir, "state"), how)
			intact(t, dir, true)
			intact(t, dir, false)
			copies, err := filepath.Glob(filepath.Join(dir, "state-*"))
			if err != nil || len(copies) == 0 {
				t.Fatal("no copies", err)
			}
			spoil(t, filepath.Join(dir, "state"), how)
			for _, c := range copies {
				spoil(t, c, how)
			}
			refused(t, dir)
		})
	}
	t.Run("deleted", func(t *testing.T) {
		dir := prepare(t)
		if err := os.RemoveAll(filepath.Join(dir, "state")); err != nil {
			t.Fatal(err)
		}
		intact(t, dir, true)
		copies, _ := filepath.Glob(filepath.Join(dir, "state*"))
		for _, c := range copies {
			if err := os.RemoveAll(c); err != nil {
				t.Fatal(err)
			}
		}
		refused(t, dir)
		ev := &events{}
		s := open(t, dir, store.Options{AcceptStateLoss: true, Report: ev.report})
		if len(ev.of(store.StateEmpty)) != 1 || len(ev.of(store.TopicFound)) != 1 {
			t.Fatalf("%+v", ev.all)
		}
		if n := len(readAll(t, s, store.Queue{Topic: "T"}, 0)); n != 10 {
			t.Fatalf("%d messages", n)
		}
		closeStore(t, s)
	})
	t.Run("lost log of updates", func(t *testing.T) {
		dir := prepare(t)
		logs, _ := filepath.Glob(filepath.Join(dir, "state", "*.log"))
		for _, l := range logs {
			if err := os.Truncate(l, 0); err != nil {
				t.Fatal(err)
			}
		}
		intact(t, dir, true)
	})
}

func refused(t *testing.T, dir string) {
	t.Helper()
	s, err := store.Open(dir, store.Options{})
	if err == nil {
		closeStore(t, s)
		t.Fatal("opened without any intact state")
	}
	if !errors.Is(err, store.ErrStateLost) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("%v", err)
	}
}

// Rule: a full disk refuses appends with a clear error, everything else goes on,
// and appends work again as soon as there is space.
func TestF_STO_03_FullDiskRefusesAppendsUntilThereIsSpace(t *testing.T) {
	d, ev := memDisks(), &events{}
	disk := d.log.(*vfs.Mem)
	o := d.options(ev)
	o.MinFreeBytes = 10 << 10
	s := open(t, "d", o)
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	disk.SetLimit(300 << 10)
	var want []string
	for round := range 3 {
		refused := 0
		for i := range 300 {
			b := body(round*1000+i, 2000)
			_, err := s.Append(ctx, store.Entry{Batch: encode(t, batch.Info{Topic: "T"}, b)})
			switch {
			case err == nil:
				if refused > 0 {
					t.Fatal("accepted in between")
				}
				want = append(want, b)
			case errors.Is(err, store.ErrNoSpace):
				refused++
			default:
				t.Fatal(err)
			}
			if refused == 20 {
				break
			}
		}
		if refused == 0 {
			t.Fatal("never full")
		}
		wantBodies(t, readAll(t, s, q, 0), 0, want...)
		if err := s.State().CommitOffset(ctx, "G", q, int64(len(want))); err != nil {
			t.Fatal(err)
		}
		disk.SetLimit(int64(300+300*(round+1)) << 10)
	}
	closeStore(t, s)
	s = open(t, "d", o)
	wantBodies(t, readAll(t, s, q, 0), 0, want...)
	closeStore(t, s)
	if len(ev.of(store.SpaceLow)) != 3 || len(ev.of(store.SpaceBack)) != 2 || len(ev.all) != 5 {
		t.Fatalf("%+v", ev.all)
	}
}

// Rule: with synchronous durability readers are shown nothing that a crash can
// take back, and no offset is committed beyond the end.
func TestF_STO_07_ReadersSeeOnlyWhatSurvivesACrash(t *testing.T) {
	for seed := range seeds(t, 100) {
		d, ev := memDisks(), &events{}
		rng := rand.New(rand.NewPCG(uint64(seed), 7))
		s := open(t, "d", d.options(ev))
		putTopic(t, s, "T", 1)
		q := store.Queue{Topic: "T"}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for i := range 30 {
					_, _ = s.Append(ctx, store.Entry{Batch: encode(t, batch.Info{Topic: "T"}, body(i, 300))})
				}
			})
		}
		// A reader follows, until the power goes.
		var seen map[int64]string
		for range rng.IntN(200) {
			seen = readAll(t, s, q, 0)
		}
		after := disks{d.log.(*vfs.Mem).PowerCut(rng), d.state}
		wg.Wait()
		closeStore(t, s)
		s = open(t, "d", after.options(ev))
		got := readAll(t, s, q, 0)
		for o, b := range seen {
			if got[o] != b {
				t.Fatalf("seed %d: %d was read before the crash and is %q after it", seed, o, got[o])
			}
		}
		if _, end, _ := s.Bounds(q); end < int64(len(seen)) {
			t.Fatalf("seed %d: ends at %d", seed, end)
		}
		closeStore(t, s)
	}
}

func TestFailedWritesAndSyncsAreRefusedAndLoseNothing(t *testing.T) {
	errDisk := errors.New("input/output error")
	for seed := range 60 {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(seed), 3))
			var mu sync.Mutex
			var chance atomic.Int32
			d, ev := memDisks(), &events{}
			mem := d.log
			d.log = &vfs.Inject{FS: mem, Fail: func(op vfs.Op, _ string) (int, error) {
				mu.Lock()
				defer mu.Unlock()
				if op == vfs.OpRead || op == vfs.OpOpen || chance.Load() == 0 || rng.IntN(100) >= int(chance.Load()) {
					return 0, nil
				}
				if rng.IntN(2) == 0 {
					return rng.IntN(4000), vfs.ErrFull
				}
				return rng.IntN(4000), errDisk
			}}
			s := open(t, "d", d.options(ev))
			putTopic(t, s, "T", 1)
			q := store.Queue{Topic: "T"}
			chance.Store(15)
			want := map[int64]string{}
			failed := 0
			for i := range 400 {
				b := body(i, 300+i%700)
				a, err := s.Append(ctx, store.Entry{Batch: encode(t, batch.Info{Topic: "T", ProducerID: 5, BaseSequence: uint64(i)}, b)})
				if err != nil {
					failed++
					continue
				}
				want[a.Offset] = b
			}
			if failed == 0 {
				t.Fatal("nothing failed")
			}
			check := func() {
				t.Helper()
				got := readAll(t, s, q, 0)
				if len(got) != len(want) {
					t.Fatalf("%d messages, want %d", len(got), len(want))
				}
				for o, b := range want {
					if got[o] != b {
						t.Fatalf("offset %d: %.20q, want %.20q", o, got[o], b)
					}
				}
			}
			check()
			chance.Store(0)
			a := appendBodies(t, s, q, "again")
			want[a.Offset] = "again"
			// The last failed append may be found by recovery: it was answered
			// with an error, which says nothing. Here one succeeded after it.
			after := disks{mem.(*vfs.Mem).PowerCut(rand.New(rand.NewPCG(uint64(seed), 4))), d.state}
			closeStore(t, s)
			s = open(t, "d", after.options(ev))
			check()
			closeStore(t, s)
		})
	}
}

func TestDamageIsReportedWithFileAndPositionAndSkipped(t *testing.T) {
	for seed := range seeds(t, 200) {
		rng := rand.New(rand.NewPCG(uint64(seed), 5))
		d, ev := memDisks(), &events{}
		mem := d.log.(*vfs.Mem)
		s := open(t, "d", d.options(ev))
		putTopic(t, s, "T", 2)
		n := 20 + rng.IntN(300)
		want := map[store.Queue]map[int64]string{}
		for i := range n {
			q := store.Queue{Topic: "T", ID: int32(i % 2)}
			b := body(i, 100+rng.IntN(900))
			if want[q] == nil {
				want[q] = map[int64]string{}
			}
			want[q][appendBodies(t, s, q, b).Offset] = b
		}
		// Either a clean stop, after which damage shows when it is read, or a
		// crash, after which recovery reads the last segment.
		if rng.IntN(2) == 0 {
			closeStore(t, s)
		} else {
			killed := mem.Kill()
			closeStore(t, s)
			d.log, mem = killed, killed
		}
		names, err := mem.List("d/log")
		if err != nil {
			t.Fatal(err)
		}
		var logs []string
		for _, name := range names {
			if strings.HasSuffix(name, ".log") {
				logs = append(logs, "d/log/"+name)
			}
		}
		name := logs[rng.IntN(len(logs))]
		f, err := mem.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		at, size := flipInUse(t, f, rng)
		s = open(t, "d", d.options(ev))
		missing := 0
		for q, all := range want {
			lo, _, err := s.Bounds(q) // the first batch may be the damaged one
			if err != nil {
				t.Fatal(err)
			}
			got := readAll(t, s, q, lo)
			for o, b := range all {
				if g, ok := got[o]; ok && g != b {
					t.Fatalf("seed %d: offset %d: %.30q, want %.30q", seed, o, g, b)
				} else if !ok {
					missing++
				}
			}
		}
		// The batch with the flipped bit is missing, and nothing else.
		if missing != 1 {
			t.Fatalf("seed %d: flipped %s at %d of %d: %d messages missing: %+v", seed, name, at, size, missing, ev.all)
		}
		found := false
		for _, e := range ev.all {
			if (e.Kind == store.Damaged || e.Kind == store.TornTail) && e.File == name && e.Position <= at && at < e.Position+e.Bytes {
				found = true
			}
		}
		if !found {
			t.Fatalf("seed %d: flipped %s at %d: reported %+v", seed, name, at, ev.all)
		}
		// It can be written on.
		appendBodies(t, s, store.Queue{Topic: "T"}, "on")
		closeStore(t, s)
	}
}

// A log cut anywhere within its last batch, also within the first bytes of it, is
// reported as a torn tail and goes on behind what is whole.
func TestCutWithinABatchIsATornTail(t *testing.T) {
	for keep := int64(1); keep <= 6; keep++ {
		d, ev := memDisks(), &events{}
		s := open(t, "d", d.options(ev))
		putTopic(t, s, "T", 1)
		q := store.Queue{Topic: "T"}
		appendBodies(t, s, q, "whole")
		appendBodies(t, s, q, "cut")
		killed := d.log.(*vfs.Mem).Kill()
		closeStore(t, s)
		d.log = killed
		names, err := killed.List("d/log")
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(names, func(n string) bool { return strings.HasSuffix(n, ".log") })
		name := "d/log/" + names[i]
		f, err := killed.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		size, err := f.Size()
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, size)
		if _, err := f.ReadAt(b, 0); err != nil {
			t.Fatal(err)
		}
		first, err := batch.Length(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Truncate(int64(first)+keep), f.Sync()); err != nil {
			t.Fatal(err)
		}
		s = open(t, "d", d.options(ev))
		torn := ev.of(store.TornTail)
		if len(torn) != 1 || torn[0].File != name || torn[0].Position != int64(first) || torn[0].Bytes != keep {
			t.Errorf("%d bytes of a batch: reported %+v", keep, ev.all)
		}
		if got := readAll(t, s, q, 0); len(got) != 1 || got[0] != "whole" {
			t.Errorf("%d bytes of a batch: read %v", keep, got)
		}
		appendBodies(t, s, q, "on")
		closeStore(t, s)
	}
}

// flipInUse flips one bit within the batches of a segment.
func flipInUse(t *testing.T, f vfs.File, rng *rand.Rand) (at, end int64) {
	t.Helper()
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	for {
		n, err := batch.Length(b[end:])
		if err != nil {
			break
		}
		end += int64(n)
	}
	at = rng.Int64N(end)
	b[at] ^= 1 << rng.IntN(8)
	if _, err := f.WriteAt(b[at:at+1], at); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	return at, end
}

func TestDamagedIndexIsMadeAgain(t *testing.T) {
	for seed := range seeds(t, 100) {
		rng := rand.New(rand.NewPCG(uint64(seed), 6))
		d, ev := memDisks(), &events{}
		mem := d.log.(*vfs.Mem)
		s := open(t, "d", d.options(ev))
		putTopic(t, s, "T", 1)
		q := store.Queue{Topic: "T"}
		var want []string
		for i := range 200 {
			want = append(want, body(i, 600))
			appendBodies(t, s, q, want[i])
		}
		closeStore(t, s)
		names, _ := mem.List("d/log")
		var indexes []string
		for _, name := range names {
			if strings.HasSuffix(name, ".index") {
				indexes = append(indexes, "d/log/"+name)
			}
		}
		name := indexes[rng.IntN(len(indexes))]
		f, err := mem.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		size, _ := f.Size()
		switch rng.IntN(4) {
		case 0:
			if err := mem.Remove(name); err != nil {
				t.Fatal(err)
			}
		case 1:
			if err := f.Truncate(rng.Int64N(size)); err != nil {
				t.Fatal(err)
			}
		default:
			at := rng.Int64N(size)
			b := make([]byte, 1)
			if _, err := f.ReadAt(b, at); err != nil {
				t.Fatal(err)
			}
			b[0] ^= 1 << rng.IntN(8)
			if _, err := f.WriteAt(b, at); err != nil {
				t.Fatal(err)
			}
		}
		s = open(t, "d", d.options(ev))
		wantBodies(t, readAll(t, s, q, 0), 0, want...)
		appendBodies(t, s, q, "on")
		closeStore(t, s)
		if len(ev.of(store.Damaged)) > 0 {
			t.Fatalf("seed %d: %s: %+v", seed, name, ev.all)
		}
	}
}

// Rule: the state, too, refuses updates while its disk is full, and takes them
// again without a restart.
func TestF_STO_03_StateWorksAgainWhenItsDiskIsNoLongerFull(t *testing.T) {
	d, ev := memDisks(), &events{}
	var full atomic.Bool
	d.state = errorfs.Wrap(d.state, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return vfs.ErrFull
		}
		return nil
	}))
	s := open(t, "d", d.options(ev))
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	for range 10 {
		appendBodies(t, s, q, "x")
	}
	st := s.State()
	for round := range int64(3) {
		if err := st.CommitOffset(ctx, "G", q, 3*round+1); err != nil {
			t.Fatal(err)
		}
		full.Store(true)
		for range 3 {
			if err := st.CommitOffset(ctx, "G", q, 3*round+2); !errors.Is(err, store.ErrNoSpace) {
				t.Fatal(err)
			}
			store.Mend(s)
			if o, ok := st.Offset("G", q); !ok || o != 3*round+1 {
				t.Fatalf("round %d: offset %d %v", round, o, ok)
			}
		}
		appendBodies(t, s, q, "the log goes on")
		if n := len(readAll(t, s, q, 0)); n != 11+int(round) {
			t.Fatalf("%d messages", n)
		}
		full.Store(false)
		store.Mend(s)
		if err := st.CommitOffset(ctx, "G", q, 3*round+3); err != nil {
			t.Fatal(err)
		}
		putTopic(t, s, "U"+strconv.Itoa(int(round)), 1)
	}
	closeStore(t, s)
	s = open(t, "d", d.options(ev))
	if o, _ := s.State().Offset("G", q); o != 9 || len(s.Topics()) != 4 {
		t.Fatal(o, s.Topics())
	}
	closeStore(t, s)
	if len(ev.of(store.StateReopened)) != 3 || len(ev.of(store.StateRestored)) != 0 {
		t.Fatalf("%+v", ev.all)
	}
}
