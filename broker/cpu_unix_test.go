//go:build unix

package broker

import (
	"syscall"
	"testing"
	"time"
)

// cpuTime is what this process has used, which other load disturbs less than
// the time on the clock.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// reportCPU reports the processor time of an operation since the timer was reset.
func reportCPU(b *testing.B, since time.Duration, ops int) {
	b.ReportMetric(float64(cpuTime()-since)/float64(ops), "cpu-ns/op")
}
