package broker

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// topic is the configuration of one topic on this broker. Never changed once made.
type topic struct {
	name               string
	read, write        int32 // queue ids below these may be read and written
	readable, writable bool
}

func (t *topic) canRead(queue int32) error {
	if queue < 0 || queue >= t.read {
		return fmt.Errorf("%w: topic %q has queues 0 to %d here, not %d", rpcerr.ErrQueueNotFound, t.name, t.read-1, queue)
	}
	if !t.readable {
		return fmt.Errorf("%w: topic %q", rpcerr.ErrNotReadable, t.name)
	}
	return nil
}

func (t *topic) canWrite(queue int32) error {
	if queue < 0 || queue >= t.read {
		return fmt.Errorf("%w: topic %q has queues 0 to %d here, not %d", rpcerr.ErrQueueNotFound, t.name, t.read-1, queue)
	}
	if !t.writable || queue >= t.write {
		return fmt.Errorf("%w: topic %q queue %d", rpcerr.ErrNotWritable, t.name, queue)
	}
	return nil
}

func (t *topic) proto() *tacitv1.TopicConfig {
	return &tacitv1.TopicConfig{
		Topic: t.name, ReadQueues: t.read, WriteQueues: t.write,
		Permission: &tacitv1.Permission{Readable: t.readable, Writable: t.writable},
	}
}

func topicFrom(c *tacitv1.TopicConfig) *topic {
	t := &topic{name: c.GetTopic(), read: c.GetReadQueues(), write: c.GetWriteQueues(), readable: true, writable: true}
	if p := c.GetPermission(); p != nil {
		t.readable, t.writable = p.GetReadable(), p.GetWritable()
	}
	return t
}

// topicSet is all topics at one config version. Never changed once made.
type topicSet struct {
	version uint64
	byName  map[string]*topic
	changed chan struct{} // closed when a newer set exists
}

// sorted returns the topics by name.
func (s *topicSet) sorted() []*topic {
	return slices.SortedFunc(maps.Values(s.byName), func(a, b *topic) int { return cmp.Compare(a.name, b.name) })
}

// topics is the table of this broker's topics: readers take the present set,
// changes go one at a time to disk and then make a new set.
type topics struct {
	cfg *Config
	st  *store.Store

	mu  sync.Mutex // one change at a time
	now atomic.Pointer[topicSet]
}

func loadTopics(cfg *Config, st *store.Store) (*topics, error) {
	ts := &topics{cfg: cfg, st: st}
	set := &topicSet{version: 1, byName: make(map[string]*topic), changed: make(chan struct{})}
	for _, t := range st.Topics() {
		var c tacitv1.TopicConfig
		if err := proto.Unmarshal(t.Config, &c); err != nil {
			return nil, fmt.Errorf("configuration of topic %q: %w", t.Name, err)
		}
		if c.GetTopic() == "" { // found in the log again after the state was lost
			c = tacitv1.TopicConfig{Topic: t.Name, ReadQueues: t.Queues, WriteQueues: t.Queues}
		}
		tc := topicFrom(&c)
		// The log may have shown more queues than a state knows that is older.
		tc.read = max(tc.read, t.Queues)
		set.byName[t.Name] = tc
	}
	ts.now.Store(set)
	return ts, nil
}

// set returns the present topics.
func (ts *topics) set() *topicSet { return ts.now.Load() }

// get returns a topic by name.
func (ts *topics) get(name string) (*topic, error) {
	if t := ts.set().byName[name]; t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("%w: %q", rpcerr.ErrTopicNotFound, name)
}

// local returns the queues whose leases this broker grants, sorted.
func (s *topicSet) local(broker string) []allocate.Queue {
	var out []allocate.Queue
	for _, t := range s.byName {
		for id := range t.read {
			out = append(out, allocate.Queue{Topic: t.name, Broker: broker, ID: id})
		}
	}
	slices.SortFunc(out, allocate.Queue.Compare)
	return out
}

