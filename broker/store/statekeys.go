package store

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"
)

// Keys of the state: a letter, then
//
//	o  topic NUL queue(4) group           committed offset, uvarint
//	l  topic NUL queue(4) group           lease
//	s  due(8) id(8)                       scheduled batch
//	t  topic                              queue count and configuration
//	d  topic NUL queue(4)                 grave: where in the log the queue was deleted
//	k  space NUL key                      the broker's own
//	e                                     broker epoch, uvarint
//	i                                     last id of a scheduled batch, uvarint
//	n                                     number of the last group of updates, uvarint
//
// Integers in keys are big-endian.
const (
	keyOffset     = 'o'
	keyLease      = 'l'
	keySchedule   = 's'
	keyTopic      = 't'
	keyGrave      = 'd'
	keySpace      = 'k'
	keyEpoch      = 'e'
	keyScheduleID = 'i'
	keySeq        = 'n'
)

func queueKey(kind byte, q Queue, group string) []byte {
	b := make([]byte, 0, 6+len(q.Topic)+len(group))
	b = append(b, kind)
	b = append(b, q.Topic...)
	b = append(b, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(q.ID))
	return append(b, group...)
}

func parseQueueKey(k []byte) (q Queue, group string, err error) {
	topic, rest, ok := strings.Cut(string(k[1:]), "\x00")
	if !ok || len(rest) < 4 {
		return q, "", fmt.Errorf("%w: state key %q", ErrDamaged, k)
	}
	q = Queue{Topic: topic, ID: int32(binary.BigEndian.Uint32([]byte(rest)))}
	return q, rest[4:], nil
}

func scheduleKey(due int64, id uint64) []byte {
	b := append(make([]byte, 0, 17), keySchedule)
	b = binary.BigEndian.AppendUint64(b, uint64(due))
	return binary.BigEndian.AppendUint64(b, id)
}

func spaceKey(space, key string) []byte {
	b := make([]byte, 0, 2+len(space)+len(key))
	b = append(b, keySpace)
	b = append(b, space...)
	b = append(b, 0)
	return append(b, key...)
}

func (l *Lease) encode() []byte {
	le := binary.LittleEndian
	var b []byte
	for _, v := range []uint64{l.EpochBroker, l.EpochCounter, l.Incarnation[0], l.Incarnation[1], uint64(l.Timeout.Milliseconds())} {
		b = le.AppendUint64(b, v)
	}
	return append(b, l.Holder...)
}

func decodeLease(k, v []byte) (Lease, error) {
	q, group, err := parseQueueKey(k)
	if err != nil {
		return Lease{}, err
	}
	r := reader{b: v}
	l := Lease{
		Group: group, Queue: q, EpochBroker: r.u64(), EpochCounter: r.u64(),
		Incarnation: [2]uint64{r.u64(), r.u64()}, Timeout: time.Duration(r.u64()) * time.Millisecond,
	}
	if r.bad {
		return Lease{}, fmt.Errorf("%w: lease of %d bytes", ErrDamaged, len(v))
	}
	l.Holder = string(r.b)
	return l, nil
}

func (t *Topic) encode() []byte {
	return append(binary.LittleEndian.AppendUint32(nil, uint32(t.Queues)), t.Config...)
}

func decodeTopic(k, v []byte) (Topic, error) {
	if len(v) < 4 {
		return Topic{}, fmt.Errorf("%w: topic of %d bytes", ErrDamaged, len(v))
	}
	n := int32(binary.LittleEndian.Uint32(v))
	if n < 0 || n > maxQueues {
		return Topic{}, fmt.Errorf("%w: topic with %d queues", ErrDamaged, n)
	}
	return Topic{Name: string(k[1:]), Queues: n, Config: append([]byte(nil), v[4:]...)}, nil
}

func (a address) encode() []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(nil, a.seg), uint64(a.pos))
}

func decodeAddress(v []byte) (address, error) {
	if len(v) != 12 {
		return address{}, fmt.Errorf("%w: grave of %d bytes", ErrDamaged, len(v))
	}
	return address{binary.LittleEndian.Uint32(v), int64(binary.LittleEndian.Uint64(v[4:]))}, nil
}

func decodeUvarint(v []byte) (uint64, error) {
	n, w := binary.Uvarint(v)
	if w <= 0 || w != len(v) {
		return 0, fmt.Errorf("%w: number of %d bytes", ErrDamaged, len(v))
	}
	return n, nil
}
