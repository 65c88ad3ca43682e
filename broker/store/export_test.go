package store

// Retain does now what the keeper does at its next round.
func Retain(s *Store) { s.keep() }

// Mend does now what is tried every second while the state cannot be written.
func Mend(s *Store) {
	if s.state.fatal.err() != nil {
		s.state.mend()
	}
}

// Checkpoint makes a copy of the state now.
func Checkpoint(s *Store) error { return s.state.checkpoint() }
