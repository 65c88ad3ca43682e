package lease

import (
	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// Key names what a lease is for.
type Key struct {
	Group string
	Queue allocate.Queue
}

// Record is the stored last lease of a (group, queue).
type Record struct {
	Key
	Epoch       session.Epoch
	Holder      string // client id; empty if the lease was given back
	Instance    string
	Incarnation session.Incarnation
	// TimeoutMillis is the holder's session timeout.
	TimeoutMillis int64
}

// Offset is a committed offset to store with a lease change or a commit.
type Offset struct {
	Key
	Offset int64
}
