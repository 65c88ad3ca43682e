package lease

import (
	"fmt"
	"time"

	"github.com/tacitmq/tacit/session"
)

// A claim is how a member of a coordinated group holds a queue: somebody else decided
// who is to have it, under a generation, and the table only sees to it that what comes
// under a smaller one is refused. It has no clock and is never given back: it counts
// until a greater generation claims the queue, or a session is granted it.

// Claim asks to make member the claimant of k under a generation. req is answered at once
// if it is refused, with an [Outdated] if the generation is why, else when it is on disk.
// The same member may claim again under the same generation.
func (t *Table) Claim(now time.Time, req uint64, k Key, member string, generation session.Epoch) {
	if err := t.claim(now, k, member, generation); err != nil {
		t.stats.ClaimsRefused++
		t.answers = append(t.answers, Answer{Req: req, Err: err})
		return
	}
	t.stats.Claims++
	t.after.answers = append(t.after.answers, Answer{Req: req})
}

func (t *Table) claim(now time.Time, k Key, member string, generation session.Epoch) error {
	if _, ok := t.local[k.Queue]; !ok {
		return refusal(ErrUnknownQueue, k, generation)
	}
	if generation.IsZero() || member == "" {
		return fmt.Errorf("%w: a claim needs a member id and a generation", ErrStaleEpoch)
	}
	e := t.entry(k)
	switch c := generation.Compare(e.epoch); {
	case e.holder != nil:
		return fmt.Errorf("%w: group %q has members without a coordinator, such as %q", ErrLeaseHeld, k.Group, e.holder.ClientID)
	case c < 0, c == 0 && e.claim != member:
		return &Outdated{Seen: e.epoch, Err: refusal(ErrStaleEpoch, k, generation)}
	}
	if e.claim == "" {
		t.claimed[k.Group]++
	}
	e.epoch, e.claim, e.used, e.stored, e.idleSince = generation, member, now, false, time.Time{}
	if t.last.Compare(generation) < 0 {
		t.last = generation // what is granted later has a greater epoch
	}
	t.after.claims = append(t.after.claims, claimed{e, generation})
	t.touch(e)
	return nil
}

// claimed is a claim on its way to the disk.
type claimed struct {
	e          *entry
	generation session.Epoch
}

// unclaim ends a claim.
func (t *Table) unclaim(e *entry) {
	if e.claim == "" {
		return
	}
	e.claim = ""
	if t.claimed[e.key.Group]--; t.claimed[e.key.Group] == 0 {
		delete(t.claimed, e.key.Group)
	}
}

// Used notes that something is done under the claim of a queue, if it has one.
func (t *Table) Used(now time.Time, k Key) {
	if t.claimed[k.Group] == 0 {
		return
	}
	if e := t.find(k); e != nil && e.claim != "" {
		e.used = now
	}
}

// Claimed returns a member that did something under a claim of the group after the given
// time; empty if there is none.
func (t *Table) Claimed(group string, after time.Time) (member string) {
	if t.claimed[group] == 0 {
		return ""
	}
	for _, e := range t.groups[group] {
		if e.claim != "" && e.used.After(after) && (member == "" || e.claim < member) {
			member = e.claim
		}
	}
	return member
}
