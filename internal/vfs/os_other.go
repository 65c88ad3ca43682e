//go:build !linux

package vfs

import "os"

func syncData(f *os.File) error { return f.Sync() }

func prefetch(*os.File, int64, int) {}

func forget(*os.File, int64, int) {}
