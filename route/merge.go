package route

import (
	"slices"
)

// State says what the word of a name server is worth.
type State uint8

const (
	// Unreachable: it has not been heard for a while. Its word does not count.
	Unreachable State = iota
	// Warming: it started a moment ago or knows no broker at all. What it lists
	// counts, what it lacks does not.
	Warming
	// Ready: what it lacks it has dropped, or never knew.
	Ready
)

func (s State) String() string {
	switch s {
	case Unreachable:
		return "unreachable"
	case Warming:
		return "warming"
	case Ready:
		return "ready"
	}
	return "unknown"
}

// Saying is what one name server says of a topic.
type Saying struct {
	State State
	Hosts []Host
}

// Merge returns the route of a topic, given the merged route before and what
// each name server says now.
//
//   - The entry of a broker with the highest stamp is believed, the one before
//     included: a name server that is behind changes nothing.
//   - A broker comes as soon as one reachable name server lists it.
//   - A broker leaves when no reachable name server lists it and at least one of
//     them is ready. Unreachable and warming ones never remove anything.
//
// The order of the sayings does not matter and saying the same again changes
// nothing. before is not changed.
func Merge(before Topic, says []Saying) Topic {
	ready := false
	n := len(before.Hosts)
	for i := range says {
		ready = ready || says[i].State == Ready
		n += len(says[i].Hosts)
	}
	// Every entry ever heard of, the believed one of each broker last.
	all := make([]Host, 0, n)
	listed := make(map[string]bool, n)
	all = append(all, before.Hosts...)
	for i := range says {
		if says[i].State == Unreachable {
			continue
		}
		all = append(all, says[i].Hosts...)
		for j := range says[i].Hosts {
			listed[says[i].Hosts[j].Broker.Name] = true
		}
	}
	slices.SortFunc(all, compareHosts)
	hosts := all[:0]
	for i := range all {
		name := all[i].Broker.Name
		if i+1 < len(all) && all[i+1].Broker.Name == name {
			continue
		}
		if ready && !listed[name] {
			continue
		}
		hosts = append(hosts, all[i])
	}
	return Topic{Name: before.Name, Hosts: slices.Clip(hosts)}
}
