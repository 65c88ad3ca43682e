package allocate

// Averagely gives each member one block of consecutive queues, the first members
// one more where the counts do not divide: RocketMQ's default. A join or leave
// moves the blocks of nearly everybody, and with many topics the first members
// collect the extras of all of them.
type Averagely struct{}

// Name returns "averagely".
func (Averagely) Name() string { return nameAveragely }

// Allocate shares in.Queues, which fails only for want of queues or members.
func (Averagely) Allocate(in Input) (Assignment, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	n, m := len(in.Queues), len(in.Members)
	all := make([]Queue, n)
	copy(all, in.Queues)
	out := make(Assignment, min(n, m))
	for i := range min(n, m) {
		id := in.Members[i].ClientID
		if _, ok := out[id]; ok {
			continue // listed twice: the first place counts, as in RocketMQ
		}
		from, to := AveragelyRange(n, m, i)
		out[id] = all[from:to:to]
	}
	return out, nil
}

// AveragelyRange returns the part of Averagely's member i, counted from 0, of so
// many sorted members: the queues from (included) to to (excluded) of so many
// sorted queues. One member thus finds its part of a kept snapshot without
// computing the rest. The range is empty if i is not a member's place or any
// count is not positive.
func AveragelyRange(queues, members, i int) (from, to int) {
	if queues <= 0 || i < 0 || i >= members {
		return 0, 0
	}
	each, more := queues/members, queues%members
	if i < more {
		from = i * (each + 1)
		return from, from + each + 1
	}
	from = i*each + more
	return from, from + each
}

// AveragelyByCircle deals the queues out like cards: member i gets every m-th
// queue beginning with the i-th. It spreads a member over the brokers where
// Averagely gives runs on one, and moves even more on a change.
type AveragelyByCircle struct{}

// Name returns "averagely-by-circle".
func (AveragelyByCircle) Name() string { return nameCircle }

// Allocate shares in.Queues, which fails only for want of queues or members.
func (AveragelyByCircle) Allocate(in Input) (Assignment, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	n, m := len(in.Queues), len(in.Members)
	all := make([]Queue, 0, n)
	out := make(Assignment, min(n, m))
	for i := range min(n, m) {
		id := in.Members[i].ClientID
		if _, ok := out[id]; ok {
			continue
		}
		from := len(all)
		all = AppendCircle(all, in.Queues, m, i)
		out[id] = all[from:len(all):len(all)]
	}
	return out, nil
}

// AppendCircle appends to dst the part of AveragelyByCircle's member i, counted
// from 0, of so many sorted members: every members-th of the sorted queues. It
// appends nothing if i is not a member's place.
func AppendCircle(dst, queues []Queue, members, i int) []Queue {
	if i < 0 || i >= members {
		return dst
	}
	for ; i < len(queues); i += members {
		dst = append(dst, queues[i])
	}
	return dst
}
