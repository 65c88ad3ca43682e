package route

import (
	"maps"
	"slices"
)

// Update is one answer or push of a name server.
type Update struct {
	// Full: Topics are the whole truth for what was asked. Otherwise they have
	// changed, and all else is as it was.
	Full bool
	// Warming: what is missing may be known in a moment.
	Warming bool
	// Topics; one without hosts is gone.
	Topics []Topic
	// Brokers are all registered brokers, if HasBrokers. In a full update they mean
	// that everything was asked for.
	Brokers    []Broker
	HasBrokers bool
}

// Known says what is known of a topic.
type Known uint8

const (
	// Unknown: no name server that could tell has been asked.
	Unknown Known = iota
	// Absent: a name server that is ready does not have it, and no other has.
	Absent
	// Found: it has hosts.
	Found
)

// Table keeps what each name server said and the routes merged from it. One
// goroutine owns it.
type Table struct {
	servers map[string]*server
	merged  map[string]entry

	complete bool
}

// entry is what is known of one topic.
type entry struct {
	topic Topic
	known Known
}

// server is what one name server said.
type server struct {
	state  State
	full   bool // it has answered in full at least once
	all    bool // it was asked for everything: a topic it does not name it does not have
	topics map[string][]Host
	// before is what it said until it restarted. It still counts as listed while
	// the server warms up, or else a restart would make the gaps of others count.
	before map[string][]Host
}

// brokers is the name under which the list of all brokers is merged, as a topic
// that every broker hosts.
const brokers = ""

// NewTable returns an empty Table.
func NewTable() *Table {
	return &Table{servers: make(map[string]*server), merged: make(map[string]entry)}
}

// Apply takes what a name server said and returns the names of the topics of which
// something else is known now, sorted: another route, a broker that started again,
// or whether the topic exists. A broker list that changed is not named.
// A delta of a server that never answered in full is taken for what it lists.
func (t *Table) Apply(name string, u Update) (changed []string) {
	s := t.servers[name]
	if s == nil {
		s = &server{topics: make(map[string][]Host)}
		t.servers[name] = s
	}
	state := Ready
	if u.Warming || !u.Full && !s.full {
		state = Warming
	}
	touched := make(map[string]bool, len(u.Topics))
	t.complete = t.complete || state == Ready
	switch {
	case state == Ready:
		s.before = nil
	case u.Full && s.state == Ready && s.before == nil:
		s.before = maps.Clone(s.topics)
	}
	if s.state != state {
		s.state = state
		t.touchAll(touched)
	}
	if u.Full {
		s.full, s.all = true, s.all || u.HasBrokers
		for topic := range s.topics {
			if topic != brokers {
				s.topics[topic] = nil
				touched[topic] = true
			}
		}
	}
	for _, topic := range u.Topics {
		if topic.Name == brokers {
			continue
		}
		s.topics[topic.Name] = topic.Hosts
		touched[topic.Name] = true
	}
	if u.HasBrokers {
		list := make([]Host, 0, len(u.Brokers))
		for _, b := range u.Brokers {
			list = append(list, Host{Broker: b})
		}
		s.topics[brokers] = list
		touched[brokers] = true
	}
	return t.merge(touched)
}

// Unreachable says that a name server has not been heard for a while.
func (t *Table) Unreachable(name string) (changed []string) {
	s := t.servers[name]
	if s == nil || s.state == Unreachable {
		return nil
	}
	s.state, s.before = Unreachable, nil
	return t.all()
}

// Settle says that a name server has been warming for so long that what it said
// before it restarted does not count any more.
func (t *Table) Settle(name string) (changed []string) {
	s := t.servers[name]
	if s == nil || s.before == nil {
		return nil
	}
	s.before = nil
	return t.all()
}

// Remove says that a name server is no longer one of those configured.
func (t *Table) Remove(name string) (changed []string) {
	if t.servers[name] == nil {
		return nil
	}
	delete(t.servers, name)
	return t.all()
}

