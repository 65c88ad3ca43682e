package store_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable/block"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/message"
)

// The benchmarks put the log beside Pebble in the same run; only the ratios mean
// something. One operation is one message of 1 KiB. For a sustained fill of 2 GB:
//
//	go test ./broker/store -run '^$' -bench 'Append/nosync/16x16' -benchtime 2000000x
const (
	benchQueues = 64
	benchBody   = 1024
)

// engine appends batches.
type engine interface {
	append(appender int) error
	close() error
}

type shape struct{ appenders, batch int }

func (s shape) String() string { return fmt.Sprintf("%dx%d", s.appenders, s.batch) }

func BenchmarkAppend(b *testing.B) {
	for _, sync := range []bool{false, true} {
		mode := map[bool]string{false: "nosync", true: "fsync"}[sync]
		b.Run(mode, func(b *testing.B) {
			for _, sh := range []shape{{16, 16}, {256, 1}, {256, 16}, {1, 1}} {
				b.Run(sh.String(), func(b *testing.B) {
					b.Run("store", func(b *testing.B) { benchAppend(b, sh, newStoreEngine(b, b.TempDir(), sh, sync)) })
					b.Run("pebble", func(b *testing.B) { benchAppend(b, sh, newPebbleEngine(b, b.TempDir(), sh, sync)) })
					if sync && sh.appenders == 1 || sync && sh == (shape{256, 16}) {
						b.Run("disk", func(b *testing.B) { benchDisk(b, sh) })
					}
				})
			}
		})
	}
}

