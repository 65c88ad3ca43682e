package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/group"
	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/session"
)

// driver owns the group core. Every event takes its turn, in which no I/O is
// done: frames go to the sessions' queues, and what must be stored waits for the
// writer.
type driver struct {
	name    string
	st      *store.Store
	log     *zap.Logger
	metrics *metrics

	turn *turn

	// All below are used in turn only.
	reg      *group.Registry
	life     int // of reg: what an earlier one wanted stored is nothing to this one
	sessions map[group.SessionID]*memberSession
	nextID   group.SessionID
	nextReq  uint64
	waiting  map[uint64]func(error)  // commits and resets not yet answered
	pending  []group.Persist         // not yet written, in order
	granted  map[lease.Key]time.Time // since when leases are held
	alike    alike
	timer    *time.Timer
	stopped  bool

	kick chan struct{} // capacity 1: there is something to write
}

func newDriver(name string, st *store.Store, log *zap.Logger, m *metrics) *driver {
	d := &driver{
		name: name, st: st, log: log, metrics: m, turn: newTurn(),
		sessions: make(map[group.SessionID]*memberSession),
		waiting:  make(map[uint64]func(error)),
		granted:  make(map[lease.Key]time.Time),
		kick:     make(chan struct{}, 1),
	}
	d.timer = time.AfterFunc(time.Hour, func() { d.step(group.Wake{}) }) // ended by stop
	d.timer.Stop()
	return d
}

// begin makes a registry from the stored leases. Called again with a higher epoch
// it ends all sessions, whose members come back and name what they hold.
func (d *driver) begin(cfg group.Config, local []allocate.Queue) {
	records := d.records()
	d.turn.call(func() {
		d.endAll("the broker takes a higher epoch")
		for req, done := range d.waiting {
			done(fmt.Errorf("%w: the broker takes a higher epoch", rpcerr.ErrWarming))
			delete(d.waiting, req)
		}
		d.pending = nil
		d.life++
		d.reg = group.New(cfg, records, time.Now())
		d.inTurn(group.LocalQueues{Queues: local})
	})
}

// records returns the stored leases as the core knows them. The instance of a
// static member is stored behind its client id, which has no NUL byte.
func (d *driver) records() []lease.Record {
	stored := d.st.State().Leases()
	out := make([]lease.Record, 0, len(stored))
	for _, l := range stored {
		holder, instance := cutHolder(l.Holder)
		out = append(out, lease.Record{
			Key:           lease.Key{Group: l.Group, Queue: allocate.Queue{Topic: l.Queue.Topic, Broker: d.name, ID: l.Queue.ID}},
			Epoch:         session.Epoch{Broker: l.EpochBroker, Counter: l.EpochCounter},
			Holder:        holder,
			Instance:      instance,
			Incarnation:   session.Incarnation{Counter: l.Incarnation[0], Random: l.Incarnation[1]},
			Claimed:       l.Holder != "" && l.Timeout == 0 && l.Incarnation == [2]uint64{},
			TimeoutMillis: l.Timeout.Milliseconds(),
		})
	}
	return out
}

// step has one event applied and its effects performed.
func (d *driver) step(ev group.Event) {
	d.turn.do(func() { d.inTurn(ev) })
}

func (d *driver) inTurn(ev group.Event) {
	if d.stopped || d.reg == nil {
		return
	}
	for _, eff := range d.reg.Step(time.Now(), ev) {
		d.perform(eff)
	}
}

func (d *driver) perform(eff group.Effect) {
	switch eff := eff.(type) {
	case group.WakeAt:
		d.timer.Reset(time.Until(eff.At))
	case group.Send:
		if s := d.sessions[eff.Session]; s != nil {
			s.push(d.alike.outgoing(d.fill(s.group, eff.Frame)))
		}
	case group.CloseSession:
		if s := d.sessions[eff.Session]; s != nil {
			s.finish()
		}
	case group.Persist:
		d.pending = append(d.pending, eff)
		select {
		case d.kick <- struct{}{}:
		default:
		}
	case group.Answer:
		if done := d.waiting[eff.Req]; done != nil {
			delete(d.waiting, eff.Req)
			done(fromLease(eff.Err))
		}
	}
}

// fill completes grants with the offset as it is stored at this moment. Frames
// belong to the core, so what changes is copied.
func (d *driver) fill(groupName string, f session.ToMember) session.ToMember {
	if w, ok := f.(session.Welcome); ok {
		w.Grants = d.fillGrants(groupName, w.Grants)
		return w
	}
	if g, ok := f.(session.Granted); ok {
		g.Grants = d.fillGrants(groupName, g.Grants)
		return g
	}
	return f
}

