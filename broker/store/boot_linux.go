package store

import (
	"os"
	"strings"
)

// bootID names the run of the kernel, and with it of the page cache.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