func benchAppend(b *testing.B, sh shape, e engine) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	took := make([][]time.Duration, sh.appenders)
	var wg sync.WaitGroup
	use := startUsage()
	b.ResetTimer()
	for a := range sh.appenders {
		wg.Go(func() {
			for left.Add(-int64(sh.batch)) > -int64(sh.batch) {
				start := time.Now()
				if err := e.append(a); err != nil {
					b.Error(err)
					return
				}
				if len(took[a]) < 1<<16 {
					took[a] = append(took[a], time.Since(start))
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	use.report(b, float64(b.N)*benchBody)
	reportLatency(b, slices.Concat(took...))
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1000, "kmsg/s")
	b.ReportMetric(float64(b.N)*benchBody/b.Elapsed().Seconds()/1e6, "MB/s")
	if err := e.close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkPipelined is what the broker's produce streams do: each hands over
// single messages, with a bounded number under way, and waits for none.
func BenchmarkPipelined(b *testing.B) {
	const streams, window = 2, 32
	e := newStoreEngine(b, b.TempDir(), shape{benchQueues, 1}, false)
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	use := startUsage()
	b.ResetTimer()
	for range streams {
		wg.Go(func() {
			tokens := make(chan struct{}, window)
			for n := left.Add(-1); n >= 0; n = left.Add(-1) {
				tokens <- struct{}{}
				e.s.AppendAsync(ctx, store.Entry{Batch: e.batches[n%benchQueues]}, func(_ store.Appended, err error) {
					if err != nil {
						b.Error(err)
					}
					<-tokens
				})
			}
			for range window {
				tokens <- struct{}{}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	use.report(b, float64(b.N)*benchBody)
	if err := e.close(); err != nil {
		b.Fatal(err)
	}
}

func reportLatency(b *testing.B, all []time.Duration) {
	slices.Sort(all)
	if len(all) == 0 {
		return
	}
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
}

// benchDisk is the bare loop: write and sync what a group would be.
func benchDisk(b *testing.B, sh shape) {
	size := 4096
	per := 1
	if sh.appenders > 1 {
		size, per = 1<<20, 1024
	}
	f, err := os.Create(filepath.Join(b.TempDir(), "f"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, size)
	fill(buf, 1)
	var took []time.Duration
	b.ResetTimer()
	at := int64(0)
	for n := 0; n < b.N; n += per {
		start := time.Now()
		if _, err := f.WriteAt(buf, at); err != nil {
			b.Fatal(err)
		}
		if err := fdatasync(f); err != nil {
			b.Fatal(err)
		}
		at += int64(size)
		took = append(took, time.Since(start))
	}
	b.StopTimer()
	reportLatency(b, took)
	b.ReportMetric(float64(at)/b.Elapsed().Seconds()/1e6, "MB/s")
}

func fill(b []byte, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, rng.Uint64())
		b = b[8:]
	}
}

// storeEngine is the log. Each appender has its own queue.
type storeEngine struct {
	s       *store.Store
	batches [][]byte
}

func newStoreEngine(b testing.TB, dir string, sh shape, sync bool, opts ...func(*store.Options)) *storeEngine {
	b.Helper()
	o := store.Options{Durability: store.None}
	if sync {
		o.Durability = store.Fsync
	}
	for _, set := range opts {
		set(&o)
	}
	s := open(b, dir, o)
	putTopic(b, s, "T", benchQueues)
	e := &storeEngine{s: s}
	for a := range sh.appenders {
		e.batches = append(e.batches, benchBatch(b, int32(a%benchQueues), sh.batch, uint64(a)))
	}
	return e
}

func benchBatch(b testing.TB, queue int32, n int, seed uint64) []byte {
	ms := make([]message.Message, n)
	for i := range ms {
		ms[i].Body = make([]byte, benchBody)
		fill(ms[i].Body, seed*1000+uint64(i))
		ms[i].BornTime = time.UnixMilli(1_700_000_000_000)
	}
	return encodeMessages(b, batch.Info{Topic: "T", Queue: queue}, ms...)
}

func (e *storeEngine) append(a int) error {
	_, err := e.s.Append(ctx, store.Entry{Batch: e.batches[a]})
	return err
}

func (e *storeEngine) close() error { return e.s.Close() }

// pebbleEngine keeps one key for each message: queue and offset.
type pebbleEngine struct {
	db    *pebble.DB
	sync  *pebble.WriteOptions
	batch int
	mu    [benchQueues]sync.Mutex
	next  [benchQueues]uint64
	value [][]byte
}

func newPebbleEngine(b testing.TB, dir string, sh shape, sync bool, opts ...func(*pebble.Options)) *pebbleEngine {
	b.Helper()
	cache := pebble.NewCache(256 << 20)
	defer cache.Unref()
	o := &pebble.Options{
		Cache: cache, FormatMajorVersion: pebble.FormatNewest,
		MemTableSize: 64 << 20, MemTableStopWritesThreshold: 4,
		L0CompactionThreshold: 4, L0StopWritesThreshold: 40, LBaseMaxBytes: 512 << 20,
		BytesPerSync: 1 << 20, Logger: quiet{},
	}
	for i := range o.Levels {
		o.Levels[i].BlockSize = 32 << 10
		o.Levels[i].Compression = func() *block.CompressionProfile { return block.NoCompression }
	}
	o.TargetFileSizes[0] = 32 << 20
	for _, set := range opts {
		set(o)
	}
	db, err := pebble.Open(dir, o)
	if err != nil {
		b.Fatal(err)
	}
	e := &pebbleEngine{db: db, sync: pebble.NoSync, batch: sh.batch}
	if sync {
		e.sync = pebble.Sync
	}
	for a := range sh.appenders {
		v := make([]byte, benchBody)
		fill(v, uint64(a))
		e.value = append(e.value, v)
	}
	return e
}

type quiet struct{}

func (quiet) Infof(string, ...any)           {}
func (quiet) Errorf(string, ...any)          {}
func (quiet) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }

func pebbleKey(b []byte, queue int, offset uint64) []byte {
	b = binary.BigEndian.AppendUint32(b[:0], uint32(queue))
	return binary.BigEndian.AppendUint64(b, offset)
}

func (e *pebbleEngine) append(a int) error {
	q := a % benchQueues
	e.mu[q].Lock()
	first := e.next[q]
	e.next[q] += uint64(e.batch)
	e.mu[q].Unlock()
	b := e.db.NewBatchWithSize(e.batch * (benchBody + 32))
	var key [12]byte
	for i := range e.batch {
		if err := b.Set(pebbleKey(key[:], q, first+uint64(i)), e.value[a], nil); err != nil {
			return err
		}
	}
	if err := b.Commit(e.sync); err != nil {
		return err
	}
	return b.Close()
}

func (e *pebbleEngine) close() error { return e.db.Close() }
