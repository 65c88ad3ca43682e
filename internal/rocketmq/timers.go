package rocketmq

import "time"

// Timers are the periods that an operator can set.
type Timers struct {
	// Heartbeat is ClientConfig's heartbeatBrokerInterval.
	Heartbeat time.Duration
	// Rebalance is RebalanceService's rocketmq.client.rebalance.waitInterval: the wait
	// after a pass that ended balanced.
	Rebalance time.Duration
	// RoutePoll is ClientConfig's pollNameServerInterval.
	RoutePoll time.Duration
	// Expiry is BrokerConfig's channelExpiredTimeout: a connection without heartbeat for
	// longer is dropped by the next scan.
	Expiry time.Duration
	// Idle is serverChannelMaxIdleTimeSeconds of the Netty configs: a connection without
	// any traffic for so long is closed.
	Idle time.Duration
}

// DefaultTimers are RocketMQ's.
func DefaultTimers() Timers {
	return Timers{
		Heartbeat: 30 * time.Second,
		Rebalance: 20 * time.Second,
		RoutePoll: 30 * time.Second,
		Expiry:    120 * time.Second,
		Idle:      120 * time.Second,
	}
}

// What nobody sets, of clients.
const (
	// MinRebalance is RebalanceService's rocketmq.client.rebalance.minInterval: the wait
	// after a pass that ended not balanced, and the least distance between the end of a
	// pass and the next.
	MinRebalance = time.Second
	// FirstPull is how long after its assignment a queue is pulled first (RebalanceImpl).
	FirstPull = 500 * time.Millisecond
	// PullMaxIdle is how long a queue may go without a pull before it is dropped and
	// taken again (ProcessQueue, rocketmq.client.pull.pullMaxIdleTime).
	PullMaxIdle = 120 * time.Second
	// CallTimeout is ClientConfig's mqClientApiTimeout, and the connect timeout.
	CallTimeout = 3 * time.Second
	// PullTimeout is a push consumer's for one pull, PullHold how long the broker parks it,
	// PullBatch how many messages it brings at most (DefaultMQPushConsumer, its Impl).
	PullTimeout = 30 * time.Second
	PullHold    = 15 * time.Second
	PullBatch   = 32
	// PullRetry is the wait after a pull that failed (pullTimeDelayMillsWhenException),
	// PullFlow that of one that flow control put off (DefaultMQPushConsumerImpl).
	PullRetry = time.Second
	PullFlow  = 50 * time.Millisecond
	// QueueMessages and QueueSpan are the thresholds of flow control, per queue.
	QueueMessages = 1000
	QueueSpan     = 2000
	// Listeners is the size of the listener pool.
	Listeners = 20

	firstHeartbeat = time.Second           // MQClientInstance
	firstRoutePoll = 10 * time.Millisecond // MQClientInstance
	firstSave      = 10 * time.Second      // MQClientInstance
	saveInterval   = 5 * time.Second       // ClientConfig, persistConsumerOffsetInterval
)

// What nobody sets, of servers.
const (
	scanInterval = 10 * time.Second // ClientHousekeepingService
	fileInterval = 5 * time.Second  // BrokerConfig, flushConsumerOffsetInterval
	// RegisterFirst and RegisterInterval are when a broker registers again at all name
	// servers (BrokerConfig, registerNameServerPeriod).
	RegisterFirst    = 10 * time.Second
	RegisterInterval = 30 * time.Second
	// NameServerScan and BrokerExpiry are when a name server drops a silent broker
	// (NamesrvConfig, RouteInfoManager).
	NameServerScan = 5 * time.Second
	BrokerExpiry   = 120 * time.Second
)
