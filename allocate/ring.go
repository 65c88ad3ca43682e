package allocate

import (
	"cmp"
	"crypto/md5"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

const (
	// DefaultVirtualNodes is RocketMQ's number of ring points for each member.
	DefaultVirtualNodes = 10
	// MaxVirtualNodes bounds the number of ring points for each member, and so
	// what a name received from the network can cost.
	MaxVirtualNodes = 1_000
)

// ConsistentHash places each member on a hash ring, several times, and gives a
// queue to the next member on the ring. It needs no knowledge of present owners
// and moves little, but promises no balance: with few virtual nodes loads differ
// by factors and members without any queue are common. [Rendezvous] is better at
// both.
//
// The zero ConsistentHash has no virtual nodes and gives nothing to anybody.
type ConsistentHash struct {
	virtualNodes int
}

// NewConsistentHash returns a ConsistentHash with so many ring points for each
// member, from 0 to [MaxVirtualNodes]: else [ErrVirtualNodes]. With 0 nobody gets
// anything, as in RocketMQ.
func NewConsistentHash(virtualNodes int) (ConsistentHash, error) {
	if virtualNodes < 0 || virtualNodes > MaxVirtualNodes {
		return ConsistentHash{}, fmt.Errorf("consistent hash: %d is not from 0 to %d: %w",
			virtualNodes, MaxVirtualNodes, ErrVirtualNodes)
	}
	return ConsistentHash{virtualNodes: virtualNodes}, nil
}

// Name returns "consistent-hash" for the default number of virtual nodes, else
// "consistent-hash(n)".
func (s ConsistentHash) Name() string {
	if s.virtualNodes == DefaultVirtualNodes {
		return nameConsistentHash
	}
	return formatName(nameConsistentHash, strconv.Itoa(s.virtualNodes))
}

// Allocate shares in.Queues, which fails only for want of queues or members.
func (s ConsistentHash) Allocate(in Input) (Assignment, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	points := s.ring(in.Members)
	if len(points) == 0 {
		return Assignment{}, nil
	}
	owner := make([]int32, len(in.Queues))
	var key []byte
	for i, q := range in.Queues {
		key = append(key[:0], "MessageQueue [topic="...)
		key = append(key, q.Topic...)
		key = append(key, ", brokerName="...)
		key = append(key, q.Broker...)
		key = append(key, ", queueId="...)
		key = strconv.AppendInt(key, int64(q.ID), 10)
		key = append(key, ']')
		at, _ := slices.BinarySearchFunc(points, ringHash(key), func(p ringPoint, h uint32) int {
			return cmp.Compare(p.hash, h)
		})
		if at == len(points) {
			at = 0
		}
		owner[i] = points[at].member
	}
	return in.assignment(owner), nil
}

type ringPoint struct {
	hash   uint32
	member int32
}

// ring returns the points in ascending order. Points are named id-0, id-1, …; of
// two on one hash the later one stays. An id that comes again goes on counting
// from the points it has on the ring by then.
func (s ConsistentHash) ring(members []Member) []ringPoint {
	if s.virtualNodes == 0 {
		return nil
	}
	points := make(map[uint32]int32, len(members)*s.virtualNodes)
	first := make(map[string]int32, len(members))
	count := make([]int, len(members))
	var name []byte
	for i, m := range members {
		at, again := first[m.ClientID]
		if !again {
			at = int32(i)
			first[m.ClientID] = at
		}
		name = append(append(name[:0], m.ClientID...), '-')
		prefix := len(name)
		begin := count[at]
		for node := range s.virtualNodes {
			name = strconv.AppendInt(name[:prefix], int64(begin+node), 10)
			hash := ringHash(name)
			if old, taken := points[hash]; taken {
				count[old]--
			}
			points[hash] = at
			count[at]++
		}
	}
	sorted := make([]ringPoint, 0, len(points))
	for hash, member := range maps.All(points) {
		sorted = append(sorted, ringPoint{hash, member})
	}
	slices.SortFunc(sorted, func(a, b ringPoint) int { return cmp.Compare(a.hash, b.hash) })
	return sorted
}

// ringHash is RocketMQ's: the first four bytes of the MD5, big endian.
func ringHash(key []byte) uint32 {
	sum := md5.Sum(key)
	return binary.BigEndian.Uint32(sum[:4])
}
