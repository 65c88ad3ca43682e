//go:build !linux

package store_test

import (
	"os"
	"testing"
)

type usage struct{}

func startUsage() usage { return usage{} }

func (usage) report(*testing.B, float64) {}

func fdatasync(f *os.File) error { return f.Sync() }

func dropPages(testing.TB, string) {}
