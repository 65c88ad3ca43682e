package allocate

// Owners says who owns each queue. A queue that nobody owns is absent.
type Owners map[Queue]string

// Owners returns the owner of each queue in a. Of several members with one queue
// it names the smallest client id.
func (a Assignment) Owners() Owners {
	n := 0
	for _, queues := range a {
		n += len(queues)
	}
	out := make(Owners, n)
	for id, queues := range a {
		for _, q := range queues {
			if other, ok := out[q]; !ok || CompareStrings(id, other) < 0 {
				out[q] = id
			}
		}
	}
	return out
}

// Owners returns the owner of each queue that a member names as owned, the
// smallest client id if several do.
func (in Input) Owners() Owners {
	out := make(Owners, len(in.Queues))
	for _, m := range in.Members {
		for _, q := range m.Owned {
			if other, ok := out[q]; !ok || CompareStrings(m.ClientID, other) < 0 {
				out[q] = m.ClientID
			}
		}
	}
	return out
}

// Moves returns how many queues have another owner after a change than before,
// because the owner left or because they were taken from it. Queues that had no
// owner are no moves, nor are queues that nobody owns now: they are gone, or
// still on their way.
func Moves(before, after Owners) int {
	moves := 0
	for q, owner := range before {
		if now, ok := after[q]; ok && now != owner {
			moves++
		}
	}
	return moves
}

// MinimumMoves returns the number of moves, as [Moves] counts them, that no
// assignment can undercut which gives every queue to a member with loads that
// differ by at most one: the queues whose owner is not a member any more, and
// what members own beyond their share. Queues of before that are not in queues
// do not count. Without members nothing moves.
func MinimumMoves(before Owners, queues []Queue, members []string) int {
	held := make(map[string]int, len(members))
	for _, id := range members {
		held[id] = 0
	}
	if len(held) == 0 {
		return 0
	}
	seen := make(map[Queue]struct{}, len(queues))
	moves := 0
	for _, q := range queues {
		if _, again := seen[q]; again {
			continue
		}
		seen[q] = struct{}{}
		owner, owned := before[q]
		if !owned {
			continue
		}
		if _, present := held[owner]; present {
			held[owner]++
		} else {
			moves++
		}
	}
	share, extras := len(seen)/len(held), len(seen)%len(held)
	for _, n := range held {
		if n <= share {
			continue
		}
		moves += n - share
		if extras > 0 {
			extras--
			moves--
		}
	}
	return moves
}
