package store_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"

	pebblefs "github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/vfs"
	"github.com/tacitmq/tacit/message"
)

// seeds returns the number of runs: TACIT_STORE_SEEDS, or few under -short.
func seeds(t *testing.T, n int) int {
	if s := os.Getenv("TACIT_STORE_SEEDS"); s != "" {
		v, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("TACIT_STORE_SEEDS: %v", err)
		}
		return v
	}
	if testing.Short() {
		return n / 10
	}
	return n
}

// world is a store under a random load, and what it promised.
type world struct {
	t    testing.TB
	rng  *rand.Rand
	d    disks
	ev   *events
	s    *store.Store
	opts func(*store.Options)

	mu      sync.Mutex
	life    int                                          // counts power cuts: answers of an earlier life do not count
	seq     map[store.Queue]uint64                       // next sequence of the one producer
	acked   map[store.Queue]map[int64]string             // by offset
	unclear map[store.Queue]map[uint64][]message.Message // sent and not answered, by sequence
	commits map[store.Queue]int64                        // acknowledged
	seen    map[store.Queue]int64                        // ends that a reader saw
	puts    map[string]string                            // acknowledged
	born    map[store.Queue]uint32                       // incarnation of the topic
}

const worldProducer = 99

func newWorld(t testing.TB, seed uint64, opts func(*store.Options)) *world {
	w := &world{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), d: memDisks(), ev: &events{}, opts: opts,
		seq: map[store.Queue]uint64{}, acked: map[store.Queue]map[int64]string{},
		unclear: map[store.Queue]map[uint64][]message.Message{}, commits: map[store.Queue]int64{}, seen: map[store.Queue]int64{},
		puts: map[string]string{}, born: map[store.Queue]uint32{},
	}
	w.open()
	t.Cleanup(func() { _ = w.s.Close() }) // again, or after a failure
	for i := range 3 {
		w.create("T" + strconv.Itoa(i))
	}
	return w
}

func (w *world) open() {
	o := w.d.options(w.ev)
	o.SegmentBytes = 32 << 10
	if w.opts != nil {
		w.opts(&o)
	}
	w.s = open(w.t, "d", o)
}

func (w *world) create(topic string) {
	putTopic(w.t, w.s, topic, 2)
	for id := range int32(2) {
		q := store.Queue{Topic: topic, ID: id}
		w.acked[q], w.unclear[q] = map[int64]string{}, map[uint64][]message.Message{}
		delete(w.commits, q)
		delete(w.seen, q)
		w.seq[q] = 0
	}
}

func (w *world) queue() store.Queue {
	return store.Queue{Topic: "T" + strconv.Itoa(w.rng.IntN(3)), ID: int32(w.rng.IntN(2))}
}

// send appends a batch of its own sequence without waiting.
func (w *world) send(wg *sync.WaitGroup) {
	q := w.queue()
	n := 1 + w.rng.IntN(4)
	ms := make([]message.Message, n)
	w.mu.Lock()
	base := w.seq[q]
	w.seq[q] += uint64(n)
	for i := range ms {
		b := fmt.Sprintf("%v/%d/%d/%s", q, w.born[q], base+uint64(i), body(0, w.rng.IntN(1500)))
		ms[i].Body = []byte(b)
	}
	w.unclear[q][base] = ms
	w.mu.Unlock()
	w.sendSeq(wg, q, base, ms)
}