func (d *driver) fillGrants(groupName string, in []session.Grant) []session.Grant {
	if len(in) == 0 {
		return in
	}
	state := d.st.State()
	out := make([]session.Grant, len(in))
	for i, g := range in {
		if !g.Kept {
			d.granted[lease.Key{Group: groupName, Queue: g.Queue}] = time.Now()
			g.Offset, g.HasOffset = state.Offset(groupName, store.Queue{Topic: g.Queue.Topic, ID: g.Queue.ID})
		}
		out[i] = g
	}
	return out
}

// write stores what the core wants stored, all that has gathered as one update,
// and tells the core. It returns when ctx is done and nothing waits any more.
func (d *driver) write(ctx context.Context) error {
	u := d.st.State().NewUpdate()
	failing := false
	for {
		var batch []group.Persist
		var life int
		d.turn.call(func() {
			batch, life = d.pending, d.life
			d.pending = nil
		})
		if len(batch) == 0 {
			select {
			case <-d.kick:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		for _, p := range batch {
			gather(u, p)
		}
		err := d.st.State().Apply(ctx, u)
		if isUnstorable(err) {
			// One entry names what is gone or cannot be; the others must not suffer.
			err = d.writeEach(ctx, batch)
		}
		if err != nil {
			if errors.Is(err, store.ErrClosed) || ctx.Err() != nil {
				return nil //nolint:nilerr // stopping; what was not stored was not answered
			}
			if !failing {
				d.log.Error("leases and offsets not stored, trying on: grants and commits wait", append(tried(batch), zap.Error(err))...)
			}
			failing = true
			d.turn.call(func() {
				if life == d.life {
					d.pending = append(batch, d.pending...)
				}
			})
			if !sleep(ctx, retryStore) {
				return nil
			}
			continue
		}
		if failing {
			d.log.Info("leases and offsets are stored again", tried(batch)...)
		}
		failing = false
		d.metrics.persisted.Add(float64(len(batch)))
		d.turn.do(func() {
			for i := 0; i < len(batch) && life == d.life; i++ {
				d.inTurn(group.Persisted{ID: batch[i].ID})
			}
		})
	}
}

// retryStore is the pause after the state could not be written.
const retryStore = 100 * time.Millisecond

func gather(u *store.Update, p group.Persist) {
	for _, o := range p.Offsets {
		u.CommitOffset(o.Group, localQueue(o.Queue), o.Offset)
	}
	for _, o := range p.Resets {
		q := localQueue(o.Queue)
		u.ResetOffset(o.Group, q, o.Offset)
		// What is handed out again may fail again.
		u.DeleteRange(sentBackSpace, sentBackFrom(o.Group, q, o.Offset), sentBackEnd(o.Group, q))
	}
	for _, r := range p.Records {
		u.PutLease(storedLease(r))
	}
}

// writeEach stores entries one by one and leaves out those that cannot be stored, which
// it says once for each topic and group.
func (d *driver) writeEach(ctx context.Context, batch []group.Persist) error {
	type place struct{ group, topic string }
	dropped := make(map[place][]group.Persist)
	why := make(map[place]error)
	defer func() {
		for at, parts := range dropped {
			d.log.Warn("dropped what cannot be stored", append(tried(parts), zap.Error(why[at]))...)
		}
	}()
	for _, p := range batch {
		for _, part := range split(p) {
			u := d.st.State().NewUpdate()
			gather(u, part)
			if err := d.st.State().Apply(ctx, u); isUnstorable(err) {
				name, queue := firstOf(part)
				at := place{name, queue.Topic}
				dropped[at], why[at] = append(dropped[at], part), err
			} else if err != nil {
				return err
			}
		}
	}
	return nil
}

// firstOf names the first of what is to be stored.
func firstOf(p group.Persist) (name string, queue allocate.Queue) {
	switch {
	case len(p.Records) > 0:
		return p.Records[0].Group, p.Records[0].Queue
	case len(p.Offsets) > 0:
		return p.Offsets[0].Group, p.Offsets[0].Queue
	case len(p.Resets) > 0:
		return p.Resets[0].Group, p.Resets[0].Queue
	}
	return "", allocate.Queue{}
}

// tried says what was to be stored: how much, and the first of it.
func tried(batch []group.Persist) []zap.Field {
	var leases, offsets, resets int
	var name string
	var queue allocate.Queue
	for _, p := range batch {
		leases, offsets, resets = leases+len(p.Records), offsets+len(p.Offsets), resets+len(p.Resets)
		if name == "" {
			name, queue = firstOf(p)
		}
	}
	return []zap.Field{
		zap.Int("leases", leases), zap.Int("offsets", offsets), zap.Int("resets", resets),
		zap.String("group", name), zap.String("topic", queue.Topic), zap.Int32("queue", queue.ID),
	}
}

func split(p group.Persist) (out []group.Persist) {
	for i := range p.Offsets {
		out = append(out, group.Persist{Offsets: p.Offsets[i : i+1]})
	}
	for i := range p.Resets {
		out = append(out, group.Persist{Resets: p.Resets[i : i+1]})
	}
	for i := range p.Records {
		out = append(out, group.Persist{Records: p.Records[i : i+1]})
	}
	return out
}

func isUnstorable(err error) bool {
	return errors.Is(err, store.ErrOffsetRange) || errors.Is(err, store.ErrNoQueue)
}

func storedLease(r lease.Record) store.Lease {
	return store.Lease{
		Group: r.Group, Queue: localQueue(r.Queue),
		EpochBroker: r.Epoch.Broker, EpochCounter: r.Epoch.Counter,
		Holder:      joinHolder(r.Holder, r.Instance),
		Incarnation: [2]uint64{r.Incarnation.Counter, r.Incarnation.Random},
		Timeout:     time.Duration(r.TimeoutMillis) * time.Millisecond,
	}
}

func localQueue(q allocate.Queue) store.Queue { return store.Queue{Topic: q.Topic, ID: q.ID} }

// check tells whether a fetch under this epoch may be answered.
func (d *driver) check(groupName string, q allocate.Queue, epoch session.Epoch) (err error) {
	d.turn.call(func() { err = fromLease(d.reg.Pulls(time.Now(), groupName, q, epoch)) })
	return err
}

// ask applies events that are each answered by an Answer, and waits for all
// answers. event makes the i-th with the request number it is given.
func (d *driver) ask(ctx context.Context, n int, event func(i int, req uint64) group.Event) ([]error, error) {
	if n == 0 {
		return nil, nil
	}
	type answer struct {
		i   int
		err error
	}
	answers := make(chan answer, n)
	var first uint64
	stopped := false
	d.turn.call(func() {
		if stopped = d.stopped; stopped {
			return
		}
		first = d.nextReq + 1
		d.nextReq += uint64(n)
		for i := range n {
			req := first + uint64(i)
			d.waiting[req] = func(err error) { answers <- answer{i, err} }
			d.inTurn(event(i, req))
		}
	})
	if stopped {
		return nil, rpcerr.ErrShuttingDown
	}
	out := make([]error, n)
	for range n {
		select {
		case a := <-answers:
			out[a.i] = a.err
		case <-ctx.Done():
			d.turn.do(func() {
				for i := range n {
					delete(d.waiting, first+uint64(i))
				}
			})
			return nil, ctx.Err()
		}
	}
	return out, nil
}

// forget drops what is remembered of leases that are no more.
func (d *driver) forget(gone func(lease.Key) bool) {
	d.turn.do(func() {
		maps.DeleteFunc(d.granted, func(k lease.Key, _ time.Time) bool { return gone(k) })
	})
}

// view runs f with the registry, which must not be kept.
func (d *driver) view(f func(r *group.Registry, now time.Time)) {
	d.turn.call(func() {
		if d.reg != nil {
			f(d.reg, time.Now())
		}
	})
}

// endAll tells all sessions that the broker goes and ends them. Leases stay as
// they are stored. Used in turn.
func (d *driver) endAll(text string) {
	for id, s := range d.sessions {
		delete(d.sessions, id)
		s.push(outgoing{frame: session.Refused{Reason: session.ReasonShutdown, Text: text}})
		s.finish()
	}
}

// stop ends all sessions; nothing happens any more after it. What was to be
// stored still waits for write.
func (d *driver) stop() {
	d.turn.call(func() {
		d.endAll("the broker stops")
		d.stopped = true
		d.timer.Stop()
		for req, done := range d.waiting {
			done(rpcerr.ErrShuttingDown)
			delete(d.waiting, req)
		}
	})
}

// sleep waits and reports false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
