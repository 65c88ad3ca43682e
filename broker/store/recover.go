package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tacitmq/tacit/internal/batch"
)

// recover reads what the directory holds.
func (s *Store) recover(names []string) error {
	var ids, indexes []uint32
	for _, name := range names {
		id, ext, ok := parseName(name)
		switch {
		case ok && ext == "log":
			ids = append(ids, id)
		case ok && ext == "index":
			indexes = append(indexes, id)
		case strings.HasPrefix(name, markName):
			s.marks = append(s.marks, strings.TrimPrefix(name, markName))
		case strings.HasSuffix(name, ".tmp") || strings.HasPrefix(name, "spare-"):
			if err := s.fs.Remove(s.logDir + "/" + name); err != nil {
				return fmt.Errorf("remove left-over %s: %w", name, err)
			}
		}
	}
	slices.Sort(ids)
	slices.Sort(indexes)
	topics, err := s.state.topicList()
	if err != nil {
		return err
	}
	for _, t := range topics {
		s.topics[t.Name] = t
		for id := range t.Queues {
			q := Queue{Topic: t.Name, ID: id}
			s.queues[q] = newQueue(q)
		}
	}
	gone := len(ids) == 0 && len(topics) > 0
	if gone { // there is a segment before there is a topic
		s.o.Report(Event{Kind: Damaged, File: s.logDir, Err: ErrDamaged, Detail: "all segments are missing, and with them the messages"})
	}
	r := recovery{s: s, graves: s.state.graves, found: map[string]int32{}, reborn: map[Queue]address{}, lost: gone}
	if err := r.ghosts(ids, indexes); err != nil {
		return err
	}
	for i, id := range ids {
		if err := r.segment(id, i == len(ids)-1, slices.Contains(indexes, id)); err != nil {
			return err
		}
	}
	if r.left && len(r.missing) == 0 {
		s.o.Report(Event{
			Kind: Damaged, File: s.segs[len(s.segs)-1].name, Err: ErrDamaged,
			Detail: "the segment that was begun after it is missing, and with it its messages",
		})
		r.lost = true
	}
	for _, id := range r.missing {
		if err := r.ghost(id); err != nil {
			return err
		}
	}
	return r.finish()
}

// recovery rebuilds the queues from indexes and batches.
type recovery struct {
	s      *Store
	graves map[Queue]address
	found  map[string]int32 // topics that the state does not know: number of queues
	reborn map[Queue]address
	last   *index     // newest index
	queues []*queue   // its directory; nil for deleted ones
	keys   []keyEntry // of the segment being scanned
	// blind: the index of the last dropped segment is lost, and none read since says
	// where idle queues go on.
	blind bool
	// lost: something was lost, it is not known of which queues.
	lost bool
	// left: the last segment was left. One was begun before its index was written.
	left bool
	// missing: segments at the end of the log of which only the indexes are left.
	missing []uint32
	// skipped: queues go on further on, which has to be made durable.
	skipped bool
}

// address is a place in the log.
type address struct {
	seg uint32
	pos int64
}

func (a address) before(b address) bool { return a.seg < b.seg || a.seg == b.seg && a.pos < b.pos }

// queue returns the queue of a batch or directory entry that ends at end, or nil
// if it was deleted after that.
func (r *recovery) queue(id Queue, end address) *queue {
	if g, ok := r.graves[id]; ok && !g.before(end) {
		return nil
	}
	s := r.s
	if q := s.queues[id]; q != nil {
		return q
	}
	r.found[id.Topic] = max(r.found[id.Topic], id.ID+1)
	q := newQueue(id)
	s.queues[id] = q
	return q
}

// again begins a queue anew at a place where the log goes back to its first offset, or
// says so: it was deleted and made again, and the state that knew it is lost.
func (r *recovery) again(q *queue, at address) *queue {
	s := r.s
	if q.next > 0 || !r.told(q.id.Topic) {
		s.o.Report(Event{
			Kind: TopicFound, File: segmentName(s.logDir, at.seg), Position: at.pos,
			Detail: fmt.Sprintf("%s/%d was deleted and made again; %d messages of before are deleted", q.id.Topic, q.id.ID, q.next-q.minLocked()),
		})
	}
	s.w.dedup.dropQueue(q)
	r.keys = slices.DeleteFunc(r.keys, func(k keyEntry) bool { return k.queue == q })
	r.reborn[q.id] = at
	fresh := newQueue(q.id)
	s.queues[q.id] = fresh
	return fresh
}

// told reports whether a queue of the topic was found to be made again.
func (r *recovery) told(topic string) bool {
	for q := range r.reborn {
		if q.Topic == topic {
			return true
		}
	}
	return false
}

// died takes over from an index that a queue was deleted, if the state does not know.
func (r *recovery) died(id Queue, at address) {
	q := r.s.queues[id]
	if g, ok := r.graves[id]; q == nil || ok && !g.before(at) {
		return
	}
	r.again(q, at)
}

