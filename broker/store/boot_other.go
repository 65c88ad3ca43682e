//go:build !linux

package store

// bootID is not known here.
func bootID() string { return "" }