// put creates or changes a topic.
func (ts *topics) put(want *topic, createOnly, force bool) (*topicSet, error) {
	if err := ts.check(want); err != nil {
		return nil, err
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	set := ts.set()
	old := set.byName[want.name]
	switch {
	case old != nil && createOnly:
		return nil, fmt.Errorf("%w: %q", rpcerr.ErrTopicExists, want.name)
	case old != nil && *old == *want:
		return set, nil
	case old == nil && isGroups(want.name):
		return nil, errGroups(want.name)
	case old == nil && len(set.byName) >= ts.cfg.MaxTopics:
		return nil, fmt.Errorf("%w: %d topics on broker %s", rpcerr.ErrLimitReached, ts.cfg.MaxTopics, ts.cfg.Name)
	case old != nil && want.read < old.read && !force:
		if err := ts.drained(old, want.read); err != nil {
			return nil, err
		}
	}
	return ts.store(want)
}

// ensure returns a topic, made with the given number of queues if it is not there.
func (ts *topics) ensure(name string, queues int32) (*topic, error) {
	if t := ts.set().byName[name]; t != nil {
		return t, nil
	}
	want := &topic{name: name, read: queues, write: queues, readable: true, writable: true}
	if err := ts.check(want); err != nil {
		return nil, err
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	set := ts.set()
	if t := set.byName[name]; t != nil {
		return t, nil
	}
	if len(set.byName) >= ts.cfg.MaxTopics {
		return nil, fmt.Errorf("%w: %d topics on broker %s", rpcerr.ErrLimitReached, ts.cfg.MaxTopics, ts.cfg.Name)
	}
	if _, err := ts.store(want); err != nil {
		return nil, err
	}
	return want, nil
}

// store makes want durable and known. ts.mu is held.
func (ts *topics) store(want *topic) (*topicSet, error) {
	c, err := proto.Marshal(want.proto())
	if err != nil {
		return nil, fmt.Errorf("encode topic %q: %w", want.name, err)
	}
	u := ts.st.State().NewUpdate()
	if old := ts.set().byName[want.name]; old != nil && want.read < old.read {
		forgetSentBack(u, want.name, want.read)
	}
	if err := ts.st.PutTopic(store.Topic{Name: want.name, Queues: want.read, Config: c}, u); err != nil {
		return nil, fmt.Errorf("store topic %q: %w", want.name, fromStore(err))
	}
	return ts.publish(func(m map[string]*topic) { m[want.name] = want }), nil
}

// remove deletes a topic with all it holds, or with drainedOnly refuses while
// somebody would lose something.
func (ts *topics) remove(name string, drainedOnly bool) error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t, err := ts.get(name)
	if err != nil {
		return err
	}
	if drainedOnly {
		if err := ts.allDrained(t); err != nil {
			return err
		}
	}
	// Unknown first, so that nothing is written while the files go.
	old := ts.set().byName[name]
	ts.publish(func(m map[string]*topic) { delete(m, name) })
	u := ts.st.State().NewUpdate()
	forgetSentBack(u, name, 0)
	if err := ts.st.DeleteTopic(name, u); err != nil {
		ts.publish(func(m map[string]*topic) { m[name] = old })
		return fmt.Errorf("delete topic %q: %w", name, fromStore(err))
	}
	return nil
}

// publish makes a new set. ts.mu is held.
func (ts *topics) publish(change func(map[string]*topic)) *topicSet {
	old := ts.set()
	set := &topicSet{version: old.version + 1, byName: maps.Clone(old.byName), changed: make(chan struct{})}
	change(set.byName)
	ts.now.Store(set)
	close(old.changed)
	return set
}

func (ts *topics) check(t *topic) error {
	if err := message.CheckTopic(t.name); err != nil {
		return err
	}
	if isGroups(t.name) {
		group, ok := strings.CutPrefix(t.name, message.RetryPrefix)
		if !ok {
			group, ok = strings.CutPrefix(t.name, message.DeadLetterPrefix)
		}
		if !ok || message.CheckGroup(group) != nil {
			return rpcerr.Invalid("topic", "%q: names that begin with %%%% belong to consumer groups", t.name)
		}
	}
	if t.read < 1 || t.read > ts.cfg.MaxQueues {
		return rpcerr.Invalid("read_queues", "%d: must be 1 to %d", t.read, ts.cfg.MaxQueues)
	}
	if t.write < 0 || t.write > ts.cfg.MaxQueues {
		return rpcerr.Invalid("write_queues", "%d: must be 0 to %d", t.write, ts.cfg.MaxQueues)
	}
	if t.write > t.read {
		return rpcerr.Invalid("write_queues", "%d: must not be above read_queues, %d, or messages lie where nobody can read", t.write, t.read)
	}
	return nil
}

// isGroups tells whether a topic is one of a consumer group, for its retries or
// dead letters. Brokers make these and write to them when a message is sent back;
// what others wrote there would be handed to the group as its own.
func isGroups(name string) bool { return strings.HasPrefix(name, "%") }

func errGroups(name string) error {
	return rpcerr.Invalid("topic", "%q: is for what a group sends back; brokers make it and write to it", name)
}

// allDrained returns an error unless nobody loses anything when t goes.
func (ts *topics) allDrained(t *topic) error {
	if err := ts.drained(t, 0); err != nil {
		return err
	}
	n, more, err := ts.st.State().ScheduledFor(t.name, maxScheduledSeen)
	switch {
	case err != nil:
		return fmt.Errorf("scheduled messages of topic %q: %w", t.name, fromStore(err))
	case n > 0 || more:
		return fmt.Errorf("%w: messages of topic %q wait for the time they are due: %d", rpcerr.ErrUnreadBacklog, t.name, n)
	}
	return nil
}

// drained returns an error unless nobody loses anything when queues from keep on
// are removed: nothing can be written to them any more, and every group that
// reads the topic has read them to the end.
func (ts *topics) drained(t *topic, keep int32) error {
	if t.write > keep && t.writable {
		return fmt.Errorf("%w: queues %d to %d of topic %q may still be written: first lower write_queues to %d, let the groups drain them, then lower read_queues",
			rpcerr.ErrUnreadBacklog, keep, t.write-1, t.name, keep)
	}
	state := ts.st.State()
	var groups []string
	for _, g := range state.Groups() {
		for q := range state.Offsets(g) {
			if q.Topic == t.name {
				groups = append(groups, g)
				break
			}
		}
	}
	for id := keep; id < t.read; id++ {
		q := store.Queue{Topic: t.name, ID: id}
		low, high, err := ts.st.Bounds(q)
		if err != nil {
			return fmt.Errorf("bounds of topic %q queue %d: %w", t.name, id, fromStore(err))
		}
		if high == low {
			continue
		}
		if len(groups) == 0 {
			return fmt.Errorf("%w: topic %q queue %d has %d messages and no group has read them", rpcerr.ErrUnreadBacklog, t.name, id, high-low)
		}
		for _, g := range groups {
			at, _ := state.Offset(g, q)
			if unread := high - max(at, low); unread > 0 {
				return fmt.Errorf("%w: group %q has %d unread in topic %q queue %d", rpcerr.ErrUnreadBacklog, g, unread, t.name, id)
			}
		}
	}
	return nil
}