// bury stores the graves that the state does not know, and forgets what it says
// about the queues of before.
func (r *recovery) bury() error {
	topics := map[string]map[Queue]address{}
	for q, at := range r.reborn {
		if topics[q.Topic] == nil {
			topics[q.Topic] = map[Queue]address{}
		}
		topics[q.Topic][q] = at
	}
	for name, graves := range topics {
		t := r.s.topics[name]
		if err := r.s.state.changeTopic(name, &t, graves, nil); err != nil {
			return err
		}
		r.s.state.buried(graves, true)
	}
	return nil
}

// ghosts handles indexes of segments that are gone: the newest one dropped still says
// where queues go on that have no batches since, and so does one behind all segments;
// the others are removed.
func (r *recovery) ghosts(ids, indexes []uint32) error {
	s := r.s
	for i, id := range indexes {
		if _, ok := slices.BinarySearch(ids, id); ok {
			continue
		}
		name := indexName(s.logDir, id)
		if len(ids) > 0 && id > ids[0] { // only the oldest are ever dropped
			s.o.Report(Event{Kind: Damaged, File: segmentName(s.logDir, id), Err: ErrDamaged, Detail: "the segment is missing, and with it its messages"})
			if id > ids[len(ids)-1] {
				r.missing = append(r.missing, id)
				continue
			}
		} else if i == len(indexes)-1 || len(ids) > 0 && indexes[i+1] >= ids[0] {
			if err := r.ghost(id); err != nil {
				return err
			}
			if !r.blind {
				s.ghost = id
				continue
			}
		}
		if err := s.fs.Remove(name); err != nil {
			return fmt.Errorf("remove index of a dropped segment: %w", err)
		}
	}
	return nil
}

// ghost takes over the index of a segment that is gone, once.
func (r *recovery) ghost(id uint32) error {
	s, name := r.s, indexName(r.s.logDir, id)
	var x *index
	open := func() (err error) {
		x, err = openIndex(s.fs, name, id)
		return err
	}
	err := open()
	if err != nil && !errors.Is(err, errIndex) && !s.unreadableNow()(open) && x == nil {
		return fmt.Errorf("index of a segment that is gone: %w", err)
	}
	if x != nil {
		err = errors.Join(r.directory(x, nil), x.file.Close())
	}
	if err != nil {
		s.o.Report(Event{Kind: Damaged, File: name, Err: err})
		r.blind = true
	}
	return nil
}

// segment recovers one segment.
func (r *recovery) segment(id uint32, active, indexed bool) error {
	s := r.s
	g := &segment{id: id, name: segmentName(s.logDir, id)}
	var err error
	if g.file, err = s.fs.Open(g.name); err != nil {
		return fmt.Errorf("open segment: %w", err)
	}
	s.segs = append(s.segs, g)
	var x *index
	if indexed {
		if x, err = openIndex(s.fs, indexName(s.logDir, id), id); err != nil {
			s.o.Report(Event{Kind: IndexRebuilt, File: indexName(s.logDir, id), Err: err})
			x = nil
		}
	}
	if r.left = x != nil && x.left; r.left && !active {
		if err := r.directory(x, g); err != nil {
			return err
		}
		r.blind = false
		g.index.Store(x)
		g.end, g.last = x.end, x.last
		return nil
	}
	return r.scan(g, x, active)
}

// directory takes over what an index says. g is nil if the segment is gone.
func (r *recovery) directory(x *index, g *segment) error {
	states, err := x.queues()
	if err != nil {
		return err
	}
	end := address{x.id, x.end}
	r.last, r.queues = x, make([]*queue, len(states))
	for i, st := range states {
		if st.dead {
			r.died(st.id, address{x.id, st.span.next})
			continue
		}
		q := r.queue(st.id, end)
		if q == nil {
			continue
		}
		if st.span.base == 0 && q.next > 0 {
			q = r.again(q, address{x.id, 0})
		}
		r.queues[i] = q
		q.next = max(q.next, st.span.next)
		if g == nil || st.span.n == 0 {
			continue
		}
		st.span.seg = g
		q.spans = append(q.spans, st.span)
	}
	r.s.w.lastTime = max(r.s.w.lastTime, x.last)
	return nil
}

