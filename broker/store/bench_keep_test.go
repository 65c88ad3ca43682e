package store_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tacitmq/tacit/broker/store"
)

// fillEnv asks the test binary to fill a store and to be killed in the middle of
// it: directory, colon, bytes.
const fillEnv = "TACIT_STORE_FILL"

func TestMain(m *testing.M) {
	if dir, bytes, ok := strings.Cut(os.Getenv(fillEnv), ":"); ok {
		fillAndDie(dir, bytes)
	}
	os.Exit(m.Run())
}

// fillAndDie fills a store as [fillStore] does, and ends as kill -9 ends a process.
func fillAndDie(dir, bytes string) {
	testing.Init()
	n, err := strconv.Atoi(bytes)
	if err == nil {
		r := testing.Benchmark(func(b *testing.B) {
			fillUntil(b, newStoreEngine(b, dir, shape{benchQueues, 16}, false), n, 16)
			if p, err := os.FindProcess(os.Getpid()); err == nil {
				_ = p.Kill()
			}
			select {}
		})
		err = fmt.Errorf("it is still alive: %v", r)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// BenchmarkReopen opens a log that kill -9 left, with its pages dropped from memory
// where that can be done. One operation is one open at each size. TACIT_STORE_REOPEN_MB
// is the smaller size in MB, 2000 unless set.
func BenchmarkReopen(b *testing.B) {
	mb := 2000
	if s := os.Getenv("TACIT_STORE_REOPEN_MB"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			b.Fatal(err)
		}
		mb = n
	}
	var dirs [2]string
	for i := range dirs {
		dirs[i] = b.TempDir()
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fillEnv+"="+dirs[i]+":"+strconv.Itoa((i+1)*mb*1_000_000))
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != -1 {
			b.Fatalf("fill: %v\n%s", err, out)
		}
	}
	b.Run("pair", func(b *testing.B) {
		var took [2][]float64
		for range b.N {
			for i, dir := range dirs {
				dropPages(b, dir)
				start := time.Now()
				s := open(b, dir, store.Options{})
				took[i] = append(took[i], time.Since(start).Seconds())
				closeStore(b, s)
				if err := os.Remove(newestIndex(b, dir)); err != nil { // as a kill leaves it
					b.Fatal(err)
				}
			}
		}
		for i := range took {
			b.ReportMetric(took[i][0], fmt.Sprintf("s-first-%dMB", (i+1)*mb))
			slices.Sort(took[i])
			b.ReportMetric(took[i][len(took[i])/2], fmt.Sprintf("s-%dMB", (i+1)*mb))
			b.ReportMetric(took[i][len(took[i])-1], fmt.Sprintf("s-worst-%dMB", (i+1)*mb))
		}
		b.ReportMetric(took[1][len(took[1])/2]/took[0][len(took[0])/2], "ratio")
		b.ReportMetric(0, "ns/op")
	})
}

func newestIndex(b testing.TB, dir string) string {
	names, err := filepath.Glob(filepath.Join(dir, "log", "*.index"))
	if err != nil || len(names) == 0 {
		b.Fatal("no index", err)
	}
	return slices.Max(names)
}

// BenchmarkRetention drops the oldest half of a log of 2 GiB; one segment of it is kept
// to be written again. One operation is
// one such drop; "written" are the bytes written meanwhile for each byte dropped,
// "back" the part of what was to go that the disk has back at once.
func BenchmarkRetention(b *testing.B) {
	const size = 2 << 30
	for range b.N {
		dir := b.TempDir()
		var now atomic.Int64
		now.Store(time.Hour.Milliseconds())
		e := newStoreEngine(b, dir, shape{benchQueues, 16}, false, func(o *store.Options) {
			o.RetainAge, o.RetainInterval = 90*time.Minute, time.Hour
			o.Now = func() time.Time { return time.UnixMilli(now.Load()) }
		})
		fillUntil(b, e, size/2, 16)
		now.Add(time.Hour.Milliseconds())
		fillUntil(b, e, size/2, 16)
		store.Retain(e.s) // writes the indexes
		dropPages(b, dir) // and what the system has not written yet
		before, use := onDisk(b, dir), readUsage()
		now.Add((45 * time.Minute).Milliseconds())
		start := time.Now()
		store.Retain(e.s)
		took := time.Since(start)
		after, written := onDisk(b, dir), readUsage().written-use.written
		b.ReportMetric(float64(before)/1e6, "MB-before")
		b.ReportMetric(float64(after)/1e6, "MB-after")
		b.ReportMetric(float64(before-after)/(float64(before)/2), "back")
		b.ReportMetric(float64(written)/float64(max(1, before-after)), "written")
		b.ReportMetric(float64(took.Milliseconds()), "ms-drop")
		b.ReportMetric(0, "ns/op")
		if err := e.close(); err != nil {
			b.Fatal(err)
		}
	}
}
