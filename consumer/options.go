package consumer

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/session"
)

// Mode is how the members of a group share queues.
type Mode = session.Mode

// The modes. The mode belongs to the group: a member that comes with another one
// is refused.
const (
	// Exclusive gives each queue to one member at a time. The default.
	Exclusive = session.Exclusive
	// Immediate is RocketMQ's concurrent hand-over: it never waits, and for a
	// while a queue may have two owners.
	Immediate = session.Immediate
	// Broadcasting hands every message to every member. Progress is kept in a
	// local file, see [WithOffsetFile].
	Broadcasting = session.Broadcasting
)

// Defaults and limits of the options.
const (
	DefaultConcurrency       = 20
	DefaultDrainLimit        = 5 * time.Second
	DefaultCommitInterval    = 5 * time.Second
	DefaultStallTimeout      = 5 * time.Minute
	DefaultMaxReconsumeTimes = 16
	DefaultQueueMessages     = 1000
	DefaultQueueBytes        = 100 << 20
	DefaultTotalBytes        = 256 << 20
	DefaultFetchBytes        = 1 << 20
	DefaultFetchWait         = 15 * time.Second
	DefaultPollMessages      = 500

	maxConcurrency = 10_000
	maxHandlerSize = 10_000
	minFetchBytes  = 4 << 10
	maxFetchWait   = 30 * time.Second
)

// Start says where a group begins on a queue on which it never committed.
type Start struct {
	kind startKind
	at   time.Time
}

type startKind uint8

const (
	startLast startKind = iota
	startFirst
	startAt
)

// Last begins after what is stored when the member comes, if the group never
// committed on any queue of the topic; otherwise at the first message, so that
// nothing is skipped on queues that are new to a running group. The default. A group
// begins within the first second of its first member: members that come in that time
// all begin after what is stored when they come.
func Last() Start { return Start{} }

// First begins at the oldest message stored.
func First() Start { return Start{kind: startFirst} }

// At begins at the first message stored at or after t, under the same condition
// as [Last].
func At(t time.Time) Start { return Start{kind: startAt, at: t} }

func (s Start) String() string {
	switch s.kind {
	case startFirst:
		return "first"
	case startAt:
		return s.at.UTC().Format(time.RFC3339Nano)
	case startLast:
	}
	return "last"
}

// Client is a set of connections that several consumers and producers share.
// Without one, those with the same settings share anyway.
type Client = client.Cluster

// Dialer opens a connection to an address as routes and name server lists have it.
type Dialer = client.Dialer

// NewClient opens a client for [WithClient]. Close it after its last user.
func NewClient(nameServers []string, opts ...Option) (Client, error) {
	var c config
	for _, o := range opts {
		o(&c)
	}
	return client.Open(client.Config{NameServers: nameServers, Dialer: c.dialer, Logger: c.log})
}

// Option changes a setting of a consumer.
type Option func(*config)

// WithTopic subscribes to a topic. filter is "*" for all messages, or up to 256 tags
// joined by "||", 4 KiB in all. All members of a group must have the same filter for a topic.
func WithTopic(topic, filter string) Option {
	return func(c *config) { c.topics = append(c.topics, session.Subscription{Topic: topic, Filter: filter}) }
}

// WithClient makes the consumer use the connections of a client.
func WithClient(cl Client) Option { return func(c *config) { c.client = cl } }

// WithDialer replaces the TCP dialer; such a consumer shares no connections.
// Default: net.Dialer.
func WithDialer(d Dialer) Option { return func(c *config) { c.dialer = d } }

// WithLogger sets the logger. Default: none.
func WithLogger(l *zap.Logger) Option { return func(c *config) { c.log = l } }

// WithRegisterer registers the metrics. Default: none.
func WithRegisterer(r prometheus.Registerer) Option { return func(c *config) { c.reg = r } }

// WithClientID sets the client id. Of two live members with one id one is
// refused. Default: "ip@pid#random".
func WithClientID(id string) Option { return func(c *config) { c.clientID = id } }

// WithInstanceID makes the consumer a static member: when it stops or breaks off,
// its share is kept for the session timeout, and a newcomer with the same id
// takes over, so that a restart moves no queue; an old one that still runs is
// fenced. Also the client id, if none is set. Default: none.
func WithInstanceID(id string) Option { return func(c *config) { c.instance = id } }

// WithLeaveOnStop says whether a static member that stops gives its queues to
// the others at once, as all other members do. Default: false.
func WithLeaveOnStop(on bool) Option { return func(c *config) { c.leaveOnStop = on } }

// WithMode sets the mode of the group. Default: [Exclusive].
func WithMode(m Mode) Option { return func(c *config) { c.mode = m } }

// WithStrategies sets the allocate strategies the member supports, most wanted
// first. The group uses the first that all members support. Default:
// [allocate.Default].
func WithStrategies(s ...allocate.Strategy) Option { return func(c *config) { c.strategies = s } }

// WithStrategyData announces the member's data for a strategy, such as its zone.
func WithStrategyData(strategy string, data []byte) Option {
	return func(c *config) {
		if c.data == nil {
			c.data = make(map[string][]byte)
		}
		c.data[strategy] = data
	}
}

