package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/group"
	"github.com/tacitmq/tacit/internal/routes"
	"github.com/tacitmq/tacit/internal/wire"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/route"
)

// askTimeout bounds how long a start asks name servers for an entry of this
// broker's name.
const askTimeout = 500 * time.Millisecond

// retryFirst and retryLast bound the pause before a name server is tried again.
const (
	retryFirst = 100 * time.Millisecond
	retryLast  = 3 * time.Second
)

// Two live brokers of one name exceed each other for ever. A broker that was
// exceeded so often within rivalTime gives up. One that found its name taken by
// another address when it started does so first: it is the newcomer.
const (
	rivalTime     = 15 * time.Second
	rivalLimit    = 8
	newcomerLimit = 4
)

// ErrNameInUse is why a broker gives up that shares its name with another live one.
var ErrNameInUse = errors.New("another live broker has the name of this one")

// registrar keeps the broker registered with all name servers, and its idea of
// the routes of its own topics merged from all of them.
type registrar struct {
	s       *Server
	source  routes.Source // nil: no name servers
	watcher *routes.Watcher
	telling sync.Mutex // what the core is told is in order

	mu      sync.Mutex
	epoch   uint64
	bumped  chan struct{} // closed and replaced with every new epoch
	exceed  uint64        // an epoch to be exceeded
	exceeds chan struct{} // capacity 1: exceed has grown

	// Of run.
	newcomer bool        // the name was registered with another address at the start
	exceeded []time.Time // when a higher epoch had to be taken lately
}

func newRegistrar(s *Server) (*registrar, error) {
	r := &registrar{s: s, bumped: make(chan struct{}), exceeds: make(chan struct{}, 1)}
	if len(s.cfg.NameServers) == 0 {
		return r, nil
	}
	source, err := routes.ParseAll(s.cfg.NameServers)
	if err != nil {
		return nil, fmt.Errorf("name servers: %w", err)
	}
	r.source = source
	r.watcher = routes.New(source, routes.WithAll(), routes.WithLogger(s.log), routes.WithDialer(s.opt.dialer),
		routes.WithDialOptions(s.opt.dial...), routes.WithNotify(func([]route.Topic) { r.routesChanged() }))
	return r, nil
}

// highest asks all name servers at once for the highest epoch they know of this
// broker's name. One that does not answer in time tells later, when the broker
// registers.
func (r *registrar) highest(ctx context.Context) uint64 {
	if r.source == nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	answer, err := routes.Get(ctx, r.source, r.s.opt.dialer)
	if err != nil {
		return 0
	}
	for _, b := range answer.Brokers {
		if b.Name == r.s.cfg.Name {
			r.newcomer = b.Address != r.s.advertise
			return b.Stamp.Epoch
		}
	}
	return 0
}

func (r *registrar) setEpoch(epoch uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.epoch = epoch
	close(r.bumped)
	r.bumped = make(chan struct{})
}

// entry is what the broker says of itself at this moment.
func (s *Server) entry() *tacitv1.BrokerEntry {
	return s.registrar.entryAt(s.topics.set())
}

func (r *registrar) entryAt(set *topicSet) *tacitv1.BrokerEntry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return wire.BrokerEntry(route.Broker{
		Name: r.s.cfg.Name, Address: r.s.advertise, Cluster: r.s.cfg.Cluster,
		Stamp: route.Stamp{Epoch: r.epoch, Version: set.version},
	})
}

// run keeps registrations and routes until ctx ends.
func (r *registrar) run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // so that all ends if this gives up
	if r.source == nil {
		r.s.log.Info("no name servers are configured: the broker serves alone, and clients find it by its address only", zap.String("advertised", r.s.advertise))
	} else {
		wg.Go(func() { _ = r.watcher.Run(ctx) }) // returns nil, when ctx ends
		wg.Go(func() { routes.Each(ctx, r.source, routes.DefaultListInterval, r.s.log, r.keep) })
	}
	set := r.s.topics.set()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-set.changed:
			set = r.s.topics.set()
			r.topicsChanged()
		case <-r.exceeds:
			if err := r.takeHigher(ctx); err != nil {
				return err
			}
		}
	}
}

