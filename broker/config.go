package broker

import (
	"errors"
	"fmt"
	"time"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/coordination"
	"github.com/tacitmq/tacit/internal/wire"
	"github.com/tacitmq/tacit/route"
)

// Config is what an operator sets. Default gives the defaults.
type Config struct {
	// Name of the broker, unique in the cluster and stable over restarts: letters,
	// digits, dots, hyphens and underscores. Required.
	Name string
	// Cluster the broker belongs to; shown, not interpreted. Default: "default".
	Cluster string
	// Listen is the address to serve on. Default: ":10911".
	Listen string
	// Advertise is the host:port that clients are told. Default: an address of
	// this host that is not loopback, if there is one, and the port of Listen.
	Advertise string
	// NameServers to register with: host:port each, or one "file:PATH" or URL
	// that lists them. None: the broker serves alone.
	NameServers []string
	// DataDir holds messages and state. Required.
	DataDir string

	// Durability of messages. Default: store.Fsync.
	Durability store.Durability
	// SyncInterval applies to store.Interval. Default: 200 ms.
	SyncInterval time.Duration
	// SegmentBytes is the size of a log file. Default: 64 MiB.
	SegmentBytes int64
	// RetainAge and RetainBytes drop old messages. Default: 0, keep.
	RetainAge   time.Duration
	RetainBytes int64
	// MinFreeBytes of the disk stay free of messages. Default: 64 MiB.
	MinFreeBytes int64
	// AcceptStateLoss starts although stored offsets and leases are missing: with
	// what can still be read of them, or with none. Default: refuse to start.
	AcceptStateLoss bool

	// MaxBatchBytes is the largest batch accepted, MaxBodyBytes the most that
	// one may hold before compression. Defaults: 5 MiB, 32 MiB.
	MaxBatchBytes int
	MaxBodyBytes  int
	// MaxFetchBytes bounds one answer of a fetch. Default: 4 MiB.
	MaxFetchBytes int
	// MaxFetchMemory bounds the bytes of answers to fetches that wait for their
	// clients to read them, of all clients together; more requests wait, and the
	// streams of clients that read nothing for 10 s are ended meanwhile. A batch
	// larger than a client asked for may go beyond it. Default: 256 MiB.
	MaxFetchMemory int64
	// MaxWait bounds a long poll. Default: 60 s.
	MaxWait time.Duration

	// AutoCreateTopics makes a topic when somebody produces to it. Default: no.
	AutoCreateTopics bool
	// DefaultQueues of topics made so. Default: 8.
	DefaultQueues int32
	// MaxQueues of a topic on this broker, up to 65,536. Default: 4096.
	MaxQueues int32
	// MaxTopics on this broker. Default: 100 000.
	MaxTopics int

	// SessionTimeoutMin and SessionTimeoutMax bound what members may ask for.
	// Defaults: 1 s, 5 min.
	SessionTimeoutMin time.Duration
	SessionTimeoutMax time.Duration
	// MaxSessions bounds the members connected. Default: 100 000.
	MaxSessions int

	// GroupInitialDelay is how long the first rebalance of a coordinated group waits for
	// more members, Kafka's group.initial.rebalance.delay.ms. Default: 3 s.
	GroupInitialDelay time.Duration
	// GroupMaxSize is the greatest number of members of a coordinated group,
	// Kafka's group.max.size; 0: no limit. Default: 0.
	GroupMaxSize int
	// GroupSessionTimeout and GroupHeartbeat are those of members of coordinated groups
	// for which the coordinator assigns, Kafka's group.consumer.session.timeout.ms and
	// group.consumer.heartbeat.interval.ms. Defaults: 45 s, 5 s.
	GroupSessionTimeout time.Duration
	GroupHeartbeat      time.Duration

	// MaxReconsumeTimes is how often a message is retried before it becomes a
	// dead letter, unless its consumer says otherwise. Default: 16.
	MaxReconsumeTimes int32
	// RegisterInterval is the time between heartbeats to name servers. Default: 3 s.
	RegisterInterval time.Duration
	// Version of the program, shown to tools. Default: empty.
	Version string
	// Grace bounds how long a stop waits for streams to end. Default: 5 s.
	Grace time.Duration
}