func (w *world) sendSeq(wg *sync.WaitGroup, q store.Queue, base uint64, ms []message.Message) {
	b := encodeMessages(w.t, batch.Info{Topic: q.Topic, Queue: q.ID, ProducerID: worldProducer, BaseSequence: base, ProducerEpoch: w.born[q]}, ms...)
	wg.Add(1)
	life := w.life
	w.s.AppendAsync(ctx, store.Entry{Batch: b}, func(a store.Appended, err error) {
		defer wg.Done()
		if err != nil {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if life != w.life {
			return
		}
		for i := range ms {
			w.acked[q][a.Offset+int64(i)] = string(ms[i].Body)
		}
		delete(w.unclear[q], base)
	})
}

// step does something.
func (w *world) step(wg *sync.WaitGroup) {
	switch k := w.rng.IntN(20); {
	case k < 12:
		w.send(wg)
	case k < 15: // read the end, and commit it
		q := w.queue()
		_, end, err := w.s.Bounds(q)
		if err != nil {
			w.t.Fatal(err)
		}
		w.seen[q] = max(w.seen[q], end)
		if err := w.s.State().CommitOffset(ctx, "G", q, end); err != nil {
			w.t.Fatal(err)
		}
		w.commits[q] = max(w.commits[q], end)
	case k < 17:
		u := w.s.State().NewUpdate()
		key, v := strconv.Itoa(w.rng.IntN(10)), strconv.Itoa(w.rng.Int())
		u.Put("space", key, []byte(v))
		if err := w.s.State().Apply(ctx, u); err != nil {
			w.t.Fatal(err)
		}
		w.puts[key] = v
	case k < 19:
		wg.Wait()
	default:
		wg.Wait()
		switch w.rng.IntN(10) {
		case 0: // a clean stop
			closeStore(w.t, w.s)
			w.open()
			return
		case 1:
		default:
			return
		}
		topic := "T" + strconv.Itoa(w.rng.IntN(3))
		if err := w.s.DeleteTopic(topic); err != nil {
			w.t.Fatal(err)
		}
		for id := range int32(2) {
			w.born[store.Queue{Topic: topic, ID: id}]++
		}
		w.create(topic)
	}
}

// verify checks that the store holds what it promised.
func (w *world) verify() {
	w.t.Helper()
	for q, acked := range w.acked {
		lo, end, err := w.s.Bounds(q)
		if err != nil {
			w.t.Fatal(err)
		}
		got := readAll(w.t, w.s, q, lo)
		if int64(len(got)) != end-lo {
			w.t.Fatalf("%v holds %d to %d, but %d messages", q, lo, end, len(got))
		}
		bodies := map[string]int64{}
		for o, b := range got {
			if other, dup := bodies[b]; dup {
				w.t.Fatalf("%v: %.30q at %d and %d", q, b, o, other)
			}
			bodies[b] = o
		}
		for o, b := range acked {
			if o >= lo && got[o] != b {
				w.t.Fatalf("%v: acknowledged %.30q at %d, found %.30q", q, b, o, got[o])
			}
		}
		for o, b := range got {
			if _, ok := acked[o]; ok {
				continue
			}
			known := false
			for _, ms := range w.unclear[q] {
				known = known || slices.ContainsFunc(ms, func(m message.Message) bool { return string(m.Body) == b })
			}
			if !known {
				w.t.Fatalf("%v: %.30q at %d was never sent", q, b, o)
			}
		}
		if end < w.seen[q] {
			w.t.Fatalf("%v ends at %d, a reader had seen %d", q, end, w.seen[q])
		}
		off, ok := w.s.State().Offset("G", q)
		if want, committed := w.commits[q]; committed && off < want || off > end || ok != committed {
			w.t.Fatalf("%v: committed offset %d %v, want %d %v, end %d", q, off, ok, want, committed, end)
		}
	}
	for k, v := range w.puts {
		if got, _, err := w.s.State().Get("space", k); err != nil || string(got) != v {
			w.t.Fatalf("%s is %q, want %q (%v)", k, got, v, err)
		}
	}
}

// retry sends what was not answered again, under its old sequences.
func (w *world) retry() {
	w.t.Helper()
	var wg sync.WaitGroup
	w.mu.Lock()
	again := map[store.Queue]map[uint64][]message.Message{}
	for q, unclear := range w.unclear {
		again[q] = maps.Clone(unclear)
	}
	w.mu.Unlock()
	for q, unclear := range again {
		for _, base := range slices.Sorted(maps.Keys(unclear)) {
			w.sendSeq(&wg, q, base, unclear[base])
		}
	}
	wg.Wait()
	for q, unclear := range w.unclear {
		if len(unclear) > 0 {
			w.t.Fatalf("%v: %d batches refused when sent again", q, len(unclear))
		}
	}
}

func (w *world) powerCut() {
	w.mu.Lock()
	log := w.d.log.(*vfs.Mem).PowerCut(w.rng)
	state := w.d.state.(*pebblefs.MemFS).CrashClone(pebblefs.CrashCloneCfg{UnsyncedDataPercent: w.rng.IntN(101), RNG: w.rng})
	w.life++
	w.mu.Unlock()
	if err := w.s.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.d = disks{log, state}
	w.open()
}

// runPowerCuts puts a store under load and cuts its power, again and again. What
// was acknowledged must be there, nothing else may be, and what is sent again
// must not be stored twice.
func runPowerCuts(t testing.TB, seed uint64, opts func(*store.Options)) {
	w := newWorld(t, seed, opts)
	for range 3 {
		var wg sync.WaitGroup
		for range 10 + w.rng.IntN(120) {
			w.step(&wg)
		}
		w.powerCut()
		w.verify()
		w.retry()
		w.verify()
		if bad := w.ev.of(store.Damaged); len(bad) > 0 {
			t.Fatalf("%+v", bad)
		}
	}
	closeStore(t, w.s)
}

func TestNothingAcknowledgedIsLostByAPowerCut(t *testing.T) {
	for seed := range seeds(t, 150) {
		t.Run(strconv.Itoa(seed), func(t *testing.T) { runPowerCuts(t, uint64(seed), nil) })
	}
}

// expected is a test that should fail.
type expected struct {
	testing.TB
	failure string
}

func (e *expected) Fatalf(format string, args ...any) {
	e.failure = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (e *expected) Fatal(args ...any) { e.Fatalf("%s", fmt.Sprint(args...)) }

func TestPowerCutsFindAMissingSync(t *testing.T) {
	for seed := range 50 {
		e := &expected{TB: t}
		var wg sync.WaitGroup
		wg.Go(func() {
			runPowerCuts(e, uint64(seed), func(o *store.Options) { o.Durability = store.None })
		})
		wg.Wait()
		if e.failure != "" {
			t.Logf("seed %d: %s", seed, e.failure)
			return
		}
	}
	t.Fatal("50 runs without sync, and nothing was missing")
}
