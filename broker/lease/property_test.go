package lease

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// world drives a table at random and knows what its members, the disk and a
// waiting line must be like.
type world struct {
	pick  func(n int) int // 0..n-1
	fail  func(format string, args ...any)
	table *Table
	now   time.Time
	epoch uint64
	next  uint64 // session numbers

	lives   []*lived
	local   map[allocate.Queue]bool
	disk    map[allocate.Queue]Record
	batches []Out // handed out, not on disk yet

	last map[allocate.Queue]session.Epoch // the greatest epoch granted
	line map[allocate.Queue][]*lived
}

// lived is a member as it sees itself.
type lived struct {
	h       *Holder
	life    Life
	held    map[allocate.Queue]session.Epoch // what it was told and did not give back
	asked   map[allocate.Queue]bool
	owes    map[allocate.Queue]session.Epoch // told that these are lost, not answered yet
	welcome bool                             // it waits for one
}

func queue(id int) allocate.Queue { return allocate.Queue{Topic: "a", Broker: "b1", ID: int32(id)} }

func newWorld(pick func(int) int, fail func(string, ...any)) *world {
	w := &world{
		pick: pick, fail: fail, now: time.Unix(1000, 0), local: map[allocate.Queue]bool{}, disk: map[allocate.Queue]Record{},
		last: map[allocate.Queue]session.Epoch{}, line: map[allocate.Queue][]*lived{},
	}
	for i := range 3 {
		w.local[queue(i)] = true
	}
	w.start()
	for i := range 4 {
		w.add(Life{Group: "g", ClientID: fmt.Sprintf("c%d", i), Incarnation: session.Incarnation{Counter: 1, Random: uint64(i)}, Timeout: time.Second})
	}
	return w
}

func (w *world) add(l Life) *lived {
	m := &lived{life: l, h: w.table.Holder(l), held: map[allocate.Queue]session.Epoch{}, asked: map[allocate.Queue]bool{}, owes: map[allocate.Queue]session.Epoch{}}
	w.lives = append(w.lives, m)
	return m
}

// start begins a life of the broker with what is on disk.
func (w *world) start() {
	w.epoch++
	w.batches = nil
	records := slices.Collect(maps.Values(w.disk))
	slices.SortFunc(records, func(a, b Record) int { return a.Queue.Compare(b.Queue) })
	var holders []*Holder
	w.table, holders = New(Config{BrokerEpoch: w.epoch}, records)
	clear(w.line)
	for _, m := range w.lives {
		clear(m.asked)
		clear(m.owes)
		m.welcome = false
		m.h = nil
		for _, h := range holders {
			if h.ClientID == m.life.ClientID && h.Incarnation == m.life.Incarnation {
				m.h = h
			}
		}
		if m.h == nil {
			m.h = w.table.Holder(m.life)
		}
	}
	w.table.SetQueues(sortedQueues(w.local))
	w.flush(nil)
}

func (w *world) of(stream uint64) *lived {
	for _, m := range w.lives {
		if m.h.Session == stream {
			return m
		}
	}
	w.fail("mail for session %d, which nobody has", stream)
	return nil
}

// flush takes what the table wants and checks it. by asked for it, if a member did.
func (w *world) flush(by *lived) {
	out := w.table.Flush()
	if out.PersistID != 0 {
		w.batches = append(w.batches, out)
	}
	for _, r := range out.Records {
		w.record(by, r)
	}
	for _, wel := range out.Welcomes {
		m := w.of(wel.Session)
		if !m.welcome {
			w.fail("%s is welcomed twice", m.life.ClientID)
		}
		m.welcome = false
		before := m.held
		m.held = map[allocate.Queue]session.Epoch{}
		for _, g := range wel.Grants {
			if g.Kept && before[g.Queue] != g.Epoch {
				w.fail("%s keeps %v under %v, which it did not name", m.life.ClientID, g.Queue, g.Epoch)
			}
			w.told(m, g)
		}
	}
	for _, mail := range out.Mail {
		m := w.of(mail.Session)
		for _, l := range mail.Lost {
			for _, o := range l.Leases {
				if m.held[o.Queue] == o.Epoch {
					delete(m.held, o.Queue)
				}
				m.owes[o.Queue] = o.Epoch
			}
		}
		for _, wd := range mail.Withdrawn {
			for _, q := range wd.Queues {
				delete(m.asked, q)
			}
		}
		for _, g := range mail.Granted {
			if m.held[g.Queue] != g.Epoch { // else it is told once more
				w.told(m, g)
			}
		}
		for _, want := range mail.Wanted {
			for _, q := range want.Queues {
				if _, ok := m.held[q]; !ok && !m.welcome {
					w.fail("%s is told that others want %v, which it does not hold", m.life.ClientID, q)
				}
			}
		}
	}
	w.check()
}