// WithStart says where to begin on queues on which the group never committed.
// Default: [Last].
func WithStart(s Start) Option { return func(c *config) { c.start = s } }

// WithListener sets who is told of queues that come and go. Default: nobody.
func WithListener(l Listener) Option { return func(c *config) { c.listener = l } }

// WithConcurrency bounds the handlers that run at once, 1 to 10,000. Default: 20.
func WithConcurrency(n int) Option { return func(c *config) { c.concurrency = n } }

// WithDrainLimit bounds how long a queue that must go, or a stop, waits for
// running handlers. What still runs then may be handed out again elsewhere.
// Default: 5 s.
func WithDrainLimit(d time.Duration) Option { return func(c *config) { c.drainLimit = d } }

// WithCommitInterval sets how often progress is stored, besides when queues are
// released. Default: 5 s.
func WithCommitInterval(d time.Duration) Option { return func(c *config) { c.commitEvery = d } }

// WithStallTimeout sets after how long without any progress of its handlers, or
// without a Poll, a member gives its queues up until it makes progress again.
// Default: 5 min.
func WithStallTimeout(d time.Duration) Option { return func(c *config) { c.stall = d } }

// WithMaxReconsumeTimes sets after how many repeats a failing message becomes a
// dead letter, 1 to 10,000. Default: 16.
func WithMaxReconsumeTimes(n int) Option { return func(c *config) { c.maxReconsume = n } }

// WithQueueLimits bounds what is fetched ahead of the handlers on one queue.
// Default: 1,000 messages, 100 MiB.
func WithQueueLimits(messages, bytes int) Option {
	return func(c *config) { c.queueMessages, c.queueBytes = messages, bytes }
}

// WithTotalBytes bounds what is fetched ahead over all queues together, as it is in
// memory: decompressed. One batch of each queue may exceed it. Default: 256 MiB.
func WithTotalBytes(n int) Option { return func(c *config) { c.totalBytes = n } }

// WithFetch sets how many bytes one fetch may return, at least 4 KiB, and how
// long a broker may hold one while there is nothing, up to 30 s. Default: 1 MiB, 15 s.
func WithFetch(bytes int, wait time.Duration) Option {
	return func(c *config) { c.fetchBytes, c.fetchWait = bytes, wait }
}

// WithOffsetFile sets the file in which a [Broadcasting] member keeps its progress.
func WithOffsetFile(path string) Option { return func(c *config) { c.offsetFile = path } }

// WithTiming sets the rebalance tick, the heartbeat interval and the session
// timeout; 0 leaves one as it is. Defaults: 20 s, 3 s, 10 s.
func WithTiming(tick, heartbeat, sessionTimeout time.Duration) Option {
	return func(c *config) { c.tick, c.heartbeat, c.sessionTimeout = tick, heartbeat, sessionTimeout }
}

// WithAutoCommit says whether a [LitePullConsumer] stores by itself what earlier
// polls returned. Without it only Commit does; where a new group began on a queue
// is stored all the same, so that nothing is skipped when the queue moves before.
// Default: true.
func WithAutoCommit(on bool) Option { return func(c *config) { c.manualCommit = !on } }

// WithPollMessages bounds the messages one Poll returns. Default: 500.
func WithPollMessages(n int) Option { return func(c *config) { c.pollMessages = n } }

// config is what the options set.
type config struct {
	group       string
	clientID    string
	instance    string
	mode        session.Mode
	leaveOnStop bool
	topics      []session.Subscription

	client     client.Cluster
	ownClient  bool
	dialer     client.Dialer
	log        *zap.Logger
	reg        prometheus.Registerer
	strategies []allocate.Strategy
	data       map[string][]byte
	start      Start
	listener   Listener
	handler    Handler

	concurrency    int
	drainLimit     time.Duration
	commitEvery    time.Duration
	stall          time.Duration
	maxReconsume   int
	queueMessages  int
	queueBytes     int
	totalBytes     int
	fetchBytes     int
	fetchWait      time.Duration
	offsetFile     string
	tick           time.Duration
	heartbeat      time.Duration
	sessionTimeout time.Duration
	manualCommit   bool
	pollMessages   int
}

func defaults(group string) config {
	return config{
		group: group, concurrency: DefaultConcurrency, drainLimit: DefaultDrainLimit, commitEvery: DefaultCommitInterval,
		stall: DefaultStallTimeout, maxReconsume: DefaultMaxReconsumeTimes,
		queueMessages: DefaultQueueMessages, queueBytes: DefaultQueueBytes, totalBytes: DefaultTotalBytes,
		fetchBytes: DefaultFetchBytes, fetchWait: DefaultFetchWait, pollMessages: DefaultPollMessages,
		log: zap.NewNop(),
	}
}

