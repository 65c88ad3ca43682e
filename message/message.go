// Package message holds the message that producers send and consumers receive,
// and the limits of its parts.
//
// The limits are checked where a message enters: by the producer before it is
// sent and by the broker at the door. Every check returns a [*LimitError] that
// names the field, its value and the limit.
package message

import (
	"time"

	"github.com/tacitmq/tacit/allocate"
)

// Message is one message. A producer fills the first part; the second part is
// filled on receipt and ignored when sending.
//
// The body, keys and properties of a received message may share memory with
// others of the same batch: treat them as read-only, and copy what outlives the
// handler if memory matters.
type Message struct {
	// Topic the message belongs to. Required.
	Topic string
	// Tag is the one label consumers filter by. May be empty.
	Tag string
	// Keys are what the message can be looked up by, and the first one is what
	// selectors by key hash. May be empty.
	Keys []string
	// Properties are free for the application. Names that begin with '%' are
	// reserved for Tacit.
	Properties map[string]string
	// Body is opaque. May be empty.
	Body []byte
	// BornTime is when the producer made the message, to the millisecond. Zero
	// means: filled in by Send.
	BornTime time.Time
	// DeliverAt is the earliest time to hand the message out, to the
	// millisecond. Zero, or any time in the past, means at once.
	DeliverAt time.Time

	// Queue the message was read from. Of a message that comes again from a group's
	// retry topic: the queue it was stored in first, as are Topic and Offset.
	Queue allocate.Queue
	// Offset of the message in its queue.
	Offset int64
	// StoreTime is when the broker stored the message, by the broker's clock.
	StoreTime time.Time
	// ReconsumeTimes counts how often the message was sent back before: 0 on
	// the first hand-out.
	ReconsumeTimes int32
}

// Key returns the first key, or "" if there is none.
func (m *Message) Key() string {
	if len(m.Keys) == 0 {
		return ""
	}
	return m.Keys[0]
}

// Property returns the named property, or "".
func (m *Message) Property(name string) string { return m.Properties[name] }

// Properties that Tacit itself sets on messages of retry topics and dead letters.
const (
	// PropertyOriginTopic is the topic the message was first sent to.
	PropertyOriginTopic = "%topic"
	// PropertyOriginQueue is the queue ("broker/id") it was first stored in.
	PropertyOriginQueue = "%queue"
	// PropertyOriginOffset is its first offset, in decimal.
	PropertyOriginOffset = "%offset"
	// PropertyRetryReason says why it is in a retry topic or among the dead letters.
	PropertyRetryReason = "%reason"
)

// Prefixes of the topics that belong to a group.
const (
	RetryPrefix      = "%RETRY%"
	DeadLetterPrefix = "%DLQ%"
)

// RetryTopic returns the topic that holds the messages group sent back.
func RetryTopic(group string) string { return RetryPrefix + group }

// DeadLetterTopic returns the topic that holds the messages group gave up.
func DeadLetterTopic(group string) string { return DeadLetterPrefix + group }
