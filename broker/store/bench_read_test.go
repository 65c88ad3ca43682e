package store_test

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tacitmq/tacit/broker/store"
)

// fillStore writes so many bytes of 1 KiB messages to 64 queues.
func fillStore(b testing.TB, dir string, bytes, batch int) {
	b.Helper()
	e := newStoreEngine(b, dir, shape{benchQueues, batch}, false)
	fillUntil(b, e, bytes, batch)
	if err := e.close(); err != nil {
		b.Fatal(err)
	}
}

func fillUntil(b testing.TB, e *storeEngine, bytes, batch int) {
	b.Helper()
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(bytes))
	for a := range benchQueues {
		wg.Go(func() {
			for left.Add(-int64(batch*benchBody)) >= 0 {
				if err := e.append(a); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// fillPebble writes the same to Pebble.
func fillPebble(b testing.TB, dir string, bytes, batch int) {
	b.Helper()
	e := newPebbleEngine(b, dir, shape{benchQueues, batch}, false)
	for range bytes / benchBody / batch / benchQueues {
		for a := range benchQueues {
			if err := e.append(a); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := e.close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkLaggingQueue reads one queue of 64 from its start to its end, everything
// cold. One operation is one queue, read from the log and from Pebble in turn,
// both just opened; the ratios of the pairs are the last figures.
func BenchmarkLaggingQueue(b *testing.B) {
	const size = 512 << 20
	for _, n := range []int{16, 1} {
		b.Run("b"+strconv.Itoa(n), func(b *testing.B) {
			logDir, pebbleDir := b.TempDir(), b.TempDir()
			fillStore(b, logDir, size, n)
			fillPebble(b, pebbleDir, size, n)
			b.Run("pair", func(b *testing.B) {
				var ratios, log, other []float64
				var cpu int64
				for i := range b.N {
					queue := i % benchQueues
					l, used := coldStore(b, logDir, queue)
					p := coldPebble(b, pebbleDir, queue, n)
					cpu += used
					ratios, log, other = append(ratios, l/p), append(log, l), append(other, p)
				}
				for _, x := range [][]float64{ratios, log, other} {
					slices.Sort(x)
				}
				b.ReportMetric(log[len(log)/2], "store-MB/s")
				b.ReportMetric(other[len(other)/2], "pebble-MB/s")
				b.ReportMetric(float64(cpu)/float64(b.N)/(size/benchQueues/benchBody), "store-cpu-µs/msg")
				b.ReportMetric(ratios[len(ratios)/2], "store/pebble")
				b.ReportMetric(ratios[0], "least")
				b.ReportMetric(ratios[len(ratios)-1], "most")
			})
		})
	}
}

// coldStore opens the log and reads one queue: MB/s, and the CPU time in µs.
func coldStore(b *testing.B, dir string, queue int) (mbs float64, cpu int64) {
	b.Helper()
	dropPages(b, dir)
	s := open(b, dir, store.Options{})
	defer closeStore(b, s)
	dropPages(b, dir)
	use := readUsage()
	mbs = rate(b, func() int { return readQueue(b, s, store.Queue{Topic: "T", ID: int32(queue)}) })
	return mbs, readUsage().cpu - use.cpu
}

// coldPebble does the same with Pebble, which compacts nothing meanwhile.
func coldPebble(b *testing.B, dir string, queue, batch int) float64 {
	b.Helper()
	dropPages(b, dir)
	e := newPebbleEngine(b, dir, shape{benchQueues, batch}, false, func(o *pebble.Options) { o.DisableAutomaticCompactions = true })
	defer func() { _ = e.close() }()
	dropPages(b, dir)
	return rate(b, func() int { return readPebble(b, e, queue) })
}

// rate returns the bytes that f read, in MB/s.
func rate(b *testing.B, f func() int) float64 {
	b.Helper()
	start := time.Now()
	n := f()
	if n == 0 {
		b.Fatal("nothing to read")
	}
	return float64(n) / time.Since(start).Seconds() / 1e6
}

func readQueue(b *testing.B, s *store.Store, q store.Queue) (bytes int) {
	var res store.Result
	defer res.Release()
	for offset := int64(0); ; offset = res.Next {
		if err := s.Read(&res, q, offset, 256<<10, nil); err != nil {
			b.Fatal(err)
		}
		if res.Next == offset {
			return bytes
		}
		for _, x := range res.Batches {
			bytes += len(x)
		}
	}
}

func readPebble(b *testing.B, e *pebbleEngine, queue int) (bytes int) {
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: pebbleKey(nil, queue, 0), UpperBound: pebbleKey(nil, queue+1, 0)})
	if err != nil {
		b.Fatal(err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		bytes += len(it.Value())
	}
	if err := it.Close(); err != nil {
		b.Fatal(err)
	}
	return bytes
}
