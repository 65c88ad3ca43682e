package allocate

// Rendezvous shares by highest score, with loads that differ by at most one. It
// looks only at the two lists and not at who owns what, and yet moves little:
// when one member joins 100 with 1 000 queues, 2.5 times the minimum on average,
// where Averagely moves 44 times the minimum; up to 4 times where the counts
// divide less well, such as from 99 to 100 members.
//
// With Q queues and M members a member takes Q/M queues, and the first Q mod M
// members that take one beyond that may keep it. Of all pairs of a queue without
// owner and a member with room the one with the highest score is taken next,
// until all queues have an owner.
//
// Scores are a wire contract between versions and languages, with recorded cases
// in testdata/sticky-golden.json; a change needs a new name. With [Hash] and its
// closing function mix64, the splitmix64 finaliser:
//
//	queue   = Hash{String(topic), String(broker), Uint64(id, sign-extended)}
//	member  = Hash{String(client id)}
//	score   = mix64(queue XOR member), unsigned, the higher the better
//	on equal scores: the smaller queue, then the smaller client id
//
// Inputs that are not in order are normalized first.
type Rendezvous struct{}

// Name returns "rendezvous".
func (Rendezvous) Name() string { return nameRendezvous }

// Allocate shares in.Queues, which fails only for want of queues or members.
func (Rendezvous) Allocate(in Input) (Assignment, error) {
	in = in.Normalize()
	if err := in.check(); err != nil {
		return nil, err
	}
	m := newMatching(in)
	for i := range m.room {
		m.room[i] = int32(len(in.Queues) / len(in.Members))
	}
	m.extras = len(in.Queues) % len(in.Members)
	m.run(in.Members)
	return in.assignment(m.owner), nil
}
