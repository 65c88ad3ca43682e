package store

import (
	"fmt"
	"slices"
)

// While the log is written without syncs there is a mark beside its segments, a file
// without contents whose name tells the run of the machine. It is not in the state, for
// that may be lost or older than the log. A clean stop removes it. A start that finds
// one of another run does not know what the log has lost, and with it which offsets
// were given out: all queues go on above them. Where that is must be durable before
// anything else is given out.

// markName and the run of the machine name a mark.
const markName = "unsynced-"

// setMarks makes the marks of these runs durable, and then removes all others.
func (s *Store) setMarks(boots ...string) error {
	for _, boot := range boots {
		if slices.Contains(s.marks, boot) {
			continue
		}
		f, err := s.fs.Create(s.logDir + "/" + markName + boot)
		if err == nil {
			err = f.Close()
		}
		if err == nil {
			err = s.fs.SyncDir(s.logDir)
		}
		if err != nil {
			return fmt.Errorf("mark the log as not synced: %w", err)
		}
		s.marks = append(s.marks, boot)
	}
	removed := false
	for _, boot := range s.marks {
		if slices.Contains(boots, boot) {
			continue
		}
		if err := s.fs.Remove(s.logDir + "/" + markName + boot); err != nil {
			return fmt.Errorf("mark the log as synced: %w", err)
		}
		removed = true
	}
	s.marks = boots
	if removed {
		if err := s.fs.SyncDir(s.logDir); err != nil {
			return fmt.Errorf("mark the log as synced: %w", err)
		}
	}
	return nil
}

// mayLack reports whether offsets may have been given out that the log does not show.
// A mark counts whatever the durability is now: it tells of the run before.
func (s *Store) mayLack() bool {
	return slices.ContainsFunc(s.marks, func(boot string) bool { return boot == "" || boot != s.o.Boot })
}

// skip leaves out what may have been given out.
func (r *recovery) skip() {
	s := r.s
	why := "the log is damaged"
	if s.mayLack() {
		why = "the log was not synced when the machine stopped, and may lack its last messages"
	} else if !r.lost {
		return
	}
	if r.skipped = len(s.queues) > 0; !r.skipped {
		return
	}
	for _, q := range s.queues {
		q.next += SkippedOffsets
	}
	s.o.Report(Event{
		Kind: OffsetsSkipped, File: s.logDir,
		Detail: fmt.Sprintf("%s: all queues go on %d offsets further on", why, int64(SkippedOffsets)),
	})
}

// begun leaves the mark of this run, if it is to have one.
func (s *Store) begun() error {
	if s.o.Durability == Fsync {
		return s.setMarks()
	}
	return s.setMarks(s.o.Boot)
}

// ended removes the mark, if all of the log is synced: the segments that were left
// are when they have their index.
func (s *Store) ended() error {
	for _, g := range s.segs[:len(s.segs)-1] {
		if g.index.Load() == nil {
			return nil
		}
	}
	return s.setMarks()
}
