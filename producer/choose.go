package producer

import (
	"fmt"
	"slices"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/message"
)

// chosen has the selector choose queues for messages about to be sent, from those
// that are known now, without the lock: a selector may take its time and use the
// producer. Messages of topics without queues keep none; they will be parked. It
// returns the others: those for which nothing was chosen fail here.
func (p *Producer) chosen(entries []entry) []entry {
	if p.cfg.selector == nil {
		return entries
	}
	out := entries[:0]
	name := ""
	var queues []allocate.Queue
	for i := range entries {
		e := &entries[i]
		if e.m.Topic != name {
			name = e.m.Topic
			p.mu.Lock()
			queues = nil
			if t := p.topics[name]; t != nil {
				queues = t.queues
			}
			p.mu.Unlock()
		}
		if err := p.choose(e, queues); err != nil {
			p.met.failed(1)
			e.end(Result{Queue: allocate.Queue{Topic: name}, Err: fmt.Errorf("send to topic %q: %w", name, err)})
			continue
		}
		out = append(out, *e)
	}
	return out
}

// choose has the selector choose a queue for a message, if there are any. Called
// without the lock.
func (p *Producer) choose(e *entry, queues []allocate.Queue) error {
	e.to = nil
	if len(queues) == 0 {
		return nil
	}
	i, err := ask(p.cfg.selector, e.m, queues)
	if err != nil {
		return err
	}
	e.to = &queues[i]
	return nil
}

// ask calls a selector of somebody else's.
func ask(s Selector, m *message.Message, queues []allocate.Queue) (i int, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("select queue of topic %q: selector panicked: %v", m.Topic, r)
		}
	}()
	i = s.Select(m, queues)
	if i < 0 || i >= len(queues) {
		return 0, fmt.Errorf("select queue of topic %q: selector chose %d of %d queues", m.Topic, i, len(queues))
	}
	return i, nil
}

// writable tells whether a queue takes messages as far as is known.
func (t *topic) writable(q allocate.Queue) bool {
	_, ok := slices.BinarySearchFunc(t.queues, q, allocate.Queue.Compare)
	return ok
}

// unpark places the messages that waited for queues of a topic, in order; what comes
// while the selector chooses waits behind them. Called under the lock, which it
// leaves meanwhile, by run alone.
func (p *Producer) unpark(t *topic) (ready []*sending) {
	for len(t.parked) > 0 && len(t.queues) > 0 {
		parked := t.parked
		n := len(parked)
		var bad []entry
		var errs []error
		if p.cfg.selector != nil {
			parked = slices.Clone(parked)
			queues := t.queues
			p.mu.Unlock()
			good := make([]entry, 0, n)
			for i := range parked {
				if err := p.choose(&parked[i], queues); err != nil {
					bad, errs = append(bad, parked[i]), append(errs, err)
					continue
				}
				good = append(good, parked[i])
			}
			parked = good
			p.mu.Lock()
		}
		rest := slices.Clone(t.parked[n:])
		t.parked = nil
		for i, err := range errs {
			p.fail(bad[i:i+1], err, allocate.Queue{Topic: t.name})
		}
		ready = append(ready, p.flush(p.placeAll(t, parked))...)
		t.parked = append(t.parked, rest...)
	}
	return ready
}
