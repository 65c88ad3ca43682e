package producer

import (
	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/message"
)

// Selector chooses the queue of each message, as an index into queues, which are
// the writable ones, at least one, sorted: the order is the same in every process
// and after every refresh of the routes. A message keeps its queue, also when
// that cannot be written for a while. Select is called by several goroutines, also
// by one on which all messages wait that were sent before their route was known: it
// may use the producer, but must not wait there for what becomes of a message.
type Selector interface {
	Select(m *message.Message, queues []allocate.Queue) int
}

// SelectorFunc is a Selector that is a function.
type SelectorFunc func(m *message.Message, queues []allocate.Queue) int

// Select calls f.
func (f SelectorFunc) Select(m *message.Message, queues []allocate.Queue) int { return f(m, queues) }

// ByKey selects by the hash of the first key: messages with the same key go to
// the same queue for as long as the queues of the topic are the same. Messages
// without a key count as having the empty one.
func ByKey() Selector {
	return SelectorFunc(func(m *message.Message, queues []allocate.Queue) int {
		return index(batch.Hash(m.Key()), len(queues))
	})
}

// index maps a hash to 0..n-1. Unsigned all along: there is no hash without an
// absolute value.
func index(hash uint64, n int) int { return int(hash % uint64(n)) }
