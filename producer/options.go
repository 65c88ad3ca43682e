// Package producer sends messages.
//
// A [Producer] gathers what is sent into batches: while one is under way to a
// queue, what comes meanwhile waits for the next, so that a lone message is sent
// at once and many share the cost of a round trip. A batch that fails is sent
// again until its time is up, to the same queue with the same sequence number
// while its broker can be reached and answers, so that the broker notices a repeat
// after a lost answer; to another broker's queue otherwise, if the producer may choose.
package producer

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/message"
)

// Defaults and limits of the options.
const (
	DefaultTimeout     = 10 * time.Second
	DefaultBatchBytes  = 512 << 10
	DefaultMaxInFlight = 4
	DefaultBufferBytes = 64 << 20
	// DefaultLargestBatch is what every broker reads, less what is around a batch.
	DefaultLargestBatch = 16<<20 - 64<<10

	minBatchBytes = 4 << 10
	maxBatchBytes = 8 << 20
	// By default up to smallInFlight batches are under way while those of a topic have
	// no more than smallBytes: at a low rate no message waits for the answer to another.
	smallInFlight = 16
	smallBytes    = 16 << 10
	maxInFlight   = 1024

	// byTimeout is a failover that follows the timeout.
	byTimeout = time.Duration(math.MinInt64)
)

// Compression of the bodies of batches.
type Compression = batch.Compression

// The compressions. What does not get smaller is sent as it is.
const (
	None = batch.None
	S2   = batch.S2
	Zstd = batch.Zstd
)

// Client is a set of connections that several consumers and producers share.
// Without one, those with the same settings share anyway.
type Client = client.Cluster

// Dialer opens a connection to an address as routes and name server lists have it.
type Dialer = client.Dialer

// Option changes a setting of a producer.
type Option func(*config)

// WithClient makes the producer use the connections of a client.
func WithClient(c Client) Option { return func(o *config) { o.client = c } }

// WithDialer replaces the TCP dialer; such a producer shares no connections.
// Default: net.Dialer.
func WithDialer(d Dialer) Option { return func(o *config) { o.dialer = d } }

// WithLogger sets the logger. Default: none.
func WithLogger(l *zap.Logger) Option { return func(o *config) { o.log = l } }

// WithRegisterer registers the metrics. Default: none.
func WithRegisterer(r prometheus.Registerer) Option { return func(o *config) { o.reg = r } }

// WithSelector sets who chooses the queue of each message. Default: batches go
// to the queues in turn, beginning at any, passing over brokers that failed a moment
// ago; messages sent at once are spread over as many batches as may be under way, a
// short burst of single ones over up to 16 queues.
func WithSelector(s Selector) Option { return func(o *config) { o.selector = s } }

// WithTimeout bounds how long a message may be under way, repeats included.
// Default: 10 s.
func WithTimeout(d time.Duration) Option { return func(o *config) { o.timeout = d } }

// WithFailover sets after what time a batch that its broker does not answer is sent to
// another broker's queue, if there is one; for a while that broker is passed over then.
// It may be stored at both in the end: no broker notices that. 0 keeps batches where
// they were sent first, unless that broker refuses them or cannot be reached. With a
// selector messages always stay where they belong. Default: a third of the timeout, 1 s
// at least.
func WithFailover(after time.Duration) Option { return func(o *config) { o.failover = after } }

// WithCompression compresses batches. Default: [None].
func WithCompression(c Compression) Option { return func(o *config) { o.compression = c } }

// WithBatchBytes bounds the messages of a batch, before compression; a larger
// message goes alone. Brokers have a limit too, and batches that exceed it are sent
// again in parts. At most 8 MiB. Default: 512 KiB.
func WithBatchBytes(n int) Option { return func(o *config) { o.batchBytes = n } }

// WithMaxInFlight bounds the batches of one topic under way at once, when the
// producer chooses queues; with a selector it is one for each queue. Default: 4, or up
// to 16 that have no more than 16 KiB together.
func WithMaxInFlight(n int) Option {
	return func(o *config) { o.maxInFlight, o.smallInFlight = n, n }
}

// WithBufferBytes bounds the messages that wait or are under way; above it
// sending waits. Default: 64 MiB.
func WithBufferBytes(n int) Option { return func(o *config) { o.bufferBytes = n } }

// WithLargestBatch bounds a batch as it is sent, compressed if it is: one with a single
// message that is larger fails and is not sent. A broker tells by name that a batch is
// above its --max-batch-bytes, but one above twice that, and above 16 MiB, it does not
// read: it ends the stream, and the batches of all producers of the process that are
// under way to it are sent again. To be raised only
// with all brokers' limits; 8 MiB to 64 MiB less 64 KiB. Default: 16 MiB less 64 KiB, which every broker reads.
func WithLargestBatch(n int) Option { return func(o *config) { o.largest = n } }

// WithMaxBodyBytes bounds the body of a message, before compression. Brokers have limits
// too; see [WithLargestBatch]. Default: 4 MiB.
func WithMaxBodyBytes(n int) Option { return func(o *config) { o.maxBody = n } }

type config struct {
	client      client.Cluster
	ownClient   bool
	dialer      client.Dialer
	log         *zap.Logger
	reg         prometheus.Registerer
	selector    Selector
	timeout     time.Duration
	failover    time.Duration // 0: never
	compression Compression
	batchBytes  int
	maxInFlight int
	// smallInFlight of them may be under way while they are small.
	smallInFlight int
	bufferBytes   int
	maxBody       int
	largest       int // batch as it is sent
}

func defaults() config {
	return config{
		log: zap.NewNop(), timeout: DefaultTimeout, failover: byTimeout, batchBytes: DefaultBatchBytes,
		maxInFlight: DefaultMaxInFlight, smallInFlight: smallInFlight,
		bufferBytes: DefaultBufferBytes, maxBody: message.MaxBodyBytes, largest: DefaultLargestBatch,
	}
}

func (c *config) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.timeout > 0, "timeout %v: must be positive", c.timeout)
	if c.failover == byTimeout {
		c.failover = max(c.timeout/3, time.Second)
	}
	check(c.failover >= 0, "failover after %v: must not be negative", c.failover)
	check(c.compression <= Zstd, "unknown %v", c.compression)
	check(c.batchBytes >= minBatchBytes && c.batchBytes <= maxBatchBytes, "batch bytes %d: must be %d to %d", c.batchBytes, minBatchBytes, maxBatchBytes)
	check(c.maxInFlight >= 1 && c.maxInFlight <= maxInFlight, "batches in flight %d: must be 1 to %d", c.maxInFlight, maxInFlight)
	check(c.maxBody >= 1 && c.maxBody <= client.MaxMessageBytes/2, "body bytes %d: must be 1 to %d", c.maxBody, client.MaxMessageBytes/2)
	check(c.largest >= maxBatchBytes && c.largest <= client.MaxMessageBytes-64<<10, "largest batch %d: must be %d to %d", c.largest, maxBatchBytes, client.MaxMessageBytes-64<<10)
	least := c.maxBody + message.MaxPropertyBytes + message.MaxKeys*message.MaxKeyLength + 64<<10
	check(c.bufferBytes >= least, "buffer bytes %d: must be at least %d, to hold the largest message", c.bufferBytes, least)
	if c.log == nil {
		c.log = zap.NewNop()
	}
	return errors.Join(errs...)
}
