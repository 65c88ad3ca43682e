package consumer

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/session"
)

// freshly is where a group that was new began on each queue of a topic, by the word
// of all brokers at one time. A member that found a group new goes by it from then
// on: what is stored a moment later is where the group began, and must not be taken
// for progress when a broker's queues come late.
type freshly map[allocate.Queue]int64

// alone tells whether a member has no group whose beginnings it could find out for
// others: a reader of given queues, and one that reads everything.
func (m *member) alone() bool { return m.engine == nil || m.cfg.mode == session.Broadcasting }

// beganNew takes note of where the group begins on all queues of a topic on which it
// never committed. Called under the lock.
func (m *member) beganNew(topic string, offsets []client.CommittedOffset) {
	if m.fresh[topic] != nil || m.alone() {
		return
	}
	all := make(freshly, len(offsets))
	for _, o := range offsets {
		all[o.Queue] = o.Max
		if m.cfg.start.kind == startAt {
			all[o.Queue] = o.AtTime
		}
	}
	m.fresh[topic] = all
	m.after(newcomerTime, func() {
		m.background.Go(func() { m.storeFresh(m.base, all) }) // Run waits for it; ends with base
	})
}

// storeFresh stores where the group began also on queues that this member does not
// have, until each broker has been told once: members that come later find an
// offset, or would begin at the first message. Of queues that others hold they store
// it themselves.
func (m *member) storeFresh(ctx context.Context, all freshly) {
	byBroker := make(map[string][]allocate.Queue)
	for q := range all {
		byBroker[q.Broker] = append(byBroker[q.Broker], q)
	}
	for wait := newcomerTime; ; wait = min(2*wait, max(m.cfg.commitEvery, newcomerTime)) {
		for broker, queues := range byBroker {
			err := m.storeFreshAt(ctx, broker, queues, all)
			switch {
			case ctx.Err() != nil:
				return
			case err == nil:
				delete(byBroker, broker)
			default:
				m.log.Debug("where the group began is not stored yet, trying again", zap.String("broker", broker), zap.Error(err))
			}
		}
		if len(byBroker) == 0 {
			return
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// storeFreshAt stores beginnings at one broker. Offsets do not move back there, and
// without a lease only those of queues that nobody holds are taken.
func (m *member) storeFreshAt(ctx context.Context, broker string, queues []allocate.Queue, all freshly) error {
	var asked []allocate.Queue
	m.mu.Lock()
	for _, q := range queues {
		if m.queues[q] == nil {
			asked = append(asked, q)
		}
	}
	m.mu.Unlock()
	if len(asked) == 0 {
		return nil
	}
	got, err := m.cluster.Committed(ctx, broker, m.cfg.group, asked, time.Time{})
	if err != nil {
		return err
	}
	req := client.CommitRequest{Group: m.cfg.group, ClientID: m.cfg.clientID}
	for _, o := range got.Offsets {
		if at, ok := all[o.Queue]; ok && !o.HasOffset {
			req.Offsets = append(req.Offsets, client.OffsetCommit{Queue: o.Queue, Offset: at})
		}
	}
	if len(req.Offsets) == 0 {
		return nil
	}
	results, err := m.cluster.Commit(ctx, broker, req)
	for _, e := range results {
		if !errors.Is(e, rpcerr.ErrLeaseHeld) && !errors.Is(e, rpcerr.ErrOffsetOutOfRange) {
			err = cmp.Or(err, e)
		}
	}
	return err
}
