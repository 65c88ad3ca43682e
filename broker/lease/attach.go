package lease

import (
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// welcome is the answer to a hello while its records are on their way to disk.
type welcome struct {
	h       *Holder
	session uint64
	grants  []session.Grant
	// unsaved: the stored records name a shorter timeout than the Welcome will.
	unsaved bool
}

// Attach gives h a live stream whose hello named what the member held. That is
// the whole truth: leases that it does not name are free. A named one is kept with
// its epoch if that was the last one granted and nobody else holds it, or else
// granted anew if it is free or its own. The answer is a
// Welcome of this or a later Flush. The timeout is the one in force from now on.
func (t *Table) Attach(now time.Time, h *Holder, stream uint64, timeout time.Duration, named []session.Owned) {
	t.forgetAsked(h)
	h.Session = stream
	longer := timeout > h.Timeout
	h.Timeout = timeout
	byQueue := make(map[allocate.Queue]session.Epoch, len(named))
	for _, o := range named {
		// Named twice: the later epoch is the one that can be right.
		if old, ok := byQueue[o.Queue]; !ok || old.Compare(o.Epoch) < 0 {
			byQueue[o.Queue] = o.Epoch
		}
	}
	for _, q := range sortedQueues(h.held) {
		switch e := h.held[q]; {
		case !e.was.IsZero() && !byQueue[q].IsZero(): // it has not heard yet
			h.lost(t, session.Owned{Queue: q, Epoch: e.was}, 0)
			delete(byQueue, q)
		case byQueue[q].IsZero():
			t.free(now, e)
		}
	}
	w := &welcome{h: h, session: stream}
	for _, q := range sortedQueues(byQueue) {
		if _, ok := t.local[q]; !ok {
			continue
		}
		e := t.entry(Key{h.Group, q})
		if e.holder != nil && e.holder != h {
			continue // lost: it may ask again
		}
		kept := !byQueue[q].IsZero() && byQueue[q] == e.epoch
		switch {
		case kept && e.holder == h:
		case kept:
			t.hold(e, h, e.epoch)
		default:
			t.stats.Grants++
			t.hold(e, h, t.next())
		}
		if kept {
			t.stats.Kept++
			if longer {
				w.unsaved = true
				t.touch(e)
			}
		}
		w.grants = append(w.grants, session.Grant{Queue: q, Epoch: e.epoch, Kept: kept})
	}
	t.welcome(w)
}

// Inherit gives heir, with a live stream, all that old held, under new epochs;
// what this broker stores no more is gone. The answer is a Welcome of a later
// Flush, or of this one if old held nothing.
func (t *Table) Inherit(now time.Time, old, heir *Holder, stream uint64) {
	t.forgetAsked(old)
	old.Session = 0
	heir.Session = stream
	w := &welcome{h: heir, session: stream}
	for _, q := range sortedQueues(old.held) {
		e := old.held[q]
		if _, ok := t.local[q]; !ok {
			t.free(now, e)
			continue
		}
		delete(old.held, q)
		t.stats.Grants++
		t.stats.Inherited++
		t.hold(e, heir, t.next())
		w.grants = append(w.grants, session.Grant{Queue: q, Epoch: e.epoch})
	}
	t.welcome(w)
}

// welcome lets w leave: now, or with the batch that stores what is in it.
func (t *Table) welcome(w *welcome) {
	if w.unsaved || slices.ContainsFunc(w.grants, func(g session.Grant) bool { return !t.find(Key{w.h.Group, g.Queue}).stored }) {
		t.after.welcomes = append(t.after.welcomes, w)
		return
	}
	t.deliver(w)
}

// deliver hands w out, without what was taken away in the meantime, and tells of
// those who wait.
func (t *Table) deliver(w *welcome) {
	if w.h.Session != w.session {
		return // a newer session has its own
	}
	still := w.grants[:0]
	for _, g := range w.grants {
		e := t.find(Key{w.h.Group, g.Queue})
		if e == nil || e.holder != w.h || e.epoch != g.Epoch {
			continue
		}
		e.stored = true
		still = append(still, g)
		t.tellWaiting(e)
	}
	t.welcomes = append(t.welcomes, Welcome{w.session, still})
}

// tellWaiting tells a holder that others wait, once for each view broker they use.
func (t *Table) tellWaiting(e *entry) {
	for i, w := range e.line {
		if !slices.ContainsFunc(e.line[:i], func(o waiter) bool { return o.viewBroker == w.viewBroker }) {
			e.holder.wanted(t, e.key.Queue, w.viewBroker)
		}
	}
}