// record checks a record that is about to be stored against the line.
func (w *world) record(by *lived, r Record) {
	if r.Holder == "" {
		if len(w.line[r.Queue]) > 0 {
			w.fail("%v is free while %s waits", r.Queue, w.line[r.Queue][0].life.ClientID)
		}
		return
	}
	if !w.was(r.Queue).IsZero() {
		return // taken from its holder, which was told
	}
	if line := w.line[r.Queue]; len(line) > 0 && line[0].life.ClientID == r.Holder {
		w.line[r.Queue] = line[1:]
	} else if by == nil || by.life.ClientID != r.Holder {
		w.fail("%v goes to %s, which is not the first in line", r.Queue, r.Holder)
	}
}

// told gives m a lease, which must be on disk, new, and nobody else's.
func (w *world) told(m *lived, g session.Grant) {
	q := g.Queue
	if r := w.disk[q]; r.Epoch != g.Epoch || r.Holder != m.life.ClientID || r.Incarnation != m.life.Incarnation {
		w.fail("%s is granted %v under %v, on disk is %v of %q", m.life.ClientID, q, g.Epoch, r.Epoch, r.Holder)
	}
	if g.Kept && g.Epoch != w.last[q] || !g.Kept && g.Epoch.Compare(w.last[q]) <= 0 {
		w.fail("%v granted under %v (kept %v) after %v", q, g.Epoch, g.Kept, w.last[q])
	}
	w.last[q] = g.Epoch
	m.held[q] = g.Epoch
	delete(m.asked, q)
}

func (w *world) check() {
	owner := map[allocate.Queue]*lived{}
	for _, m := range w.lives {
		for q := range m.held {
			if o := owner[q]; o != nil {
				w.fail("%v is held by %s and %s", q, o.life.ClientID, m.life.ClientID)
			}
			owner[q] = m
		}
	}
	infos := map[allocate.Queue]Info{}
	for _, i := range w.table.Describe("g") {
		infos[i.Queue] = i
		if i.Holder == "" && len(i.Line) > 0 {
			w.fail("%v is free while %v wait", i.Queue, i.Line)
		}
	}
	for _, m := range w.lives {
		for q := range m.asked {
			i := infos[q]
			if !slices.Contains(i.Line, m.life.ClientID) && (i.Holder != m.life.ClientID || !i.Granting) {
				w.fail("request of %s for %v is lost: %+v", m.life.ClientID, q, i)
			}
		}
	}
	// A commit counts exactly under the lease that its holder was told.
	for q := range w.local {
		e := w.last[q]
		err := w.table.Check("g", q, e)
		if m := owner[q]; m != nil && m.h.Session != 0 && !m.welcome && err != nil && e == m.held[q] && w.was(q).IsZero() {
			w.fail("%s may not pull %v under its own %v: %v", m.life.ClientID, q, e, err)
		}
		if err := w.table.Check("g", q, session.Epoch{Broker: w.epoch, Counter: 1 << 40}); !errors.Is(err, ErrStaleEpoch) && !errors.Is(err, ErrNotMember) {
			w.fail("an epoch never granted: %v", err)
		}
	}
}

func (w *world) persist(n int) {
	if n == 0 {
		return
	}
	var id uint64
	for _, b := range w.batches[:n] {
		for _, r := range b.Records {
			w.disk[r.Queue] = r
		}
		id = b.PersistID
	}
	w.batches = slices.Delete(w.batches, 0, n)
	w.table.Persisted(id)
	w.flush(nil)
}

func (w *world) forgetAsked(m *lived) {
	clear(m.asked)
	for q, line := range w.line {
		w.line[q] = slices.DeleteFunc(line, func(o *lived) bool { return o == m })
	}
}

