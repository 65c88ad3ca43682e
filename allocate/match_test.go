package allocate

import (
	"slices"
	"testing"
)

// TestEqualScoresGoToTheSmallerQueueAndMember makes the ties that real hashes
// practically never give; all versions must break them alike.
func TestEqualScoresGoToTheSmallerQueueAndMember(t *testing.T) {
	t.Parallel()
	in := Input{Queues: make([]Queue, 5), Members: make([]Member, 3)} // all alike, so with equal hashes
	m := newMatching(in)
	m.room = []int32{2, 1, 1}
	m.extras = 1
	m.run(in.Members)
	if want := []int32{0, 0, 0, 1, 2}; !slices.Equal(m.owner, want) {
		t.Errorf("owners %v, want %v", m.owner, want)
	}
}
