package broker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/coordinator"
	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/coordination"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/internal/wire"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/route"
)

// maxOpenRequests is how many requests of one stream may wait for their answers: a
// member has one of each kind.
const maxOpenRequests = 64

// groups owns the core of the group coordinator, as driver does that of the sessions:
// every event takes its turn, in which no I/O is done.
type groups struct {
	s    *Server
	log  *zap.Logger
	turn *turn

	// All below are used in turn only.
	core    *coordinator.Coordinator
	nextID  uint64
	answers map[uint64]func(coordination.Answer) // of requests that wait
	watched []string
	hosts   []string
	timer   *time.Timer
	stopped bool
	writes  sync.WaitGroup // records on their way to the disk
}

func newGroups(s *Server) *groups {
	g := &groups{s: s, log: s.log, turn: newTurn(), answers: make(map[uint64]func(coordination.Answer))}
	g.timer = time.AfterFunc(time.Hour, func() { g.step(coordinator.Wake{}) }) // ended by stop
	g.timer.Stop()
	return g
}

// begin makes the core from what is stored, once.
func (g *groups) begin(epoch uint64) error {
	var records []coordinator.Record
	var damaged error
	err := g.s.store.State().Scan(groupSpace, "", func(key string, value []byte) bool {
		r, err := decodeRecord(key, value)
		if err != nil {
			damaged = err
			return false
		}
		records = append(records, r)
		return true
	})
	if err = errors.Join(err, damaged); err != nil {
		return fmt.Errorf("read coordinated groups: %w", err)
	}
	cfg := coordinator.Default()
	cfg.Broker, cfg.BrokerEpoch, cfg.NewID = g.s.cfg.Name, epoch, rand.Text
	cfg.InitialDelay, cfg.MaxSize = g.s.cfg.GroupInitialDelay, g.s.cfg.GroupMaxSize
	cfg.ConsumerSession, cfg.ConsumerInterval = g.s.cfg.GroupSessionTimeout, g.s.cfg.GroupHeartbeat
	g.turn.call(func() {
		if g.core != nil || g.stopped {
			return
		}
		var out []coordinator.Effect
		if g.core, out, err = coordinator.New(cfg, records, time.Now()); err == nil {
			g.perform(out)
			if len(g.hosts) > 0 { // heard of before
				g.inTurn(coordinator.Hosting{Brokers: g.hosts})
			}
		}
	})
	if err != nil {
		return fmt.Errorf("begin to coordinate: %w", err)
	}
	return nil
}

func (g *groups) step(ev coordinator.Event) {
	g.turn.do(func() { g.inTurn(ev) })
}

func (g *groups) inTurn(ev coordinator.Event) {
	if g.core != nil && !g.stopped {
		g.perform(g.core.Step(time.Now(), ev))
	}
}

func (g *groups) perform(out []coordinator.Effect) {
	for _, eff := range out {
		switch eff := eff.(type) {
		case coordinator.WakeAt:
			g.timer.Reset(time.Until(eff.At))
		case coordinator.Answer:
			if answer := g.answers[eff.ID]; answer != nil {
				delete(g.answers, eff.ID)
				answer(eff.Answer)
			}
		case coordinator.Persist:
			g.persist(eff)
		case coordinator.Watch:
			g.watched = eff.Topics
			g.s.streams.Go(g.tellTopics) // ends at once; not in this turn
		case coordinator.Happened:
			g.happened(eff)
		}
	}
}

func (g *groups) happened(h coordinator.Happened) {
	log := g.log.Info
	if h.What == coordinator.NotStored || h.What == coordinator.AssignFailed {
		log = g.log.Error
	}
	log("coordinated group", zap.String("what", string(h.What)), zap.String("group", h.Group), zap.String("reason", h.Reason),
		zap.String("member", h.Member), zap.Stringer("generation", h.Generation), zap.Int("members", h.Members))
	g.s.metrics.groupEvents.WithLabelValues(string(h.What)).Inc()
}

// persist stores records. Updates reach the disk in the order in which they are applied.
func (g *groups) persist(p coordinator.Persist) {
	u := g.s.store.State().NewUpdate()
	for _, k := range p.Delete {
		u.Delete(groupSpace, recordKey(k))
	}
	for _, r := range p.Put {
		b, err := encodeRecord(r)
		if err != nil {
			g.log.Error("group not stored", zap.Error(err))
			g.s.streams.Go(func() { g.step(coordinator.Persisted{ID: p.ID, Failed: true}) }) // ends at once
			return
		}
		u.Put(groupSpace, recordKey(r.Key()), b)
	}
	g.writes.Add(1)
	g.s.store.State().ApplyAsync(u, func(err error) {
		if err != nil && !errors.Is(err, store.ErrClosed) {
			g.log.Error("groups not stored", zap.Int("records", len(p.Put)), zap.Error(err))
		}
		go func() { // waited for by writes; the store must not wait for an assignor
			defer g.writes.Done()
			g.step(coordinator.Persisted{ID: p.ID, Failed: err != nil})
		}()
	})
}

// routesChanged tells the core which brokers live and what queues there are, by the
// word of the name servers; without any the broker is alone.
func (g *groups) routesChanged() {
	hosts := []string{g.s.cfg.Name}
	complete := true
	if w := g.s.registrar.watcher; w != nil {
		complete = w.Complete()
		for _, b := range w.Brokers() {
			hosts = append(hosts, b.Name)
		}
	}
	slices.Sort(hosts)
	hosts = slices.Compact(hosts)
	g.turn.do(func() {
		// Name servers that warm up do not know who is gone.
		if complete && !slices.Equal(hosts, g.hosts) {
			g.hosts = hosts
			g.inTurn(coordinator.Hosting{Brokers: hosts})
		}
	})
	g.tellTopics()
}