func (c *config) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	errs = append(errs, message.CheckGroup(c.group))
	if c.clientID == "" && c.instance != "" {
		c.clientID = c.instance
	}
	if c.clientID == "" {
		c.clientID = newClientID()
	}
	errs = append(errs, message.CheckClientID(c.clientID))
	if c.instance != "" {
		errs = append(errs, message.CheckClientID(c.instance))
	}
	for i := range c.topics {
		filter, err := parseFilter(c.topics[i].Filter)
		c.topics[i].Filter = filter
		errs = append(errs, message.CheckTopic(c.topics[i].Topic), err)
	}
	check(c.mode <= session.Broadcasting, "mode %v is unknown", c.mode)
	check(c.mode != session.Broadcasting || c.offsetFile != "", "broadcasting needs the path of an offset file (WithOffsetFile, --offset-file)")
	check(c.mode == session.Broadcasting || c.offsetFile == "", "offset file %q: only broadcasting members keep one", c.offsetFile)
	check(!c.handler.orderly || c.mode == session.Exclusive, "orderly handlers need mode exclusive, not %v", c.mode)
	check(c.concurrency >= 1 && c.concurrency <= maxConcurrency, "concurrency %d: must be 1 to %d", c.concurrency, maxConcurrency)
	check(c.maxReconsume >= 1 && c.maxReconsume <= 10_000, "max reconsume times %d: must be 1 to 10000", c.maxReconsume)
	check(c.queueMessages >= 1, "messages per queue %d: must be at least 1", c.queueMessages)
	check(c.queueBytes >= 1, "bytes per queue %d: must be at least 1", c.queueBytes)
	check(c.totalBytes >= minFetchBytes, "total bytes %d: must be at least %d", c.totalBytes, minFetchBytes)
	check(c.fetchBytes >= minFetchBytes && c.fetchBytes <= client.MaxMessageBytes/2, "fetch bytes %d: must be %d to %d", c.fetchBytes, minFetchBytes, client.MaxMessageBytes/2)
	check(c.fetchWait >= 0 && c.fetchWait <= maxFetchWait, "fetch wait %v: must be 0 to %v", c.fetchWait, maxFetchWait)
	check(c.pollMessages >= 1, "poll messages %d: must be at least 1", c.pollMessages)
	check(c.start.kind != startAt || !c.start.at.IsZero(), "start time is not set")
	check(c.drainLimit > 0, "drain limit %v: must be positive", c.drainLimit)
	check(c.commitEvery > 0, "commit interval %v: must be positive", c.commitEvery)
	check(c.stall > 0, "stall timeout %v: must be positive", c.stall)
	check(c.tick >= 0 && c.heartbeat >= 0 && c.sessionTimeout >= 0, "tick %v, heartbeat %v, session timeout %v: must not be negative", c.tick, c.heartbeat, c.sessionTimeout)
	if c.tick == 0 {
		c.tick = rebalance.DefaultTick
	}
	if c.heartbeat == 0 {
		c.heartbeat = rebalance.DefaultHeartbeat
	}
	if c.sessionTimeout == 0 {
		c.sessionTimeout = rebalance.DefaultSessionTimeout
	}
	if c.log == nil {
		c.log = zap.NewNop()
	}
	return errors.Join(errs...)
}

// parseFilter brings a filter to its one form: "*", or different tags in sorted
// order joined by "||".
func parseFilter(s string) (string, error) {
	if s = strings.TrimSpace(s); s == "" || s == "*" {
		return "*", nil
	}
	tags := splitFilter(s)
	for i, t := range tags {
		t = strings.TrimSpace(t)
		if t == "" || t == "*" || len(t) > message.MaxTagLength || !utf8.ValidString(t) {
			return "", fmt.Errorf("filter %q: must be \"*\" or tags of 1 to %d bytes joined by \"||\"", s, message.MaxTagLength)
		}
		tags[i] = t
	}
	slices.Sort(tags)
	tags = slices.Compact(tags)
	out := strings.Join(tags, "||")
	if len(tags) > message.MaxFilterTags || len(out) > message.MaxFilterLength {
		return "", fmt.Errorf("filter of %d tags and %d bytes: must be at most %d tags and %d bytes",
			len(tags), len(out), message.MaxFilterTags, message.MaxFilterLength)
	}
	return out, nil
}

func splitFilter(s string) []string { return strings.Split(s, "||") }

// newClientID makes an id that no other process can have.
func newClientID() string {
	var r [16]byte
	rand.Read(r[:])
	return fmt.Sprintf("%s@%d#%s", ownAddress(), os.Getpid(), hex.EncodeToString(r[:]))
}

// newIncarnation is that of a new process.
func newIncarnation() session.Incarnation {
	var r [8]byte
	rand.Read(r[:])
	return session.Incarnation{Counter: 1, Random: binary.LittleEndian.Uint64(r[:])}
}

// ownAddress returns an address of this host for people to read; a loopback one
// only if there is no other.
func ownAddress() string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "unknown"
	}
	best := "127.0.0.1"
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok || n.IP.IsLoopback() || n.IP.IsLinkLocalUnicast() {
			continue
		}
		if n.IP.To4() != nil {
			return n.IP.String()
		}
		if best == "127.0.0.1" {
			best = n.IP.String()
		}
	}
	return best
}
