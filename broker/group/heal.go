package group

import (
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/session"
)

// eagerSignals is how many quiet signals come at the shortest interval before
// the intervals double, since what is expected may not be possible.
const eagerSignals = 4

// quietFrom begins a new time without reports.
func (v *view) quietFrom(now time.Time) {
	wait := QuietWindows * v.window()
	for i := eagerSignals; i < v.signals && wait < maxQuiet; i++ {
		wait *= 2
	}
	v.quietAt = now.Add(min(wait, maxQuiet))
	if v.mismatch {
		v.mismatch = false
		v.g.rev++
	}
}

// quiet compares what members expect with what they own: at once if it may have
// come true, and when reports have been still for a while.
func (r *Registry) quiet(now time.Time, v *view) {
	if !v.ready || v.open {
		v.quietAt = time.Time{} // the next version asks again
		return
	}
	due := !v.quietAt.IsZero() && !now.Before(v.quietAt)
	agreed := len(v.expected) == 1 && v.expected[0] == 0
	match := len(v.queues) == 0 && len(v.owners.sorted) == 0 // nothing to agree about
	if agreed && (due || len(v.owners.sorted) == len(v.queues)) {
		match = v.expected[v.owners.now(v.name)] > 0
	}
	switch {
	case match && !v.settled:
		v.settled, v.settledAt = true, now
		v.signals = 0
		r.settle(v)
	case !match && (due || !agreed || len(v.owners.sorted) != len(v.queues)):
		v.unsettle(now)
	}
	if !due {
		return
	}
	v.quietAt = time.Time{}
	if match || r.cfg.Broken.NoHealing {
		return
	}
	if !r.cfg.Broken.QuietIgnoresDrains {
		if v.draining > 0 {
			return // its end is reported
		}
		if v.quietAt = v.departedUntil(now); !v.quietAt.IsZero() {
			return
		}
	}
	owners := v.owners.now(v.name)
	v.mismatch = true
	v.signals++
	v.g.rev++
	for i := range v.pub {
		if c := v.pub[i].vm.m.conn; c != nil {
			r.stats.QuietSignals++
			r.send(c, session.OwnersChanged{Topic: v.name, Version: v.version, Owners: owners})
		}
	}
}

// departedUntil is how long queues of members that left the view may be waited
// for; zero: there are none any more.
func (v *view) departedUntil(now time.Time) (until time.Time) {
	v.departed = slices.DeleteFunc(v.departed, func(d departed) bool {
		return d.m.ended || !now.Before(d.until) || !slices.ContainsFunc(d.owned, func(o session.Owned) bool {
			_, exists := slices.BinarySearchFunc(v.queues, o.Queue, allocate.Queue.Compare)
			return exists && len(v.owners.claims[o.Queue]) == 0
		})
	})
	for _, d := range v.departed {
		if until.IsZero() || d.until.Before(until) {
			until = d.until
		}
	}
	return until
}

// orphanFrom begins to watch the queues of the topic at this broker.
func (v *view) orphanFrom(now time.Time) {
	if v.g.mode != session.Exclusive || len(v.topic.stored) == 0 {
		return
	}
	if at := now.Add(v.orphanDelay()); v.orphanAt.IsZero() || v.orphanAt.After(at) {
		v.orphanAt = at
	}
}

func (v *view) orphanDelay() time.Duration { return v.window() + v.patience() }

// orphans nudges the members if a queue at this broker has had neither holder
// nor asker for too long, and again at doubling intervals.
func (r *Registry) orphans(now time.Time, v *view) {
	if v.orphanAt.IsZero() || now.Before(v.orphanAt) {
		return
	}
	v.orphanAt = time.Time{}
	if v.g.mode != session.Exclusive || !v.topic.hosted || r.cfg.Broken.NoHealing {
		return
	}
	delay := v.orphanDelay()
	var orphan *allocate.Queue
	var young time.Time // when the first of the others may be one
	for i := range v.topic.stored {
		q := &v.topic.stored[i]
		if _, readable := slices.BinarySearchFunc(v.topic.queues, *q, allocate.Queue.Compare); !readable {
			continue
		}
		since, idle := r.leases.Idle(lease.Key{Group: v.g.name, Queue: *q})
		if !idle {
			continue
		}
		if at := since.Add(delay); now.Before(at) {
			if young.IsZero() || at.Before(young) {
				young = at
			}
			continue
		}
		orphan = q
		break
	}
	if orphan == nil {
		v.orphanWait = 0
		v.orphanAt = young
		return
	}
	v.orphanWait = min(max(2*v.orphanWait, delay), r.cfg.Tick)
	v.orphanAt = now.Add(v.orphanWait)
	for _, vm := range v.all {
		if c := vm.m.conn; c != nil {
			r.stats.Nudges++
			r.send(c, session.Nudge{Topic: v.name, Queue: *orphan})
		}
	}
}

// reach decides who is left out of the view: those who cannot reach a broker of
// the topic while another member, there for a session timeout, hears it well. In
// the order of brokers; who is left out is no witness any more, so that somebody
// always stays.
func (r *Registry) reach(now time.Time, v *view) {
	v.reachAt = time.Time{}
	if v.g.silent == 0 && v.leftOut == 0 {
		return
	}
	out := make(map[*viewMember]bool)
	for _, b := range v.topic.brokers {
		var cut []*viewMember
		witness := false
		var mature time.Time
		for _, vm := range v.all {
			if out[vm] {
				continue
			}
			silent, unreachable := vm.m.hears(b)
			switch {
			case unreachable:
				cut = append(cut, vm)
			case silent || vm.m.conn == nil:
			default:
				at := vm.m.since.Add(vm.m.timeout)
				if !now.Before(at) {
					witness = true
				} else if mature.IsZero() || at.Before(mature) {
					mature = at
				}
			}
		}
		switch {
		case len(cut) == 0:
		case witness:
			for _, vm := range cut {
				out[vm] = true
			}
		case !mature.IsZero() && (v.reachAt.IsZero() || mature.Before(v.reachAt)):
			v.reachAt = mature
		}
	}
	for _, vm := range v.all {
		if vm.leftOut != out[vm] {
			r.change(now, v)
			vm.leftOut = out[vm]
			if vm.leftOut {
				v.leftOut++
				r.stats.LeftOut++
			} else {
				v.leftOut--
			}
		}
	}
}

// hears tells how m hears a broker.
func (m *member) hears(broker string) (silent, unreachable bool) {
	for _, s := range m.silent {
		if s.Broker == broker {
			silent = true
			unreachable = unreachable || s.Unreachable
		}
	}
	return silent, unreachable
}
