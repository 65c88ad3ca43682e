package consumer

import (
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/internal/rpcerr"
)

// step lets the engine decide and carries out what it says.
func (m *member) step(ev rebalance.Event) {
	if m.engine == nil {
		return
	}
	var assigned, revoked, lost []*processQueue
	// Changes of ownership of one kind are carried out together, in their order.
	flush := func() {
		if len(lost) > 0 {
			m.lose(lost)
		}
		if len(revoked) > 0 {
			m.revoke(revoked)
		}
		if len(assigned) > 0 {
			m.assigned(assigned)
		}
		assigned, revoked, lost = nil, nil, nil
	}
	now := time.Now()
	if d, ok := ev.(rebalance.Drained); ok {
		m.settling.released(d.Queue)
	}
	for _, eff := range m.engine.Step(now, ev) {
		switch eff := eff.(type) {
		case rebalance.Assign:
			if len(lost)+len(revoked) > 0 {
				flush()
			}
			m.settling.assigned(eff.Queue)
			assigned = append(assigned, m.assign(eff))
		case rebalance.Revoke:
			if m.suspending {
				continue
			}
			if pq := m.find(eff.Queue, eff.Epoch); pq != nil {
				if len(lost)+len(assigned) > 0 {
					flush()
				}
				revoked = append(revoked, pq)
			} else {
				m.inbox.put(item{ev: rebalance.Drained{Queue: eff.Queue, Epoch: eff.Epoch}})
			}
		case rebalance.Lose:
			m.settling.released(eff.Queue)
			if pq := m.find(eff.Queue, eff.Epoch); pq != nil {
				if len(revoked)+len(assigned) > 0 {
					flush()
				}
				lost = append(lost, pq)
				m.noteLost(eff)
			}
		default:
			flush()
			m.perform(eff)
		}
	}
	flush()
	if took, ok := m.settling.done(now); ok {
		m.met.settled(took)
	}
}

// perform carries out an effect that is not about a queue.
func (m *member) perform(eff rebalance.Effect) {
	switch eff := eff.(type) {
	case rebalance.WakeAt:
		m.wakeAt = eff.At
	case rebalance.Connect:
		m.connect(eff.Broker)
	case rebalance.Disconnect:
		m.disconnect(eff.Broker)
	case rebalance.Send:
		if c := m.conns[eff.Broker]; c != nil && c.session != nil {
			c.session.Send(eff.Frame)
		}
	case rebalance.Extend:
		m.extend(eff.Broker, eff.Until)
	case rebalance.Passed:
		m.passed(eff.Pass)
	case rebalance.RefreshRoutes:
		m.watch.Refresh()
	case rebalance.Left:
		m.left = true
	case rebalance.Failed:
		m.failure = fmt.Errorf("broker %s refuses the member: %w", eff.Broker, rpcerr.Refusal(eff.Reason, eff.Text))
	case rebalance.FindCoordinator, rebalance.Ask, rebalance.WatchTopics: // of the coordinated model
	case rebalance.Assign, rebalance.Revoke, rebalance.Lose: // see step
	}
}

func (m *member) passed(p rebalance.Pass) {
	m.met.passed(p.Trigger, len(p.Gained), len(p.Given))
	m.settling.passed(p, time.Now())
	switch {
	case p.Err != nil:
		m.log.Error("allocate strategy failed, the assignment stays as it is", zap.String("topic", p.Topic), zap.String("strategy", p.Strategy), zap.Error(p.Err))
	case len(p.Gained)+len(p.Given) > 0:
		m.log.Info("assignment changes", zap.String("topic", p.Topic), zap.String("trigger", p.Trigger), zap.Int("members", p.Members),
			zap.Int("queues", p.Queues), zap.Int("mine", len(p.Mine)), zap.Int("gained", len(p.Gained)), zap.Int("given", len(p.Given)))
	default:
		m.log.Debug("assignment confirmed", zap.String("topic", p.Topic), zap.String("trigger", p.Trigger))
	}
}

// extend moves the time until which queues of a broker may be dispatched, and
// goes on with those that had to stop.
func (m *member) extend(broker string, until time.Time) {
	l := m.lease(broker)
	resume := !l.alive(time.Now())
	l.until.Store(&until)
	if !resume {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, pq := range m.queues {
		if pq.lease == l {
			m.enqueue(pq)
		}
	}
	m.schedule()
}
