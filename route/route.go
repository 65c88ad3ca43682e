// Package route holds what name servers say of topics, and how the words of
// several name servers become one route.
//
// Name servers share nothing, so each may be behind, cut off, empty or freshly
// started. The entry of a broker is written by the broker itself and carries
// (broker epoch, config version): the highest wins, so that merging gives the
// same answer everywhere and in every order. What is missing somewhere proves
// little: see [Merge]. [Table] keeps what each name server said.
//
// Everything here is pure: no I/O, no clock, no goroutine.
package route

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tacitmq/tacit/allocate"
)

// Limits of what a broker registers.
const (
	// MaxNameLength of brokers, clusters and addresses, in bytes.
	MaxNameLength = 255
	// MaxQueues of a topic on one broker: queue ids are below it.
	MaxQueues = 1 << 16
)

// Broker is what a broker says of itself.
type Broker struct {
	Name    string
	Address string // host:port that clients connect to
	Cluster string // a label for people; may be empty
	Stamp   Stamp
}

// Stamp orders what a broker says of itself: its epoch grows with every start,
// the version with every change of its topics.
type Stamp struct {
	Epoch   uint64
	Version uint64
}

// Compare orders stamps; the greater one is newer.
func (s Stamp) Compare(o Stamp) int {
	return cmp.Or(cmp.Compare(s.Epoch, o.Epoch), cmp.Compare(s.Version, o.Version))
}

func (s Stamp) String() string { return fmt.Sprintf("%d.%d", s.Epoch, s.Version) }

// Config is one topic on one broker. Queue counts are per broker.
type Config struct {
	Topic       string
	ReadQueues  int32 // ids 0 to ReadQueues-1 may be read
	WriteQueues int32 // ids 0 to WriteQueues-1 may be written
	Readable    bool  // permission
	Writable    bool  // permission
}

// Host is a broker that hosts a topic, and how.
type Host struct {
	Broker Broker
	Config Config
}

// Topic is the route of one topic: the brokers that host it, sorted by name.
// Without hosts the topic does not exist.
type Topic struct {
	Name  string
	Hosts []Host
}

// Equal reports whether t and o say the same, whatever the order of their hosts.
// A new stamp of a broker alone, without another address, count or permission,
// is no difference.
func (t Topic) Equal(o Topic) bool {
	if t.Name != o.Name || len(t.Hosts) != len(o.Hosts) {
		return false
	}
	a, b := sorted(t.Hosts), sorted(o.Hosts)
	for i := range a {
		x, y := a[i], b[i]
		x.Broker.Stamp, y.Broker.Stamp = Stamp{}, Stamp{}
		if x != y {
			return false
		}
	}
	return true
}

// Brokers returns the names of the brokers that host t, sorted.
func (t Topic) Brokers() []string {
	out := make([]string, 0, len(t.Hosts))
	for _, h := range t.Hosts {
		out = append(out, h.Broker.Name)
	}
	slices.SortFunc(out, allocate.CompareStrings)
	return out
}

// Host returns the entry of the named broker.
func (t Topic) Host(broker string) (Host, bool) {
	for _, h := range t.Hosts {
		if h.Broker.Name == broker {
			return h, true
		}
	}
	return Host{}, false
}

// Readable returns the queues that may be read, sorted as strategies want them.
func (t Topic) Readable() []allocate.Queue {
	return t.queues(func(c Config) int32 {
		if !c.Readable {
			return 0
		}
		return c.ReadQueues
	})
}

// Writable returns the queues that may be written, sorted. A queue above the
// readable ones is left out: nobody could read what is written there.
func (t Topic) Writable() []allocate.Queue {
	return t.queues(func(c Config) int32 {
		if !c.Writable {
			return 0
		}
		return min(c.WriteQueues, c.ReadQueues)
	})
}

func (t Topic) queues(count func(Config) int32) []allocate.Queue {
	n := 0
	for _, h := range t.Hosts {
		n += int(count(h.Config))
	}
	out := make([]allocate.Queue, 0, n)
	for _, h := range sorted(t.Hosts) {
		for id := range count(h.Config) {
			out = append(out, allocate.Queue{Topic: t.Name, Broker: h.Broker.Name, ID: id})
		}
	}
	return out
}

// sorted returns hosts by broker name, hosts itself if it is sorted.
func sorted(hosts []Host) []Host {
	if slices.IsSortedFunc(hosts, compareHosts) {
		return hosts
	}
	hosts = slices.Clone(hosts)
	slices.SortFunc(hosts, compareHosts)
	return hosts
}

// compareHosts orders hosts by broker name and then, so that equal stamps with
// different content have one order everywhere, by stamp and content.
func compareHosts(a, b Host) int {
	return cmp.Or(
		allocate.CompareStrings(a.Broker.Name, b.Broker.Name),
		compareContent(a, b),
	)
}

// compareContent orders entries of one broker: the greater is believed.
func compareContent(a, b Host) int {
	return cmp.Or(
		CompareBrokers(a.Broker, b.Broker),
		cmp.Compare(a.Config.Topic, b.Config.Topic),
		cmp.Compare(a.Config.ReadQueues, b.Config.ReadQueues),
		cmp.Compare(a.Config.WriteQueues, b.Config.WriteQueues),
		compareBools(a.Config.Readable, b.Config.Readable),
		compareBools(a.Config.Writable, b.Config.Writable),
	)
}

// CompareBrokers orders entries of one broker by stamp and then, so that the
// answer is the same everywhere, by content: the greater is believed.
func CompareBrokers(a, b Broker) int {
	return cmp.Or(a.Stamp.Compare(b.Stamp), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Cluster, b.Cluster))
}

func compareNames(a, b string) int { return allocate.CompareStrings(a, b) }

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// CheckBroker checks the name of a broker: letters, digits, dots, hyphens and
// underscores. It stands in queue names like "broker-a/3" and in file and metric
// names. The error says what is allowed.
func CheckBroker(name string) error { return checkName(name, 1) }

// CheckCluster checks the name of a cluster; it may be empty.
func CheckCluster(name string) error { return checkName(name, 0) }

func checkName(name string, least int) error {
	ok := len(name) >= least && len(name) <= MaxNameLength
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		ok = 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '-' || c == '_'
	}
	if !ok {
		return fmt.Errorf("%.64q: must be %d to %d letters, digits, dots, hyphens and underscores", name, least, MaxNameLength)
	}
	return nil
}
