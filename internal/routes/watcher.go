// Package routes keeps the routes of topics up to date on behalf of brokers and
// clients: it watches all name servers at once and merges what they say as
// package route describes.
//
//   - A name server that cannot be reached, is warming up or lost its broker list
//     takes nothing away; the last known routes stay.
//   - Each watch is opened again every [DefaultReread], so that one that died
//     without a word is noticed; a server that does not answer within
//     [FirstAnswer] is dialled again, with growing pauses and chance in them.
//   - Host names are resolved again at every dial and all their addresses tried.
//   - The list of name servers may change while a Watcher runs, see [Source]; a
//     server that left it is let go of at once.
package routes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/tacitmq/tacit/internal/rpcerr"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/route"
)

// Times of a Watcher.
const (
	// DefaultReread is the time after which a watch is opened again.
	DefaultReread = 20 * time.Second
	// DefaultListInterval is the time between two looks at the list of name servers.
	DefaultListInterval = 10 * time.Second
	// FirstAnswer is how long a name server may take to answer.
	FirstAnswer = 5 * time.Second
	// SilenceLimit is how long a name server that cannot be reached still counts
	// with its last word: its restart must not make the others' gaps count.
	SilenceLimit = 10 * time.Second
	// WarmLimit is how long a name server that restarted may be warming before
	// what it said until then stops counting: no broker may ever reach it again.
	WarmLimit = 30 * time.Second

	dialTimeout     = 3 * time.Second
	listTimeout     = 5 * time.Second
	backoffBase     = 100 * time.Millisecond
	backoffMax      = 3 * time.Second
	refreshDistance = 250 * time.Millisecond // between two openings of a watch
)

// Dialer opens a connection to host:port.
type Dialer func(ctx context.Context, address string) (net.Conn, error)

// Watcher keeps routes up to date. New, then Run; all methods may be called at
// any time and from everywhere, also before Run.
type Watcher struct {
	source  Source
	log     *zap.Logger
	dialer  Dialer
	dial    []grpc.DialOption // besides those of every connection
	all     bool
	reread  time.Duration
	list    time.Duration
	notify  func([]route.Topic)
	publish chan struct{} // capacity 1: something is in changed

	mu      sync.Mutex
	topics  map[string]bool // of interest
	again   chan struct{}   // closed when watches must be opened again, then replaced
	table   *route.Table
	servers map[string]*status
	changed map[string]bool // not told to notify yet
	// completed: notify knows that the routes are complete.
	completed bool
	news      chan struct{} // closed when anything changes, then replaced
}

// status is how it goes with one name server.
type status struct {
	tried   bool // it answered or failed at least once
	heard   bool // it answered at least once
	err     error
	warming time.Time // since when; zero if it is not
}

// Option changes a default of [New].
type Option func(*Watcher)

// WithLogger logs state changes. Default: nothing is logged.
func WithLogger(log *zap.Logger) Option { return func(w *Watcher) { w.log = log } }

// WithDialer opens connections. Default: TCP, resolving the name each time.
func WithDialer(d Dialer) Option { return func(w *Watcher) { w.dialer = d } }

// WithDialOptions adds options to every dial. Default: none.
func WithDialOptions(opts ...grpc.DialOption) Option {
	return func(w *Watcher) { w.dial = append(w.dial, opts...) }
}

// WithAll watches every topic and the list of all brokers. Default: the topics of
// SetTopics and AddTopics.
func WithAll() Option { return func(w *Watcher) { w.all = true } }

// WithReread sets the time after which a watch is opened again. Default: [DefaultReread].
func WithReread(d time.Duration) Option { return func(w *Watcher) { w.reread = d } }

// WithListInterval sets the time between two looks at the source. Default:
// [DefaultListInterval].
func WithListInterval(d time.Duration) Option { return func(w *Watcher) { w.list = d } }

// WithNotify is told the topics of which something else is known than before:
// with hosts, or without if the topic is known not to exist. Calls come one at a
// time from Run, the latest state last; several changes may come as one, and one may come without topics, when
// the routes are complete. It may call the Watcher. Default: nobody is told.
func WithNotify(f func(changed []route.Topic)) Option { return func(w *Watcher) { w.notify = f } }

// New returns a Watcher of the name servers of source.
func New(source Source, opts ...Option) *Watcher {
	w := &Watcher{
		source: source, log: zap.NewNop(), reread: DefaultReread, list: DefaultListInterval,
		publish: make(chan struct{}, 1), topics: make(map[string]bool), again: make(chan struct{}),
		table: route.NewTable(), servers: make(map[string]*status), changed: make(map[string]bool), news: make(chan struct{}),
	}
	for _, o := range opts {
		o(w)
	}
	return w
}

// Run watches until ctx ends and returns nil then.
func (w *Watcher) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { w.tell(ctx) })
	Each(ctx, w.source, w.list, w.log, w.serve)
	return nil
}

// SetTopics replaces the topics of interest. The routes of others are forgotten.
func (w *Watcher) SetTopics(names ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := make(map[string]bool, len(names))
	more := false
	for _, n := range names {
		now[n] = true
		more = more || !w.topics[n]
	}
	for n := range w.topics {
		if !now[n] && !w.all {
			w.table.Forget(n)
			delete(w.changed, n)
		}
	}
	w.topics = now
	if more {
		w.reopen()
	}
}