// topicsChanged tells the core which queues are here.
func (r *registrar) topicsChanged() {
	r.telling.Lock()
	r.s.driver.step(group.LocalQueues{Queues: r.s.topics.set().local(r.s.cfg.Name)})
	r.tellRoutes()
	r.telling.Unlock()
	r.s.groups.tellTopics()
}

// takeHigher exceeds an epoch that a name server knows of this broker's name: its
// disk was replaced or its clock set back. All members say hello again.
func (r *registrar) takeHigher(ctx context.Context) error {
	r.mu.Lock()
	known, mine := r.exceed, r.epoch
	r.mu.Unlock()
	if known < mine {
		return nil
	}
	if r.rivalled(time.Now()) {
		return r.nameInUse(ctx, known)
	}
	epoch, err := r.s.store.State().NextEpoch(known)
	if err != nil {
		return fmt.Errorf("exceed broker epoch %d: %w", known, err)
	}
	r.s.log.Error("a name server knows a newer life of this broker: its disk was replaced, its clock set back, or another broker has the same name",
		zap.Uint64("known", known), zap.Uint64("mine", mine), zap.Uint64("taken", epoch))
	r.s.begin(epoch)
	return nil
}

// rivalled reports whether this is one time too often that another life of this
// name had a higher epoch.
func (r *registrar) rivalled(now time.Time) bool {
	r.exceeded = slices.DeleteFunc(r.exceeded, func(t time.Time) bool { return now.Sub(t) > rivalTime })
	r.exceeded = append(r.exceeded, now)
	limit := rivalLimit
	if r.newcomer {
		limit = newcomerLimit
	}
	return len(r.exceeded) >= limit
}

// nameInUse is the error of a broker that gives up; it names the other.
func (r *registrar) nameInUse(ctx context.Context, epoch uint64) error {
	other := "an address not known"
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if answer, err := routes.Get(ctx, r.source, r.s.opt.dialer); err == nil {
		for _, b := range answer.Brokers {
			if b.Name == r.s.cfg.Name && b.Address != r.s.advertise {
				other = b.Address
			}
		}
	}
	return fmt.Errorf("%w: broker %q at %s, this one is at %s; name servers had a higher epoch of it %d times within %v, the last was %d",
		ErrNameInUse, r.s.cfg.Name, other, r.s.advertise, len(r.exceeded), rivalTime, epoch)
}

// keep keeps the broker registered with one name server until ctx ends.
func (r *registrar) keep(ctx context.Context, address string) {
	log := r.s.log.With(zap.String("nameserver", address))
	conn, err := routes.Dial(address, r.s.opt.dialer, r.s.opt.dial...)
	if err != nil {
		log.Error("name server cannot be dialled", zap.Error(err))
		return
	}
	defer func() { _ = conn.Close() }() // fails only if it is closed
	pause, logged := retryFirst, false
	for ctx.Err() == nil {
		begun := time.Now()
		err := r.register(ctx, address, tacitv1.NewNameServerServiceClient(conn))
		if ctx.Err() != nil {
			return
		}
		if time.Since(begun) > retryLast {
			pause, logged = retryFirst, false
		}
		if !logged {
			log.Warn("not registered, trying on", zap.Error(err))
			logged = true
		}
		if !sleep(ctx, pause) {
			return
		}
		pause = min(2*pause, retryLast)
	}
}

