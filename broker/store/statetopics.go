package store

import (
	"fmt"
	"maps"
	"math"
)

// topicList returns all stored topics.
func (st *State) topicList() (out []Topic, err error) {
	err = st.scan([]byte{keyTopic}, []byte{keyTopic + 1}, func(k, v []byte) (bool, error) {
		t, err := decodeTopic(k, v)
		out = append(out, t)
		return true, err
	})
	return out, err
}

// changeTopic stores a topic, or removes it if t is nil, buries queues of it and
// applies the updates with that.
func (st *State) changeTopic(name string, t *Topic, graves map[Queue]address, with []*Update) error {
	for _, u := range with {
		for i := range u.ops {
			if err := st.check(&u.ops[i]); err != nil {
				return err
			}
		}
	}
	return st.sync(func(g *gathering) error {
		key := append([]byte{keyTopic}, name...)
		var err error
		if t == nil {
			err = g.batch.Delete(key, nil)
		} else {
			err = g.batch.Set(key, t.encode(), nil)
		}
		if err != nil {
			return err
		}
		for _, u := range with {
			for i := range u.ops {
				if err := st.do(g, &u.ops[i]); err != nil {
					return err
				}
			}
		}
		return st.buryQueues(g, graves)
	})
}

// buryQueues removes offsets and leases of deleted queues. Until buried is called
// nothing is stored for them.
func (st *State) buryQueues(g *gathering, graves map[Queue]address) error {
	for q, at := range graves {
		for group, queues := range st.offsets {
			if o := queues[q]; o != nil {
				if err := g.forgetOffset(group, q, o); err != nil {
					return err
				}
			}
		}
		for group, queues := range st.leases {
			if _, ok := queues[q]; ok {
				delete(queues, q)
				if err := g.batch.Delete(queueKey(keyLease, q, group), nil); err != nil {
					return err
				}
			}
		}
		st.graves[q], st.burials[q] = at, math.MaxUint64
		if err := g.batch.Set(queueKey(keyGrave, q, ""), at.encode(), nil); err != nil {
			return err
		}
	}
	return nil
}

// buried says that the queues are no more, or that they stay.
func (st *State) buried(graves map[Queue]address, gone bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	n := st.burial.Add(1)
	for q := range graves {
		if gone {
			st.burials[q] = n
		} else {
			delete(st.burials, q)
		}
	}
}

// standing refuses changes of queues that were deleted after they were checked:
// those of a later queue of that name are none of theirs.
func (st *State) standing(ops []op, checked uint64) error {
	for i := range ops {
		switch o := &ops[i]; o.kind {
		case opCommit, opReset, opLease, opRequire:
			if st.burials[o.queue] > checked {
				return fmt.Errorf("%w: %s/%d was deleted", ErrNoQueue, o.queue.Topic, o.queue.ID)
			}
		case opDeleteGroup, opSchedule, opUnschedule, opPut, opDelete, opDeleteRange:
		}
	}
	return nil
}

// gravesIn returns the graves in one segment.
func (st *State) gravesIn(seg uint32) map[Queue]address {
	st.mu.Lock()
	defer st.mu.Unlock()
	out := maps.Clone(st.graves)
	maps.DeleteFunc(out, func(_ Queue, at address) bool { return at.seg != seg })
	return out
}

// dropGraves forgets graves in segments before oldest.
func (st *State) dropGraves(oldest uint32) error {
	return st.sync(func(g *gathering) error {
		for q, at := range st.graves {
			if at.seg < oldest {
				delete(st.graves, q)
				if err := g.batch.Delete(queueKey(keyGrave, q, ""), nil); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
