package assignor

import "slices"

// loads is a heap of members by load: the least loaded first, of equal loads the
// smallest number. An entry is the load and, in the lower half, the number.
type loads []int64

func newLoads(members, held []int32) loads {
	h := make(loads, len(members))
	for i, m := range members {
		h[i] = int64(held[m])<<32 | int64(m)
	}
	slices.Sort(h)
	return h
}

// addToLeast adds one to the load of the first member and returns it.
func (h loads) addToLeast() int32 {
	m := int32(h[0])
	h[0] += 1 << 32
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if h[child] < h[least] {
				least = child
			}
		}
		if least == i {
			return m
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}
