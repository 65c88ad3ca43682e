package store

import "fmt"

// While the log is written without syncs the state has a mark that names the run of
// the machine. A clean stop removes it. A start that finds one of another run does not
// know what the log has lost, and with it which offsets were given out: all queues go
// on above them. Where that is must be durable before anything else is given out.

// loose is the mark that an unclean end of a store without syncs leaves.
type loose struct {
	set  bool
	boot string
}

// setLoose stores the mark, or removes it.
func (st *State) setLoose(l loose) error {
	if l == st.loose {
		return nil
	}
	err := st.sync(func(g *gathering) error {
		if !l.set {
			return g.batch.Delete([]byte{keyLoose}, nil)
		}
		return g.batch.Set([]byte{keyLoose}, []byte(l.boot), nil)
	})
	if err != nil {
		return fmt.Errorf("store whether the log is synced: %w", err)
	}
	st.loose = l
	return nil
}

// mayLack reports whether offsets may have been given out that the log does not show.
// The mark counts whatever the durability is now: it tells of the run before.
func (s *Store) mayLack() bool {
	if s.state.older && s.o.Durability != Fsync {
		return true // the mark may be missing
	}
	l := s.state.loose
	return l.set && (l.boot == "" || l.boot != s.o.Boot)
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

// begun stores the mark of this run.
func (s *Store) begun() error {
	if s.o.Durability == Fsync {
		return s.state.setLoose(loose{})
	}
	return s.state.setLoose(loose{set: true, boot: s.o.Boot})
}

// ended removes the mark, if all of the log is synced: the segments that were left
// are when they have their index.
func (s *Store) ended() error {
	for _, g := range s.segs[:len(s.segs)-1] {
		if g.index.Load() == nil {
			return nil
		}
	}
	return s.state.setLoose(loose{})
}