// Forget drops all that is known of a topic that nobody asks for any more.
func (t *Table) Forget(topic string) {
	delete(t.merged, topic)
	for _, s := range t.servers {
		delete(s.topics, topic)
		delete(s.before, topic)
	}
}

// Lookup returns the merged route of a topic.
func (t *Table) Lookup(topic string) (Topic, Known) {
	e, ok := t.merged[topic]
	e.topic.Name = topic
	if !ok {
		for _, s := range t.servers {
			if s.all && s.state == Ready {
				e.known = Absent
			}
		}
	}
	return e.topic, e.known
}

// Pending reports whether a name server that answers has not told of the topic yet.
func (t *Table) Pending(topic string) bool {
	for _, s := range t.servers {
		if _, told := s.topics[topic]; !told && !s.all && s.state != Unreachable {
			return true
		}
	}
	return false
}

// Topics returns the merged routes of all topics that have hosts, sorted by name.
func (t *Table) Topics() []Topic {
	out := make([]Topic, 0, len(t.merged))
	for name, e := range t.merged {
		if name != brokers && e.known == Found {
			out = append(out, e.topic)
		}
	}
	slices.SortFunc(out, func(a, b Topic) int { return compareNames(a.Name, b.Name) })
	return out
}

// Brokers returns the merged list of all brokers, sorted by name. It is empty
// unless name servers were asked for everything.
func (t *Table) Brokers() []Broker {
	hosts := t.merged[brokers].topic.Hosts
	out := make([]Broker, 0, len(hosts))
	for _, h := range hosts {
		out = append(out, h.Broker)
	}
	return out
}

// Complete reports whether a name server that is ready has been heard: what all of
// them lack is then known to be gone, or never was.
func (t *Table) Complete() bool { return t.complete }

// State returns what the word of a name server is worth at the moment.
func (t *Table) State(name string) State {
	if s := t.servers[name]; s != nil {
		return s.state
	}
	return Unreachable
}

func (t *Table) all() []string {
	touched := make(map[string]bool, len(t.merged))
	t.touchAll(touched)
	return t.merge(touched)
}

func (t *Table) touchAll(touched map[string]bool) {
	for topic := range t.merged {
		touched[topic] = true
	}
}

// merge computes the touched routes anew.
func (t *Table) merge(touched map[string]bool) (changed []string) {
	says := make([]Saying, 0, len(t.servers))
	for topic := range touched {
		says = says[:0]
		ready, all := false, true
		for _, s := range t.servers {
			state := s.state
			hosts, told := s.topics[topic]
			all = all && s.all
			if !told && !s.all && state == Ready {
				state = Warming // it was not asked for this topic yet
			}
			ready = ready || state == Ready
			says = append(says, Saying{State: state, Hosts: hosts})
			if before := s.before[topic]; before != nil {
				says = append(says, Saying{State: s.state, Hosts: before})
			}
		}
		before := t.merged[topic]
		before.topic.Name = topic
		after := entry{topic: Merge(before.topic, says)}
		switch {
		case len(after.topic.Hosts) > 0:
			after.known = Found
		case ready || before.known != Unknown:
			after.known = Absent
		}
		t.merged[topic] = after
		if topic != brokers && (before.known != after.known || !before.topic.Equal(after.topic) || !sameEpochs(before.topic, after.topic)) {
			changed = append(changed, topic)
		}
		if all && after.known == Absent { // follows from what is not there
			t.Forget(topic)
		}
	}
	slices.SortFunc(changed, compareNames)
	return changed
}

// sameEpochs tells of two merged routes with the same hosts whether no broker
// started again in between.
func sameEpochs(a, b Topic) bool {
	for i := range a.Hosts {
		if a.Hosts[i].Broker.Stamp.Epoch != b.Hosts[i].Broker.Stamp.Epoch {
			return false
		}
	}
	return true
}