// tellTopics tells the core the queues of the topics it asked for, as far as they are
// known.
func (g *groups) tellTopics() {
	var watched []string
	g.turn.call(func() { watched = g.watched })
	if len(watched) == 0 {
		return
	}
	set := g.s.topics.set()
	queues := make(map[string][]allocate.Queue, len(watched))
	for _, t := range watched {
		if qs, known := g.queuesOf(t, set); known {
			queues[t] = qs
		}
	}
	g.step(coordinator.Topics{Queues: queues})
}

// queuesOf returns all readable queues of a topic; of its own the broker knows best.
func (g *groups) queuesOf(name string, set *topicSet) (queues []allocate.Queue, known bool) {
	full := route.Topic{Name: name}
	if w := g.s.registrar.watcher; w != nil {
		merged, k := w.Lookup(name)
		known = k != route.Unknown
		for _, h := range merged.Hosts {
			if h.Broker.Name != g.s.cfg.Name {
				full.Hosts = append(full.Hosts, h)
			}
		}
	} else {
		known = true
	}
	if t := set.byName[name]; t != nil {
		known = true
		full.Hosts = append(full.Hosts, route.Host{
			Broker: route.Broker{Name: g.s.cfg.Name, Address: g.s.advertise},
			Config: route.Config{Topic: name, ReadQueues: t.read, WriteQueues: t.write, Readable: t.readable, Writable: t.writable},
		})
	}
	return full.Readable(), known
}

// host is who coordinates a group, as far as this broker knows; empty before it knows.
func (g *groups) host(group string) (host string) {
	g.turn.call(func() { host = coordination.Host(group, g.hosts) })
	return host
}

// stop answers nobody any more; what is on its way to the disk gets there.
func (g *groups) stop() {
	g.turn.call(func() {
		g.stopped = true
		g.timer.Stop()
		clear(g.answers)
	})
}

// FindCoordinator names the broker that coordinates a group.
func (s *Server) FindCoordinator(_ context.Context, req *tacitv1.FindCoordinatorRequest) (*tacitv1.FindCoordinatorResponse, error) {
	if err := message.CheckGroup(req.GetGroup()); err != nil {
		return nil, err //nolint:wrapcheck // says all
	}
	return &tacitv1.FindCoordinatorResponse{Broker: s.groups.host(req.GetGroup())}, nil
}

type coordinateStream = grpc.BidiStreamingServer[tacitv1.CoordinateRequest, tacitv1.CoordinateResponse]

// asking is one stream of a member's requests.
type asking struct {
	s      *Server
	stream coordinateStream

	mu   sync.Mutex
	open map[uint64]uint64 // requests of the core, by that of the member
	ends bool
	out  chan *tacitv1.CoordinateResponse
}

// Coordinate serves the requests of one member. The end of the stream means nothing to
// the group.
func (s *Server) Coordinate(stream coordinateStream) error {
	a := &asking{s: s, stream: stream, open: make(map[uint64]uint64), out: make(chan *tacitv1.CoordinateResponse, maxOpenRequests)}
	read := make(chan error, 1)
	s.streams.Go(func() { read <- s.guard(a.read) }) // ends with the stream
	defer a.end()
	for {
		select {
		case r := <-a.out:
			if err := stream.Send(r); err != nil {
				return err //nolint:wrapcheck // a status
			}
		case err := <-read:
			return err
		case <-s.stopping:
			return rpcerr.ErrShuttingDown
		}
	}
}

func (a *asking) read() error {
	for {
		m, err := a.stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err //nolint:wrapcheck // a status
		}
		req, err := wire.ToCoordinationRequest(m)
		if err != nil {
			return fmt.Errorf("request %d: %w", m.GetId(), err)
		}
		if err := a.ask(m.GetId(), req); err != nil {
			return err
		}
	}
}

// ask has the core answer a request.
func (a *asking) ask(id uint64, req coordination.Request) error {
	g := a.s.groups
	a.mu.Lock()
	_, twice := a.open[id]
	full := len(a.open)+len(a.out) >= maxOpenRequests // each will need room in out
	if !twice && !full {
		a.open[id] = 0
	}
	a.mu.Unlock()
	switch {
	case twice:
		return rpcerr.Invalid("id", "%d: a request with it waits for its answer", id)
	case full:
		return rpcerr.Invalid("id", "%d: %d requests wait for their answers, or answers to be read, the most allowed", id, maxOpenRequests)
	}
	g.turn.do(func() {
		g.nextID++
		own := g.nextID
		a.mu.Lock()
		ended := a.ends
		a.open[id] = own
		a.mu.Unlock()
		if ended || g.stopped || g.core == nil {
			return
		}
		g.answers[own] = func(ans coordination.Answer) { a.answer(id, ans) }
		g.inTurn(coordinator.Request{ID: own, Request: req})
	})
	return nil
}

// answer never waits: open requests and answers that were not sent are together no more
// than there is room for.
func (a *asking) answer(id uint64, ans coordination.Answer) {
	code, _ := ans.Outcome()
	a.s.metrics.groupRequests.WithLabelValues(code.String()).Inc()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ends {
		return
	}
	delete(a.open, id)
	a.out <- wire.CoordinateResponse(id, ans)
}

// end tells the core that nobody hears the answers that are yet to come.
func (a *asking) end() {
	a.mu.Lock()
	a.ends = true
	var open []uint64
	for _, own := range a.open {
		open = append(open, own)
	}
	a.mu.Unlock()
	g := a.s.groups
	g.turn.do(func() {
		for _, own := range open {
			if g.answers[own] != nil {
				delete(g.answers, own)
				g.inTurn(coordinator.Cancelled{ID: own})
			}
		}
	})
}
