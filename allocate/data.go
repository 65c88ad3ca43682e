package allocate

import (
	"encoding/binary"
	"fmt"
)

// EncodeQueues encodes a member's fixed list of queues as the data it announces
// for [Config]: the number of queues, then for each its topic and broker, each as
// length and bytes, and its id. Numbers are varints as in encoding/binary, counts
// and lengths unsigned, the id signed (zigzag).
func EncodeQueues(queues []Queue) []byte {
	size := binary.MaxVarintLen64
	for _, q := range queues {
		size += len(q.Topic) + len(q.Broker) + 3*binary.MaxVarintLen32
	}
	b := binary.AppendUvarint(make([]byte, 0, size), uint64(len(queues)))
	for _, q := range queues {
		b = appendString(b, q.Topic)
		b = appendString(b, q.Broker)
		b = binary.AppendVarint(b, int64(q.ID))
	}
	return b
}

// DecodeQueues is the inverse of EncodeQueues. No data at all is an empty list;
// anything else that EncodeQueues does not write gives [ErrBadData].
func DecodeQueues(data []byte) ([]Queue, error) {
	if len(data) == 0 {
		return nil, nil
	}
	count, rest, ok := cutUvarint(data)
	// A queue takes 3 bytes at least, which bounds what a false count can make us allocate.
	if !ok || count > uint64(len(rest)/3) {
		return nil, fmt.Errorf("decode list of queues: number of queues: %w", ErrBadData)
	}
	queues := make([]Queue, count)
	for i := range queues {
		q := &queues[i]
		if q.Topic, rest, ok = cutString(rest); !ok {
			return nil, fmt.Errorf("decode list of queues: topic of queue %d: %w", i, ErrBadData)
		}
		if q.Broker, rest, ok = cutString(rest); !ok {
			return nil, fmt.Errorf("decode list of queues: broker of queue %d: %w", i, ErrBadData)
		}
		id, n := binary.Varint(rest)
		if n <= 0 || id != int64(int32(id)) {
			return nil, fmt.Errorf("decode list of queues: id of queue %d: %w", i, ErrBadData)
		}
		q.ID, rest = int32(id), rest[n:]
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("decode list of queues: %d bytes too many: %w", len(rest), ErrBadData)
	}
	return queues, nil
}

// EncodeZone encodes a member's zone as the data it announces for
// [MachineRoomNearby]: the zone as length (unsigned varint) and bytes, then
// inner, the data for the inner strategy, mostly nil.
func EncodeZone(zone string, inner []byte) []byte {
	b := make([]byte, 0, binary.MaxVarintLen32+len(zone)+len(inner))
	return append(appendString(b, zone), inner...)
}

// DecodeZone is the inverse of EncodeZone; inner is a part of data. No data at
// all is an empty zone; what cannot be decoded gives [ErrBadData].
func DecodeZone(data []byte) (zone string, inner []byte, err error) {
	if len(data) == 0 {
		return "", nil, nil
	}
	zone, inner, ok := cutString(data)
	if !ok {
		return "", nil, fmt.Errorf("decode zone: %w", ErrBadData)
	}
	return zone, inner, nil
}

// CheckData reports whether s can use data as the data of a member, so that
// wrong data is refused where it arrives and not in everybody's next pass.
// Strategies that take no data accept any.
func CheckData(s Strategy, data []byte) error {
	if c, ok := s.(interface{ checkData(data []byte) error }); ok {
		return c.checkData(data)
	}
	return nil
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func cutString(b []byte) (s string, rest []byte, ok bool) {
	n, rest, ok := cutUvarint(b)
	if !ok || n > uint64(len(rest)) {
		return "", nil, false
	}
	return string(rest[:n]), rest[n:], true
}

func cutUvarint(b []byte) (v uint64, rest []byte, ok bool) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, false
	}
	return v, b[n:], true
}
