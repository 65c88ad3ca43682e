package consumer

import (
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/consumer/rebalance"
)

// lossWait is how long a lost queue waits for others to be said with it: a topic that
// is deleted, or a link that is cut, takes many, one after another.
const lossWait = 100 * time.Millisecond

// maxLost is how many lost queues are named in a line of the log.
const maxLost = 8

// loss is what is said of a topic in one line.
type loss struct{ queues, causes []string }

// noteLost notes the loss of a queue. Called by the loop.
func (m *member) noteLost(eff rebalance.Lose) {
	m.met.lost()
	m.log.Debug("queue lost", zap.String("topic", eff.Queue.Topic), zap.String("broker", eff.Queue.Broker),
		zap.Int32("queue", eff.Queue.ID), zap.Stringer("epoch", eff.Epoch), zap.String("cause", eff.Cause))
	if len(m.losses) == 0 {
		m.after(lossWait, m.sayLost)
	}
	l := m.losses[eff.Queue.Topic]
	if l == nil {
		l = new(loss)
		m.losses[eff.Queue.Topic] = l
	}
	l.queues = append(l.queues, fmt.Sprintf("%s/%d", eff.Queue.Broker, eff.Queue.ID))
	if !slices.Contains(l.causes, eff.Cause) {
		l.causes = append(l.causes, eff.Cause)
	}
}

// sayLost writes the losses noted to the log, a line for each topic.
func (m *member) sayLost() {
	for topic, l := range m.losses {
		slices.Sort(l.queues)
		m.log.Warn("queues lost", zap.String("topic", topic), zap.Int("count", len(l.queues)),
			zap.Strings("queues", l.queues[:min(maxLost, len(l.queues))]), zap.Strings("causes", l.causes))
	}
	clear(m.losses)
}
