package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// Offset returns the committed offset of group for q; ok is false if there is none.
func (st *State) Offset(group string, q Queue) (offset int64, ok bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	at := st.offsets[group][q]
	if at == nil || at.durable < 0 {
		return 0, false
	}
	return at.durable, true
}

// Offsets returns every committed offset of group.
func (st *State) Offsets(group string) map[Queue]int64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	out := make(map[Queue]int64, len(st.offsets[group]))
	for q, at := range st.offsets[group] {
		if at.durable >= 0 {
			out[q] = at.durable
		}
	}
	return out
}

// Groups returns the names of the groups that have committed offsets, sorted.
func (st *State) Groups() []string {
	st.mu.Lock()
	defer st.mu.Unlock()
	return slices.Sorted(maps.Keys(st.offsets))
}

// eachOffset calls f with every committed offset.
func (st *State) eachOffset(f func(q Queue, offset int64)) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, queues := range st.offsets {
		for q, at := range queues {
			f(q, at.durable)
		}
	}
}

// Leases returns all stored leases, sorted by group and queue.
func (st *State) Leases() []Lease {
	st.mu.Lock()
	defer st.mu.Unlock()
	var out []Lease
	for _, group := range slices.Sorted(maps.Keys(st.leases)) {
		queues := st.leases[group]
		for _, q := range slices.SortedFunc(maps.Keys(queues), compareQueues) {
			out = append(out, queues[q])
		}
	}
	return out
}

// dueBytes bounds the batches that Due returns at once, but for the last of them.
const dueBytes = 16 << 20

// Due returns at most limit batches that are due at now (Unix milliseconds), in
// order of time, and the time at which the one after them will be: 0 if there is
// none. It returns fewer than there are if they are large.
func (st *State) Due(now int64, limit int) (batches []Scheduled, next int64, err error) {
	size := 0
	err = st.scan([]byte{keySchedule}, []byte{keySchedule + 1}, func(k, v []byte) (bool, error) {
		if len(k) != 17 {
			return false, fmt.Errorf("%w: schedule key of %d bytes", ErrDamaged, len(k))
		}
		due, id := int64(binary.BigEndian.Uint64(k[1:])), binary.BigEndian.Uint64(k[9:])
		if due > now || len(batches) >= limit || size >= dueBytes {
			next = due
			return false, nil
		}
		size += len(v)
		batches = append(batches, Scheduled{ID: id, Due: due, Batch: slices.Clone(v)})
		return true, nil
	})
	return batches, next, err
}

// Get returns the value of a key of a space.
func (st *State) Get(space, key string) (value []byte, ok bool, err error) {
	err = st.withDB(func(db *pebble.DB) error {
		v, c, err := db.Get(spaceKey(space, key))
		if errors.Is(err, pebble.ErrNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("get %s of %s: %w", key, space, err)
		}
		value, ok = append([]byte{}, v...), true
		return c.Close()
	})
	return value, ok, err
}

// Scan calls yield with the keys of a space that begin with prefix, in order,
// until it returns false. The value is valid only during the call. yield must not
// read the state.
func (st *State) Scan(space, prefix string, yield func(key string, value []byte) bool) error {
	from := spaceKey(space, prefix)
	skip := len(from) - len(prefix)
	return st.scan(from, upper(from), func(k, v []byte) (bool, error) { return yield(string(k[skip:]), v), nil })
}

// scan calls f with the keys in [from, to).
func (st *State) scan(from, to []byte, f func(k, v []byte) (bool, error)) error {
	return st.withDB(func(db *pebble.DB) error { return scanDB(db, from, to, f) })
}

func scanDB(db *pebble.DB, from, to []byte, f func(k, v []byte) (bool, error)) error {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return fmt.Errorf("read state: %w", err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		more := false
		if err == nil {
			more, err = f(it.Key(), v)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("read state: %w", err), it.Close())
		}
		if !more {
			break
		}
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return fmt.Errorf("read state: %w", err)
	}
	return nil
}

// upper returns the smallest key greater than all that begin with prefix.
func upper(prefix []byte) []byte {
	end := slices.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < math.MaxUint8 {
			end[i]++
			return end[:i+1]
		}
	}
	return nil
}
