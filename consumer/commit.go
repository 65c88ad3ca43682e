package consumer

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/session"
)

// dirty collects the progress that is not stored yet, by broker.
func (m *member) dirty(now time.Time) map[string][]*processQueue {
	out := make(map[string][]*processQueue)
	for _, pq := range m.queues {
		offset, ok := pq.progress()
		if !ok || pq.phase == gone || pq.hasCommitted && offset <= pq.committed || now.Before(pq.commitAfter) {
			continue
		}
		out[pq.queue.Broker] = append(out[pq.queue.Broker], pq)
	}
	return out
}

// commitAll stores progress at all brokers that have no commit under way: one at
// a time, so that a value chosen earlier never arrives later.
func (m *member) commitAll() {
	if m.cfg.mode == session.Broadcasting {
		m.background.Go(m.keepLocal) // Run waits for it
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for broker, pqs := range m.dirty(time.Now()) {
		if !m.committing[broker] {
			m.committing[broker] = true
			m.background.Go(func() { // Run waits for it; ends within the call timeout
				if err := m.commit(broker, pqs); err != nil {
					m.log.Warn("offsets cannot be committed, trying again", zap.String("broker", broker), zap.Error(err))
				}
				m.mu.Lock()
				m.committing[broker] = false
				m.mu.Unlock()
			})
		}
	}
}

// commit stores the progress of some queues of one broker and returns what was
// wrong with the call or any of the queues.
func (m *member) commit(broker string, pqs []*processQueue) error {
	req := client.CommitRequest{Group: m.cfg.group, ClientID: m.cfg.clientID}
	var asked []*processQueue
	m.mu.Lock()
	for _, pq := range pqs {
		if offset, ok := pq.progress(); ok && pq.phase != gone {
			req.Offsets = append(req.Offsets, client.OffsetCommit{Queue: pq.queue, Offset: offset, Epoch: pq.epoch})
			asked = append(asked, pq)
		}
	}
	m.mu.Unlock()
	if len(asked) == 0 {
		return nil
	}
	results, err := m.cluster.Commit(m.base, broker, req)
	m.met.committed(err)
	if err != nil {
		return err
	}
	var errs []error
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, err := range results {
		pq := asked[i]
		switch {
		case err == nil:
			pq.committed, pq.hasCommitted = max(pq.committed, req.Offsets[i].Offset), true
		case errors.Is(err, rpcerr.ErrStaleEpoch):
			m.inbox.put(item{ev: rebalance.Refused{Queue: pq.queue, Epoch: pq.epoch}})
			errs = append(errs, err)
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// saveLocal stores the progress of a broadcasting member.
func (m *member) saveLocal() error {
	m.mu.Lock()
	offsets := make(map[allocate.Queue]int64)
	for _, pq := range m.queues {
		if offset, ok := pq.progress(); ok && pq.phase != gone {
			offsets[pq.queue] = offset
		}
	}
	m.mu.Unlock()
	return m.local.save(offsets)
}

// keepLocal is saveLocal where nobody waits for it.
func (m *member) keepLocal() {
	if err := m.saveLocal(); err != nil {
		m.log.Error("offsets cannot be saved, trying again", zap.String("file", m.cfg.offsetFile), zap.Error(err))
	}
}