// Default returns the defaults; Name and DataDir remain to be set.
func Default() Config {
	return Config{
		Cluster:           "default",
		Listen:            ":10911",
		Durability:        store.Fsync,
		SyncInterval:      200 * time.Millisecond,
		SegmentBytes:      64 << 20,
		MinFreeBytes:      64 << 20,
		MaxBatchBytes:     5 << 20,
		MaxBodyBytes:      32 << 20,
		MaxFetchBytes:     4 << 20,
		MaxFetchMemory:    256 << 20,
		MaxWait:           time.Minute,
		DefaultQueues:     8,
		MaxQueues:         4096,
		MaxTopics:         100_000,
		SessionTimeoutMin: time.Second,
		SessionTimeoutMax: 5 * time.Minute,
		MaxSessions:       100_000,
		MaxReconsumeTimes: 16,
		GroupInitialDelay: coordination.InitialDelay, GroupSessionTimeout: coordination.ConsumerSession, GroupHeartbeat: coordination.ConsumerInterval,
		RegisterInterval: 3 * time.Second,
		Grace:            5 * time.Second,
	}
}

// DurabilityName is the name of a durability in flags and answers.
func DurabilityName(d store.Durability) string {
	switch d {
	case store.Fsync:
		return "fsync"
	case store.Interval:
		return "interval"
	case store.None:
		return "none"
	}
	return fmt.Sprintf("durability(%d)", d)
}

// ParseDurability is the durability of a name: fsync, interval or none.
func ParseDurability(name string) (store.Durability, error) {
	for d := store.Fsync; d <= store.None; d++ {
		if DurabilityName(d) == name {
			return d, nil
		}
	}
	return 0, fmt.Errorf("durability %q: must be fsync, interval or none", name)
}

// Validate reports everything that is wrong with c at once, as New does.
func (c *Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	err := route.CheckBroker(c.Name)
	check(err == nil, "name %w", err)
	err = route.CheckCluster(c.Cluster)
	check(err == nil, "cluster %w", err)
	check(c.DataDir != "", "data directory: must be set")
	if c.Advertise != "" {
		err := wire.CheckAddress(c.Advertise) // name servers do
		check(err == nil, "advertised address %q: must be host:port: %w", c.Advertise, err)
	}
	check(c.Durability <= store.None, "durability %d: unknown", c.Durability)
	check(c.RetainAge >= 0, "retention age %v: must not be negative", c.RetainAge)
	check(c.RetainBytes >= 0, "retention size %d: must not be negative", c.RetainBytes)
	check(c.MaxBatchBytes >= 1<<10 && c.MaxBatchBytes <= 64<<20, "largest batch %d: must be 1 KiB to 64 MiB", c.MaxBatchBytes)
	check(c.MaxBodyBytes >= c.MaxBatchBytes, "largest body %d: must not be below the largest batch, %d", c.MaxBodyBytes, c.MaxBatchBytes)
	check(c.SegmentBytes >= int64(c.MaxBatchBytes), "segment size %d: must not be below the largest batch, %d", c.SegmentBytes, c.MaxBatchBytes)
	check(c.MaxFetchBytes > 0, "largest fetch %d: must be positive", c.MaxFetchBytes)
	check(c.MaxFetchMemory >= int64(c.MaxFetchBytes), "memory for fetches %d: must not be below the largest fetch, %d", c.MaxFetchMemory, c.MaxFetchBytes)
	check(c.MaxWait > 0, "longest poll %v: must be positive", c.MaxWait)
	check(c.MaxQueues > 0 && c.MaxQueues <= route.MaxQueues, "queues per topic %d: must be 1 to %d", c.MaxQueues, route.MaxQueues)
	check(c.DefaultQueues > 0 && c.DefaultQueues <= c.MaxQueues, "default queues %d: must be 1 to %d", c.DefaultQueues, c.MaxQueues)
	check(c.MaxTopics > 0, "topics %d: must be positive", c.MaxTopics)
	check(c.SessionTimeoutMin > 0, "shortest session timeout %v: must be positive", c.SessionTimeoutMin)
	check(c.SessionTimeoutMax >= c.SessionTimeoutMin, "longest session timeout %v: must not be below the shortest, %v", c.SessionTimeoutMax, c.SessionTimeoutMin)
	check(c.MaxSessions > 0, "sessions %d: must be positive", c.MaxSessions)
	check(c.GroupInitialDelay >= 0, "initial delay of groups %v: must not be negative", c.GroupInitialDelay)
	check(c.GroupMaxSize >= 0, "largest group %d: must not be negative", c.GroupMaxSize)
	check(c.GroupHeartbeat > 0, "heartbeat interval of groups %v: must be positive", c.GroupHeartbeat)
	check(c.GroupSessionTimeout > c.GroupHeartbeat, "session timeout of groups %v: must be above their heartbeat interval, %v", c.GroupSessionTimeout, c.GroupHeartbeat)
	check(c.MaxReconsumeTimes >= 0, "reconsume times %d: must not be negative", c.MaxReconsumeTimes)
	check(c.RegisterInterval > 0, "register interval %v: must be positive", c.RegisterInterval)
	check(c.Grace >= 0, "grace %v: must not be negative", c.Grace)
	return errors.Join(errs...)
}
