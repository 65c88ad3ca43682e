package allocate

// Scores and matching of Rendezvous and Sticky. All of it is a wire contract: see
// the comment of Rendezvous.

func queueHash(q Queue) uint64 {
	return NewHash().String(q.Topic).String(q.Broker).Uint64(uint64(int64(q.ID))).Sum64()
}

func memberHash(clientID string) uint64 { return NewHash().String(clientID).Sum64() }

func extraHash(topic, clientID string) uint64 {
	return NewHash().String(topic).String(clientID).Sum64()
}

// score joins the hashes of a queue and a member.
func score(queue, member uint64) uint64 { return mix64(queue ^ member) }

// matching gives queues to members, of all pairs with room always the one with
// the highest score; on equal scores the smaller queue, then the smaller member.
//
// It does so without sorting all pairs: a queue proposes itself to the member
// that it scores highest with, and of all proposals the best is taken. A member
// that has no more room never gets room again, so when the best proposal meets
// one, its queue looks for the best of those that still have room, and waits for
// that proposal's turn.
type matching struct {
	queues []uint64 // hash of each queue
	owner  []int32  // of each queue: member or nobody
	room   []int32  // of each member: queues it may take yet; -1 when it took an extra
	extras int      // members that may yet take one queue beyond their room

	// Members with room, ascending, and some that lost it since they were listed;
	// how many of these at most.
	open     []int32
	hashes   []uint64 // of open, apart: the search for the best is nearly all there is to do
	stale    int
	proposed []proposal // a heap, best on top
}

type proposal struct {
	score         uint64
	queue, member int32
}

func newMatching(in Input) *matching {
	m := &matching{
		queues: make([]uint64, len(in.Queues)),
		owner:  make([]int32, len(in.Queues)),
		room:   make([]int32, len(in.Members)),
	}
	for i, q := range in.Queues {
		m.queues[i], m.owner[i] = queueHash(q), nobody
	}
	return m
}

// run matches all queues without an owner. There must be room for them.
func (m *matching) run(members []Member) {
	rest := 0
	for _, owner := range m.owner {
		if owner == nobody {
			rest++
		}
	}
	if rest == 0 {
		return
	}
	m.open, m.hashes = make([]int32, 0, len(members)), make([]uint64, 0, len(members))
	for i := range members {
		if m.hasRoom(int32(i)) {
			m.open = append(m.open, int32(i))
			m.hashes = append(m.hashes, memberHash(members[i].ClientID))
		}
	}
	m.proposed = make([]proposal, 0, rest)
	for q, owner := range m.owner {
		if owner == nobody {
			m.proposed = append(m.proposed, m.best(int32(q)))
		}
	}
	for i := len(m.proposed)/2 - 1; i >= 0; i-- {
		m.sink(i)
	}
	for len(m.proposed) > 0 {
		top := &m.proposed[0]
		if m.hasRoom(top.member) {
			m.take(*top)
			last := len(m.proposed) - 1
			*top = m.proposed[last]
			m.proposed = m.proposed[:last]
		} else {
			*top = m.best(top.queue)
		}
		m.sink(0)
	}
}

func (m *matching) hasRoom(member int32) bool {
	return m.room[member] > 0 || m.room[member] == 0 && m.extras > 0
}

func (m *matching) take(p proposal) {
	m.owner[p.queue] = p.member
	extra := m.room[p.member] == 0
	m.room[p.member]--
	switch {
	case extra:
		if m.extras--; m.extras == 0 {
			m.stale = len(m.open) // all others lost their room with the last extra
		} else {
			m.stale++
		}
	case m.room[p.member] == 0 && m.extras == 0:
		m.stale++
	}
}

// best returns the proposal of the queue to the best member with room.
func (m *matching) best(queue int32) proposal {
	// Passing over a few that have no room is cheaper than taking each out.
	if m.stale > len(m.open)/8 {
		m.compact()
	}
	for {
		at, top := m.highest(m.queues[queue])
		if member := m.open[at]; m.hasRoom(member) {
			return proposal{top, queue, member}
		}
		m.compact()
	}
}

// compact takes members without room out of open.
func (m *matching) compact() {
	n := 0
	for i, member := range m.open {
		if m.hasRoom(member) {
			m.open[n], m.hashes[n] = member, m.hashes[i]
			n++
		}
	}
	m.open, m.hashes, m.stale = m.open[:n], m.hashes[:n], 0
}

// highest returns which of open has the highest score with a queue, the first of
// several. Four scores are computed at a time, which keeps the processor's
// multipliers busy.
func (m *matching) highest(queue uint64) (at int, top uint64) {
	hashes := m.hashes
	top = score(queue, hashes[0])
	i := 1
	for ; i+4 <= len(hashes); i += 4 {
		h := hashes[i : i+4 : i+4]
		s0, s1, s2, s3 := score(queue, h[0]), score(queue, h[1]), score(queue, h[2]), score(queue, h[3])
		if max(s0, s1, s2, s3) <= top {
			continue
		}
		for j, s := range [4]uint64{s0, s1, s2, s3} {
			if s > top {
				at, top = i+j, s
			}
		}
	}
	for ; i < len(hashes); i++ {
		if s := score(queue, hashes[i]); s > top {
			at, top = i, s
		}
	}
	return at, top
}

// sink restores the heap below i.
func (m *matching) sink(i int) {
	h := m.proposed
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if right := child + 1; right < len(h) && h[right].before(h[child]) {
			child = right
		}
		if !h[child].before(h[i]) {
			return
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}

func (p proposal) before(o proposal) bool {
	if p.score != o.score {
		return p.score > o.score
	}
	return p.queue < o.queue
}
