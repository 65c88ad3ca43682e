package lease

import (
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// Info describes one lease.
type Info struct {
	Queue    allocate.Queue
	Epoch    session.Epoch // of the last grant
	Holder   string        // client id, of a claim member id; empty: free
	Claimed  bool          // Holder is a member of a coordinated group
	Granting bool          // the record is on its way to the disk
	// IdleSince is when a free one lost its last holder, if that is remembered.
	IdleSince time.Time
	Line      []string // client ids that wait, first in line first
}

// Describe returns the leases of a group that are remembered, sorted by queue.
func (t *Table) Describe(group string) []Info {
	g := t.groups[group]
	out := make([]Info, 0, len(g))
	for _, q := range sortedQueues(g) {
		e := g[q]
		i := Info{Queue: q, Epoch: e.epoch}
		if e.claim != "" {
			i.Holder, i.Claimed, i.Granting = e.claim, true, !e.stored
		} else if e.holder != nil {
			i.Holder, i.Granting = e.holder.ClientID, !e.stored
		} else {
			i.IdleSince = e.idleSince
		}
		for _, w := range e.line {
			i.Line = append(i.Line, w.h.ClientID)
		}
		out = append(out, i)
	}
	return slices.Clip(out)
}