func (w *world) step() {
	w.now = w.now.Add(time.Millisecond)
	m := w.lives[w.pick(len(w.lives))]
	q := queue(w.pick(4)) // the last one does not exist
	attached := m.h.Session != 0
	ops := []string{
		"attach", "acquire", "persist", "release", "withdraw", "stale", "commit", "detach", "drop", "inherit", "reset", "queues", "restart",
		"acquire", "acquire", "acquire", "persist", "persist", "persist", "release", "release", "commit", "attach", "attach",
	}
	switch ops[w.pick(len(ops))] {
	case "acquire":
		if !attached {
			return
		}
		_, holds := m.held[q]
		if w.local[q] && !holds && !m.asked[q] {
			m.asked[q] = true
			if h := w.holder(q); h != nil && (h != m.h || !w.was(q).IsZero() && len(w.line[q]) > 0) {
				w.line[q] = append(w.line[q], m)
			}
		}
		w.table.Acquire(m.h, []allocate.Queue{q}, "b1")
		w.flush(m)
		return
	case "withdraw":
		if attached {
			w.line[q] = slices.DeleteFunc(w.line[q], func(o *lived) bool { return o == m })
			w.table.Withdraw(m.h, []allocate.Queue{q})
		}
	case "release":
		if e, ok := m.owes[q]; ok && attached {
			delete(m.owes, q)
			w.table.Release(w.now, m.h, []session.Release{{Queue: q, Epoch: e, Offset: 1 << 40, HasOffset: true}})
			w.flush(nil)
		}
		if e, ok := m.held[q]; ok && attached && !m.welcome {
			delete(m.held, q)
			w.table.Release(w.now, m.h, []session.Release{{Queue: q, Epoch: e, Offset: 7, HasOffset: true}})
		}
	case "stale":
		e := w.last[q]
		if attached && m.held[q] != e && w.holderEpoch(q) != e && w.was(q) != e {
			w.table.Release(w.now, m.h, []session.Release{{Queue: q, Epoch: e, Offset: 1 << 40, HasOffset: true}})
			if out := w.table.Flush(); len(out.Offsets)+len(out.Records) > 0 {
				w.fail("a release under %v of %v counts", e, q)
			}
		}
	case "detach":
		w.forgetAsked(m)
		w.table.Detach(m.h)
		m.welcome = false
	case "attach":
		w.forgetAsked(m)
		var named []session.Owned
		for _, o := range sortedQueues(m.held) {
			if w.pick(4) > 0 {
				named = append(named, session.Owned{Queue: o, Epoch: m.held[o]})
			} else {
				delete(m.held, o)
			}
		}
		if w.pick(2) == 0 && w.last[q] != m.held[q] { // of a lease that it lost long ago
			named = append(named, session.Owned{Queue: q, Epoch: session.Epoch{Broker: 1, Counter: 0}})
		}
		w.next++
		m.welcome = true
		w.table.Attach(w.now, m.h, w.next, time.Second, named)
		w.flush(m)
		return
	case "drop":
		w.forgetAsked(m)
		clear(m.held)
		m.welcome = false
		w.table.Drop(w.now, m.h)
	case "inherit":
		l := m.life
		l.Incarnation.Counter++
		heir := w.add(l)
		w.forgetAsked(m)
		w.lives = slices.DeleteFunc(w.lives, func(o *lived) bool { return o == m })
		w.next++
		heir.welcome = true
		w.table.Inherit(w.now, m.h, heir.h, w.next)
		w.flush(heir)
		return
	case "persist":
		w.persist(w.pick(len(w.batches) + 1))
	case "commit":
		e, ok := m.held[q] // a detached member may have lost it without having heard
		if !ok || m.welcome {
			e = session.Epoch{Broker: w.epoch, Counter: 1 << 40}
		}
		w.table.Commit(1, Key{"g", q}, e, 5)
		out := w.table.Flush()
		if accepted := len(out.Offsets) == 1; accepted != (ok && !m.welcome && w.local[q] && w.was(q).IsZero()) && (attached || accepted) {
			w.fail("commit of %s for %v under %v: accepted %v, %v", m.life.ClientID, q, e, accepted, out.Answers)
		}
		if out.PersistID != 0 {
			w.batches = append(w.batches, out)
		}
		w.answered(out)
	case "reset":
		var by *lived // who is being granted it gets it under another epoch
		if e := w.table.find(Key{"g", q}); e != nil && e.holder != nil && !e.stored && e.was.IsZero() && e.holder.Session != 0 {
			by = w.of(e.holder.Session)
		}
		w.table.Reset(1, Key{"g", q}, 0, true)
		w.flush(by)
		return
	case "queues":
		if q.ID == 3 || w.pick(4) > 0 {
			return
		}
		if w.local[q] {
			delete(w.local, q)
			delete(w.line, q)
		} else {
			w.local[q] = true
		}
		w.table.SetQueues(sortedQueues(w.local))
	case "restart":
		if w.pick(8) == 0 {
			w.start()
		}
		return
	}
	w.flush(nil)
}