// register holds one registration stream: everything first, then what changed,
// and heartbeats.
func (r *registrar) register(ctx context.Context, address string, client tacitv1.NameServerServiceClient) error {
	// The stream must outlive ctx for the sign-off.
	streamCtx, cancelStream := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelStream()
	stream, err := client.Register(streamCtx)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	full := make(chan struct{}, 1)
	failed := make(chan error, 1)
	gauge := r.s.metrics.registered.WithLabelValues(address)
	defer gauge.Set(0)
	var wg sync.WaitGroup
	wg.Go(func() { failed <- r.responses(stream, gauge, full) }) // ends with the stream
	defer wg.Wait()
	defer cancelStream()
	beat := time.NewTicker(r.s.cfg.RegisterInterval)
	defer beat.Stop()
	r.mu.Lock()
	bumped := r.bumped
	r.mu.Unlock()
	var sent *topicSet
	seq := uint64(0)
	for {
		set := r.s.topics.set()
		seq++
		req := &tacitv1.RegisterRequest{Entry: r.entryAt(set), Seq: seq}
		if sent == nil {
			req.Full = true
			for _, t := range set.sorted() {
				req.Topics = append(req.Topics, t.proto())
			}
		} else if set != sent {
			req.Topics, req.RemovedTopics = delta(sent, set)
		}
		if err := stream.Send(req); err != nil {
			return errors.Join(err, <-failed)
		}
		sent = set
		select {
		case <-beat.C:
		case <-set.changed:
		case <-bumped:
			r.mu.Lock()
			bumped = r.bumped
			r.mu.Unlock()
			sent = nil
		case <-full:
			sent = nil
		case err := <-failed:
			return err
		case <-ctx.Done():
			return r.signOff(stream, seq+1, failed)
		}
	}
}

// signOff takes the broker off the name server.
func (r *registrar) signOff(stream grpc.BidiStreamingClient[tacitv1.RegisterRequest, tacitv1.RegisterResponse], seq uint64, ended <-chan error) error {
	if err := stream.Send(&tacitv1.RegisterRequest{Entry: r.s.entry(), Leaving: true, Seq: seq}); err != nil {
		return fmt.Errorf("sign off: %w", err)
	}
	if err := stream.CloseSend(); err != nil {
		return fmt.Errorf("sign off: %w", err)
	}
	wait := time.NewTimer(time.Second)
	defer wait.Stop()
	select {
	case err := <-ended:
		return err
	case <-wait.C:
		return nil
	}
}

// responses reads what a name server answers until the stream ends.
func (r *registrar) responses(stream grpc.BidiStreamingClient[tacitv1.RegisterRequest, tacitv1.RegisterResponse], gauge prometheus.Gauge, full chan<- struct{}) error {
	for {
		resp, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("registration: %w", err)
		}
		gauge.Set(1) // it has taken the entry
		if resp.GetNeedFull() {
			select {
			case full <- struct{}{}:
			default:
			}
		}
		if e := resp.GetSupersededByEpoch(); e > 0 {
			r.mu.Lock()
			r.exceed = max(r.exceed, e)
			r.mu.Unlock()
			select {
			case r.exceeds <- struct{}{}:
			default:
			}
		}
	}
}

// delta lists what changed from one set of topics to the next.
func delta(from, to *topicSet) (changed []*tacitv1.TopicConfig, removed []string) {
	for name, t := range to.byName {
		if from.byName[name] != t {
			changed = append(changed, t.proto())
		}
	}
	for name := range from.byName {
		if to.byName[name] == nil {
			removed = append(removed, name)
		}
	}
	return changed, removed
}

// routesChanged tells the core the routes of the topics this broker hosts. Of
// itself the broker knows best.
func (r *registrar) routesChanged() {
	r.telling.Lock()
	r.tellRoutes()
	r.telling.Unlock()
	r.s.groups.routesChanged()
}

func (r *registrar) tellRoutes() {
	set := r.s.topics.set()
	name := r.s.cfg.Name
	topics := make([]group.Topic, 0, len(set.byName))
	for _, t := range set.sorted() {
		var merged route.Topic
		if r.watcher != nil {
			merged, _ = r.watcher.Lookup(t.name)
		}
		own := route.Host{
			Broker: route.Broker{Name: name, Address: r.s.advertise},
			Config: route.Config{Topic: t.name, ReadQueues: t.read, WriteQueues: t.write, Readable: t.readable, Writable: t.writable},
		}
		full := route.Topic{Name: t.name, Hosts: []route.Host{own}}
		for _, h := range merged.Hosts {
			if h.Broker.Name != name {
				full.Hosts = append(full.Hosts, h)
			}
		}
		topics = append(topics, group.Topic{Name: t.name, Brokers: full.Brokers(), Queues: full.Readable()})
	}
	slices.SortFunc(topics, func(a, b group.Topic) int { return allocate.CompareStrings(a.Name, b.Name) })
	r.s.driver.step(group.Routes{Topics: topics, Partial: r.watcher != nil && !r.watcher.Complete()})
}
