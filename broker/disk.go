package broker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
)

const (
	// diskEvery is how often the disk is looked at.
	diskEvery = time.Second
	// slowDisk is how long a write may take: a disk that hangs makes no error, and
	// nobody else would say why nothing is acknowledged.
	slowDisk = 5 * time.Second
)

// watchDisk says when the disk does not answer, and ends the broker when its directory
// is gone: what is written to files that nobody can open again is not kept.
func (s *Server) watchDisk(ctx context.Context) error {
	log := filepath.Join(s.cfg.DataDir, "log")
	was, err := os.Stat(log)
	if err != nil {
		was = nil // not on a file system of the operating system: a test's
	}
	every := time.NewTicker(diskEvery)
	defer every.Stop()
	for {
		select {
		case <-every.C:
		case <-ctx.Done():
			return nil
		}
		s.lookAtDisk(s.store.DiskWait())
		if was == nil {
			continue
		}
		is, err := os.Stat(log)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(was, is) {
			return fmt.Errorf("data directory: %s was removed or replaced while it was in use: nothing more is taken", log)
		}
	}
}

// lookAtDisk takes note of how long the write under way has taken.
func (s *Server) lookAtDisk(wait time.Duration) {
	s.metrics.diskWait.Set(wait.Seconds())
	switch slow := wait >= slowDisk; {
	case slow && !s.slow.Swap(true):
		s.log.Error("disk does not answer, what is to be stored waits", zap.String("dir", s.cfg.DataDir), zap.Duration("for", wait))
	case !slow && s.slow.Swap(false):
		s.log.Info("disk answers again", zap.String("dir", s.cfg.DataDir))
	}
}