// answered passes on what came along with a commit's answer.
func (w *world) answered(out Out) {
	if len(out.Records)+len(out.Mail)+len(out.Welcomes) > 0 {
		w.fail("a commit changes leases: %+v", out)
	}
}

func (w *world) holder(q allocate.Queue) *Holder {
	if e := w.table.find(Key{"g", q}); e != nil {
		return e.holder
	}
	return nil
}

// was is the epoch whose holder was told that it is lost and has not answered.
func (w *world) was(q allocate.Queue) session.Epoch {
	if e := w.table.find(Key{"g", q}); e != nil {
		return e.was
	}
	return session.Epoch{}
}

func (w *world) holderEpoch(q allocate.Queue) session.Epoch {
	if e := w.table.find(Key{"g", q}); e != nil {
		return e.epoch
	}
	return session.Epoch{}
}

// end lets everything end: all that is asked for must be granted in turn.
func (w *world) end() {
	for range 200 {
		w.persist(len(w.batches))
		var holder *lived
		for _, m := range w.lives {
			if m.h.Session != 0 && m.h.Holds() > 0 {
				holder = m
			}
		}
		if holder == nil {
			break
		}
		for _, q := range sortedQueues(holder.owes) {
			w.table.Release(w.now, holder.h, []session.Release{{Queue: q, Epoch: holder.owes[q]}})
			w.flush(nil)
		}
		clear(holder.owes)
		for _, q := range sortedQueues(holder.held) {
			e := holder.held[q]
			delete(holder.held, q)
			w.table.Release(w.now, holder.h, []session.Release{{Queue: q, Epoch: e}})
			w.flush(nil)
		}
	}
	for _, m := range w.lives {
		if detached := m.h.Holds() > 0; len(m.asked) > 0 && !detached {
			for q := range m.asked {
				if h := w.holder(q); h == nil || h == m.h {
					w.fail("request of %s for %v was never answered", m.life.ClientID, q)
				}
			}
		}
	}
}

// Whatever happens in whatever order: one holder, growing epochs, no grant before
// its record is on disk, first come first served, no request lost, and commits
// only under the present lease.
func TestLeasesKeepTheirPromisesInAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.IntRange(0, 1<<16)
		w := newWorld(func(n int) int { return number.Draw(t, "n") % n }, t.Fatalf)
		for range number.Draw(t, "steps") % 100 {
			w.step()
		}
		w.end()
	})
}

// Long histories, to reach states that short ones do not.
func TestLeasesKeepTheirPromisesInLongHistories(t *testing.T) {
	var sum Stats
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(rng.IntN, func(format string, args ...any) { t.Fatalf("seed %d: "+format, append([]any{seed}, args...)...) })
		for range 300 {
			w.step()
		}
		w.end()
		s := w.table.Stats() // of the last life of the broker
		sum.Grants += s.Grants
		sum.Kept += s.Kept
		sum.Inherited += s.Inherited
		sum.Releases += s.Releases
		sum.Withdrawals += s.Withdrawals
		sum.Wanted += s.Wanted
		sum.Dropped += s.Dropped
		sum.Commits += s.Commits
	}
	if sum.Grants < 1000 || sum.Kept < 100 || sum.Inherited < 10 || sum.Releases < 100 || sum.Withdrawals < 5 || sum.Wanted < 200 || sum.Dropped < 50 || sum.Commits < 30 {
		t.Errorf("the histories reach too little: %+v", sum)
	}
}
