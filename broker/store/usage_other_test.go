//go:build !linux

package store_test

import (
	"os"
	"testing"
)

type usage struct{ cpu, written int64 }

func startUsage() usage { return usage{} }

func readUsage() usage { return usage{} }

func (usage) report(*testing.B, float64) {}

func onDisk(testing.TB, string) int64 { return 0 }

func fdatasync(f *os.File) error { return f.Sync() }

func dropPages(testing.TB, string) {}
