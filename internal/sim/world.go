// Package sim runs the pure cores of members and brokers over a simulated
// network in virtual time.
//
// The engine ([rebalance.Engine]) and the registry ([group.Registry]) are the
// very ones that the shells drive; what is modelled here is what lies between
// and around them: links that delay, hold and break, disks that take time and
// forget what was not synced, processes that crash, restart and pause, and
// handlers. One seed is one history: the same seed gives the same trace.
//
// The checker looks at every step for a broken promise of docs/DESIGN.md (S1 to
// S4) and at the end, after a quiet time, for the liveness ones (L1 to L3).
package sim

import (
	"container/heap"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
)

// beginning is when virtual time begins.
func beginning() time.Time { return time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC) }

type item struct {
	at  time.Duration // since the beginning
	seq uint64
	fn  func()
}

type agenda []item

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].seq < a[j].seq
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(item)) }
func (a *agenda) Pop() any {
	old := *a
	n := len(old) - 1
	it := old[n]
	old[n] = item{}
	*a = old[:n]
	return it
}

// maxSameInstant is more steps than any correct history takes without time moving.
const maxSameInstant = 50_000

// World is one simulated history.
type World struct {
	opt    Options
	now    time.Time
	seq    uint64
	agenda agenda
	rng    *rand.Rand

	trace []string
	hash  uint64

	links       map[link]*linkState
	brokers     []*Broker // in order of creation
	members     []*Member
	nameServers []*NameServer
	streams     uint64 // registration streams ever opened
	check       *checker
	frame       func(f any) // sees every frame of a session that is sent, if set
	steps       int

	sameInstant    int           // steps since time last moved
	forGood        map[link]bool // cut to the end
	produceStopped bool
}

// link is one direction between two nodes, by name.
type link struct{ from, to string }

type linkState struct {
	cut  bool
	lag  time.Duration // longer than usual by this
	held []func()
}

func newWorld(opt Options) *World {
	w := &World{
		opt:   opt,
		now:   beginning(),
		rng:   rand.New(rand.NewPCG(opt.Seed, 0x7ac17)),
		links: map[link]*linkState{}, forGood: map[link]bool{},
	}
	w.check = newChecker(w)
	if opt.Watch != nil {
		w.frame = opt.Watch.Frame
	}
	return w
}

// after runs fn d from now.
func (w *World) after(d time.Duration, fn func()) { w.at(w.now.Add(d), fn) }

func (w *World) at(t time.Time, fn func()) {
	if t.Before(w.now) {
		t = w.now
	}
	w.seq++
	heap.Push(&w.agenda, item{t.Sub(beginning()), w.seq, fn})
}

// run works the agenda off until t or until a promise is broken.
func (w *World) run(t time.Time) {
	end := t.Sub(beginning())
	for len(w.agenda) > 0 && w.agenda[0].at <= end {
		it := heap.Pop(&w.agenda).(item)
		if at := beginning().Add(it.at); at.Equal(w.now) {
			w.sameInstant++
		} else {
			w.now, w.sameInstant = at, 0
		}
		if w.sameInstant > maxSameInstant {
			w.check.fail("live", "time stands still: %d steps in one instant", w.sameInstant)
			return
		}
		w.steps++
		it.fn()
		w.check.watch()
		if w.check.failed() {
			return
		}
	}
	w.now = t
}

// logf adds a line to the trace.
func (w *World) logf(format string, args ...any) {
	line := fmt.Sprintf("%10.4f  ", w.now.Sub(beginning()).Seconds()) + fmt.Sprintf(format, args...)
	w.hash = allocate.Hash(w.hash).String(line).Sum64()
	if w.opt.KeepTrace {
		w.trace = append(w.trace, line)
	}
}

// between is a duration drawn evenly from [lo, hi).
func (w *World) between(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(w.rng.Int64N(int64(hi-lo)))
}

func (w *World) link(from, to string) *linkState {
	l := w.links[link{from, to}]
	if l == nil {
		l = &linkState{}
		w.links[link{from, to}] = l
	}
	return l
}

// loseTime is Linux's least retransmission timeout.
const loseTime = 200 * time.Millisecond

// delay is one network transit: mostly well under a millisecond, at times long.
func (w *World) delay() time.Duration {
	if w.opt.Latency > 0 {
		d := w.between(w.opt.Latency*4/5, w.opt.Latency*6/5)
		if w.opt.Loss > 0 && w.rng.Float64() < w.opt.Loss {
			d += loseTime
		}
		return d
	}
	switch {
	case w.opt.Even:
	case w.rng.IntN(200) == 0:
		return w.between(5*time.Millisecond, 50*time.Millisecond)
	case w.rng.IntN(10) == 0:
		return w.between(time.Millisecond, 4*time.Millisecond)
	}
	return w.between(50*time.Microsecond, 600*time.Microsecond)
}

// transit carries fn over a link, not before notBefore; on a cut link it waits
// for the heal, as TCP would retransmit. It returns the planned arrival.
func (w *World) transit(from, to string, notBefore time.Time, fn func()) time.Time {
	l := w.link(from, to)
	if l.cut {
		l.held = append(l.held, fn)
		return notBefore
	}
	at := w.now.Add(w.delay() + l.lag)
	if !at.After(notBefore) {
		at = notBefore.Add(time.Nanosecond)
	}
	w.at(at, func() {
		if l.cut { // cut while under way: retransmitted after the heal
			l.held = append(l.held, fn)
			return
		}
		fn()
	})
	return at
}

// sees shows a frame that is sent on a session to whoever counts them.
func (w *World) sees(f any) {
	if w.frame != nil {
		w.frame(f)
	}
}

func (w *World) cut(from, to string) {
	w.link(from, to).cut = true
	w.logf("net      cut %s -> %s", from, to)
}

func (w *World) heal(from, to string) {
	l := w.link(from, to)
	if !l.cut || w.forGood[link{from, to}] {
		return
	}
	l.cut = false
	w.logf("net      heal %s -> %s (%d held)", from, to, len(l.held))
	held := l.held
	l.held = nil
	at := w.now.Add(w.delay())
	for _, fn := range held {
		at = at.Add(time.Nanosecond)
		w.at(at, fn)
	}
}

// node is a process that can be down or paused. Work for a paused process waits
// until it resumes; work for a life that has ended is dropped.
type node struct {
	name    string
	life    int
	up      bool
	paused  bool
	waiting []func()
	turned  func() // after it was paused, and before it goes on
}

// do runs fn in the process if that life of it still lasts.
func (n *node) do(life int, fn func()) {
	switch {
	case !n.up || n.life != life:
	case n.paused:
		n.waiting = append(n.waiting, func() { n.do(life, fn) })
	default:
		fn()
	}
}

func (n *node) resume() {
	n.paused = false
	if n.turned != nil {
		n.turned()
	}
	waiting := n.waiting
	n.waiting = nil
	for _, fn := range waiting {
		fn()
	}
}

func sortedKeys[K interface{ ~uint64 | ~string }, V any](m map[K]V) []K {
	return slices.Sorted(maps.Keys(m))
}