// AddTopics adds topics of interest.
func (w *Watcher) AddTopics(names ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	more := false
	for _, n := range names {
		more = more || !w.topics[n]
		w.topics[n] = true
	}
	if more {
		w.reopen()
	}
}

// Refresh asks all name servers again now, also those that are being waited for.
// It does not wait for the answers. Calls in quick succession count as one.
func (w *Watcher) Refresh() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reopen()
}

// reopen has every watch opened again. w.mu is held.
func (w *Watcher) reopen() {
	close(w.again)
	w.again = make(chan struct{})
}

// Lookup returns what is known of a topic at the moment.
func (w *Watcher) Lookup(topic string) (route.Topic, route.Known) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.table.Lookup(topic)
}

// Complete reports whether a name server that is ready has been heard, see
// [route.Table.Complete].
func (w *Watcher) Complete() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.table.Complete()
}

// Topics returns the routes of all topics of interest that have hosts, sorted.
func (w *Watcher) Topics() []route.Topic {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.table.Topics()
}

// Brokers returns all registered brokers, sorted; empty without [WithAll].
func (w *Watcher) Brokers() []route.Broker {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.table.Brokers()
}

// News returns a channel that is closed when anything changes after the call:
// a route, or whether a name server can be reached.
func (w *Watcher) News() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.news
}

// Wait adds a topic to those of interest and returns its route once it has one.
// If all name servers that can be reached agree that there is no such topic the
// error is [rpcerr.ErrTopicNotFound]; if ctx ends before, it wraps ctx's error and
// [rpcerr.ErrUnreachable] or [rpcerr.ErrWarming].
func (w *Watcher) Wait(ctx context.Context, topic string) (route.Topic, error) {
	w.AddTopics(topic)
	for {
		w.mu.Lock()
		t, known := w.table.Lookup(topic)
		settled := known == route.Absent && w.tried() && !w.table.Pending(topic)
		news := w.news
		w.mu.Unlock()
		switch {
		case known == route.Found:
			return t, nil
		case settled:
			return t, fmt.Errorf("topic %q: %w", topic, rpcerr.ErrTopicNotFound)
		}
		select {
		case <-ctx.Done():
			return t, fmt.Errorf("route of topic %q: %w: %w", topic, w.trouble(), context.Cause(ctx))
		case <-news:
		}
	}
}

// Ready returns nil once a name server has answered, warming or not; otherwise
// what keeps them. It does not wait.
func (w *Watcher) Ready() error {
	w.mu.Lock()
	for address := range w.servers {
		if w.table.State(address) != route.Unreachable {
			w.mu.Unlock()
			return nil
		}
	}
	w.mu.Unlock()
	return w.trouble()
}

// trouble says why no answer has come.
func (w *Watcher) trouble() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	errs := []error{rpcerr.ErrUnreachable}
	for _, address := range w.addresses() {
		switch s := w.servers[address]; {
		case s.err != nil:
			errs = append(errs, fmt.Errorf("name server %s: %w", address, s.err))
		case w.table.State(address) == route.Warming:
			return fmt.Errorf("name server %s: %w", address, rpcerr.ErrWarming)
		}
	}
	if len(w.servers) == 0 {
		errs = append(errs, ErrNoAddresses)
	}
	return joined(errs)
}

// tried reports whether every name server has answered or failed. w.mu is held.
func (w *Watcher) tried() bool {
	for _, s := range w.servers {
		if !s.tried {
			return false
		}
	}
	return len(w.servers) > 0
}

// addresses returns the servers in use, sorted. w.mu is held.
func (w *Watcher) addresses() []string {
	out := make([]string, 0, len(w.servers))
	for a := range w.servers {
		out = append(out, a)
	}
	slices.SortFunc(out, strings.Compare)
	return out
}

// tell passes changes on, one call at a time.
func (w *Watcher) tell(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.publish:
		}
		w.mu.Lock()
		changed := make([]route.Topic, 0, len(w.changed))
		for name := range w.changed {
			if t, known := w.table.Lookup(name); known != route.Unknown {
				changed = append(changed, t)
			}
		}
		clear(w.changed)
		completed := !w.completed && w.table.Complete()
		w.completed = w.completed || completed
		w.mu.Unlock()
		slices.SortFunc(changed, func(a, b route.Topic) int { return strings.Compare(a.Name, b.Name) })
		if (len(changed) > 0 || completed) && w.notify != nil {
			w.notify(changed)
		}
	}
}

// told wakes whoever waits for changes. w.mu is held.
func (w *Watcher) told(changed []string) {
	for _, name := range changed {
		w.changed[name] = true
	}
	close(w.news)
	w.news = make(chan struct{})
	select {
	case w.publish <- struct{}{}:
	default: // tell has not begun with the last ones
	}
}

// joined makes one error of several, in one line.
func joined(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	return &list{errs}
}

type list struct{ errs []error }

func (l *list) Error() string {
	text := make([]string, 0, len(l.errs))
	for _, e := range l.errs {
		text = append(text, e.Error())
	}
	return strings.Join(text, ": ")
}

func (l *list) Unwrap() []error { return l.errs }

var (
	// errAgain ends a watch that is to be opened again.
	errAgain = errors.New("watch is opened again")
	// errSilent ends a watch whose server does not answer.
	errSilent = fmt.Errorf("no answer within %v", FirstAnswer)
)

func client(conn *grpc.ClientConn) tacitv1.NameServerServiceClient {
	return tacitv1.NewNameServerServiceClient(conn)
}
