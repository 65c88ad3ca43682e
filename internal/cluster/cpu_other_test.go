//go:build !unix

package cluster_test

import (
	"testing"
	"time"
)

// cpuTime is not to be had here.
func cpuTime(*testing.B) time.Duration { return 0 }
