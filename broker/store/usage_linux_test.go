package store_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// usage measures what a benchmark costs the machine.
type usage struct {
	cpu     int64 // µs
	written int64
	calls   int64 // of write
}

func startUsage() usage { return readUsage() }

func readUsage() usage {
	var ru unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &ru)
	u := usage{cpu: (ru.Utime.Sec+ru.Stime.Sec)*1e6 + ru.Utime.Usec + ru.Stime.Usec}
	b, _ := os.ReadFile("/proc/self/io")
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "write_bytes: "); ok {
			fmt.Sscan(rest, &u.written)
		}
		if rest, ok := strings.CutPrefix(line, "syscw: "); ok {
			fmt.Sscan(rest, &u.calls)
		}
	}
	return u
}

func (u usage) report(b *testing.B, payload float64) {
	now := readUsage()
	b.ReportMetric(float64(now.cpu-u.cpu)/1e6/(payload/1e9), "cpu-s/GB")
	b.ReportMetric(float64(now.written-u.written)/payload, "write-amp")
	b.ReportMetric(payload/1024/float64(now.calls-u.calls), "msg/write")
}

// onDisk returns the bytes that the files below dir take.
func onDisk(b testing.TB, dir string) (bytes int64) {
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(name, &st) == nil {
			bytes += st.Blocks * 512
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return bytes
}

func fdatasync(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }

// dropPages drops the files below dir from the page cache.
func dropPages(b testing.TB, dir string) {
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		f, err := os.Open(name)
		if err != nil {
			return nil
		}
		defer f.Close()
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return err
		}
		return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	})
	if err != nil {
		b.Fatal(err)
	}
}
