package coordination

import (
	"strconv"

	"github.com/tacitmq/tacit/session"
)

// Partitions is into how many parts groups are dealt, as Kafka's
// offsets.topic.num.partitions.
const Partitions = 50

// Partition returns the part a group belongs to: the absolute value of the Java
// hash of its name, whose one value without a positive twin counts as 0, modulo
// [Partitions].
func Partition(group string) int {
	h := int64(hash(group))
	if h == -1<<31 {
		return 0
	}
	return int(max(h, -h) % Partitions)
}

// hash is String.hashCode of Java: over UTF-16 code units, in wrapping arithmetic.
func hash(s string) (h int32) {
	for _, r := range s {
		if r > 0xffff {
			r -= 0x10000
			h = 31*h + 0xd800 + r>>10
			r = 0xdc00 + r&0x3ff
		}
		h = 31*h + r
	}
	return h
}

// Host returns the broker that coordinates a group: of the live brokers the first in
// the rank of the group's partition, so that a broker that comes or goes moves the
// groups of its own partitions only. Empty if there is none.
func Host(group string, brokers []string) string {
	ranked := session.RankBrokers("", strconv.Itoa(Partition(group)), brokers)
	if len(ranked) == 0 {
		return ""
	}
	return ranked[0]
}
