package consumer

import (
	"go.uber.org/zap"

	"github.com/tacitmq/tacit/route"
)

// checkTopics takes note of subscribed topics that do not exist, by the word of
// all name servers, and says so once for each. The member waits for them: they may
// be made later.
func (m *member) checkTopics(routes []route.Topic) {
	now := make(map[string]bool)
	for _, t := range routes {
		if len(t.Hosts) == 0 && t.Name != m.retryTopic { // which is made when it is needed
			now[t.Name] = true
		}
	}
	m.mu.Lock()
	before := m.missing
	m.missing = now
	m.mu.Unlock()
	m.met.missing(len(now) - len(before))
	for t := range now {
		if !before[t] {
			m.log.Warn("topic does not exist, waiting for it", zap.String("topic", t))
		}
	}
	for t := range before {
		if !now[t] && m.subscribed(t) {
			m.log.Info("topic exists now", zap.String("topic", t))
		}
	}
}

func (m *member) subscribed(topic string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.subs[topic] != nil
}
