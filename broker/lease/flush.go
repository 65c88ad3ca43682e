package lease

import (
	"slices"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// Persisted says that the batch with this id, and so every one before it, is on
// disk: what waited for it may leave.
func (t *Table) Persisted(id uint64) {
	n := 0
	for n < len(t.inFlight) && t.inFlight[n].id <= id {
		b := &t.inFlight[n]
		for _, g := range b.grants {
			if g.e.holder != g.h || g.e.epoch != g.epoch {
				continue // released, dropped or taken away before it was told
			}
			g.e.stored = true
			g.h.granted(t, session.Grant{Queue: g.e.key.Queue, Epoch: g.epoch})
			t.tellWaiting(g.e)
		}
		for _, c := range b.claims {
			if c.e.claim != "" && c.e.epoch == c.generation {
				c.e.stored = true
			}
		}
		for _, w := range b.welcomes {
			t.deliver(w)
		}
		t.answers = append(t.answers, b.answers...)
		n++
	}
	t.inFlight = slices.Delete(t.inFlight, 0, n)
}

// Flush returns what has to be done and forgets it.
func (t *Table) Flush() (out Out) {
	for _, e := range t.dirty {
		e.dirty = false
		if !e.gone {
			out.Records = append(out.Records, e.record())
		}
	}
	t.dirty = t.dirty[:0]
	out.Offsets, t.offsets = t.offsets, nil
	out.Resets, t.resets = t.resets, nil
	if len(out.Records)+len(out.Offsets)+len(out.Resets) > 0 {
		t.persistID++
		out.PersistID = t.persistID
		t.after.id = t.persistID
		t.inFlight = append(t.inFlight, t.after)
		t.after = batch{}
	} else if len(t.after.welcomes) > 0 { // their queues were deleted at once
		for _, w := range t.after.welcomes {
			t.deliver(w)
		}
		t.after = batch{}
	}
	for _, h := range t.mailed {
		h.mailed = false
		if h.box.Session = h.Session; h.Session != 0 {
			out.Mail = append(out.Mail, h.box)
		}
		h.box = Mail{}
	}
	t.mailed = t.mailed[:0]
	out.Welcomes, t.welcomes = t.welcomes, nil
	out.Answers, t.answers = t.answers, nil
	out.Idle, t.idle = t.idle, nil
	return out
}

// mail notes that h has something in its box.
func (h *Holder) mail(t *Table) {
	if !h.mailed {
		h.mailed = true
		t.mailed = append(t.mailed, h)
	}
}

func (h *Holder) granted(t *Table, g session.Grant) {
	h.mail(t)
	h.box.Granted = append(h.box.Granted, g)
}

func (h *Holder) wanted(t *Table, q allocate.Queue, viewBroker string) {
	t.stats.Wanted++
	h.mail(t)
	for i := range h.box.Wanted {
		if w := &h.box.Wanted[i]; w.ViewBroker == viewBroker {
			w.Queues = append(w.Queues, q)
			return
		}
	}
	h.box.Wanted = append(h.box.Wanted, session.LeaseWanted{Queues: []allocate.Queue{q}, ViewBroker: viewBroker})
}

func (h *Holder) withdrawn(t *Table, q allocate.Queue, reason session.Reason) {
	h.mail(t)
	for i := range h.box.Withdrawn {
		if w := &h.box.Withdrawn[i]; w.Reason == reason {
			w.Queues = append(w.Queues, q)
			return
		}
	}
	h.box.Withdrawn = append(h.box.Withdrawn, session.Withdrawn{Queues: []allocate.Queue{q}, Reason: reason})
}

func (h *Holder) lost(t *Table, o session.Owned, reason session.Reason) {
	h.mail(t)
	for i := range h.box.Lost {
		if l := &h.box.Lost[i]; l.Reason == reason {
			l.Leases = append(l.Leases, o)
			return
		}
	}
	h.box.Lost = append(h.box.Lost, session.LeaseLost{Leases: []session.Owned{o}, Reason: reason})
}