// scan reads a segment's batches behind what its index covers, if it has one.
func (r *recovery) scan(g *segment, x *index, active bool) error {
	s := r.s
	size, err := g.file.Size()
	if err != nil {
		return fmt.Errorf("size of %s: %w", g.name, err)
	}
	from := int64(0)
	if r.last != nil {
		// Windows come from the newest index; batches behind it are added.
		if err := r.windows(); err != nil {
			s.o.Report(Event{Kind: Damaged, File: indexName(s.logDir, r.last.id), Err: err})
		}
		r.last = nil
	}
	if x != nil {
		if from, err = r.resume(g, x); err != nil {
			return err
		}
		r.blind = r.blind && from == 0
	}
	r.lost = r.lost || r.blind
	c := scanner{file: g.file, name: g.name, id: g.id, size: size, left: !active, report: s.o.Report, bad: s.unreadableNow()}
	end, torn, err := c.scan(from, func(pos int64, h *batch.Header) { r.apply(g, pos, h) })
	if err != nil {
		return fmt.Errorf("recover %s: %w", g.name, err)
	}
	r.lost = r.lost || c.damaged
	if torn {
		// So that the rest of the unfinished write is never found again.
		if err := g.file.Truncate(end); err != nil {
			return fmt.Errorf("cut %s at %d: %w", g.name, end, err)
		}
		size = end
	}
	// What a killed process wrote may be in memory only, and readers will see it.
	if err := g.file.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", g.name, err)
	}
	w := &s.w
	w.seg, w.pos, w.size = g, end, size
	w.graves = s.state.gravesIn(g.id)
	w.keys, r.keys = r.keys, nil
	if !active {
		s.detach()
		s.o.Report(Event{Kind: IndexRebuilt, File: indexName(s.logDir, g.id)})
	}
	return nil
}

// windows loads the windows of the newest index.
func (r *recovery) windows() error {
	return r.s.w.dedup.loadWindows(r.last.wins, r.queues)
}

// resume takes over the index that a clean stop left of the active segment, and
// returns where it ends: 0 if it is damaged.
func (r *recovery) resume(g *segment, x *index) (from int64, err error) {
	defer func() { err = errors.Join(err, x.file.Close()) }()
	states, err := x.queues()
	if err != nil {
		return 0, err
	}
	entries := make([][]entry, len(states))
	for i := range states {
		if entries[i], err = x.load(&states[i].span); err != nil {
			r.s.o.Report(Event{Kind: IndexRebuilt, File: indexName(r.s.logDir, g.id), Err: err})
			return 0, nil
		}
	}
	keys, err := x.allKeys()
	if err != nil {
		r.s.o.Report(Event{Kind: IndexRebuilt, File: indexName(r.s.logDir, g.id), Err: err})
		return 0, nil
	}
	if err := r.directory(x, nil); err != nil {
		return 0, err
	}
	for i, q := range r.queues {
		if sp := states[i].span; q != nil && len(entries[i]) > 0 {
			q.active, q.seg, q.base, q.first, q.last = entries[i], g, sp.base, sp.first, sp.last
		}
	}
	r.takeKeys(keys)
	if err := r.windows(); err != nil {
		return 0, err
	}
	r.last = nil
	return x.end, nil
}

// takeKeys takes the keys of an index back into memory.
func (r *recovery) takeKeys(b []byte) {
	rd := reader{b: b}
	for len(rd.b) > 0 {
		hash, i, delta := rd.u64(), rd.u32(), rd.u32()
		if int(i) < len(r.queues) && r.queues[i] != nil {
			r.keys = append(r.keys, keyEntry{hash: hash, queue: r.queues[i], offset: r.queues[i].base + int64(delta)})
		}
	}
}

// apply takes a scanned batch over.
func (r *recovery) apply(g *segment, pos int64, h *batch.Header) {
	s := r.s
	q := r.queue(Queue{Topic: string(h.Topic), ID: h.Queue}, address{g.id, pos + 1})
	if q == nil {
		return
	}
	if h.Stamp.BaseOffset == 0 && q.next > 0 {
		q = r.again(q, address{g.id, pos})
	}
	if h.Stamp.BaseOffset < q.next {
		s.o.Report(Event{
			Kind: Damaged, File: g.name, Position: pos, Bytes: int64(h.Length),
			Err: fmt.Errorf("%w: offset %d, but %s/%d goes on at %d", ErrDamaged, h.Stamp.BaseOffset, q.id.Topic, q.id.ID, q.next),
		})
		return
	}
	if len(q.active) == 0 {
		q.seg, q.base, q.first = g, h.Stamp.BaseOffset, h.Stamp.StoreTime
	}
	q.active = append(q.active, entry{delta: uint32(h.Stamp.BaseOffset - q.base), pos: uint32(pos), size: uint32(h.Length), tags: tagBits(h)})
	q.last, q.next = h.Stamp.StoreTime, h.NextOffset()
	s.w.lastTime = max(s.w.lastTime, h.Stamp.StoreTime)
	if h.ProducerID != 0 {
		s.w.dedup.add(windowKey{h.ProducerID, q}, h.ProducerEpoch,
			sequence{seq: h.BaseSequence, offset: h.Stamp.BaseOffset, time: h.Stamp.StoreTime, count: uint32(h.Count)})
	}
	if h.Stamp.Origin != 0 {
		s.w.dedup.addOrigin(h.Stamp.Origin, Appended{Offset: h.Stamp.BaseOffset, StoreTime: h.Stamp.StoreTime})
	}
	s.w.dedup.keep()
	k := keyEntry{queue: q, offset: h.Stamp.BaseOffset}
	if h.Flags&batch.FlagManyKeys != 0 {
		r.keys = append(r.keys, k)
	}
	for i := range h.Keys() {
		k.hash = h.Key(i)
		r.keys = append(r.keys, k)
	}
}
