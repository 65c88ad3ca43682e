//go:build !unix

package consumer

// syncDir does nothing where directories cannot be synced.
func syncDir(string) error { return nil }
