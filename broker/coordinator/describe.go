package coordinator

import (
	"maps"
	"slices"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/coordination"
)

// consumerState is the state of a group for people.
func (g *group) consumerState() State {
	switch {
	case len(g.members) == 0:
		return Empty
	case g.targetEpoch != g.generation:
		return Assigning
	}
	for _, m := range g.members {
		if m.epoch != g.targetEpoch || len(m.revoking) > 0 || m.held {
			return Reconciling
		}
	}
	return Stable
}

// Description is what people are shown of a group.
type Description struct {
	Group    string
	Consumer bool // the consumer protocol
	State    State
	// Assignor is that of the present generation or target.
	Assignor string
	// Generation is that of the group, in the consumer protocol its epoch.
	Generation  coordination.Generation
	TargetEpoch coordination.Generation // consumer protocol
	Leader      string                  // classic: member id
	// Resuming: members that another coordinator knew may still come back.
	Resuming bool
	Members  []MemberDescription // sorted by id
}

// MemberDescription is what people are shown of a member.
type MemberDescription struct {
	MemberID, Instance, ClientID string
	Topics                       []string         // sorted
	Assigned                     []allocate.Queue // sorted
	// Waiting: a join or sync of it is parked.
	Waiting bool
	// The rest is of the consumer protocol.
	Epoch    coordination.Generation
	Target   []allocate.Queue // sorted
	Revoking []allocate.Queue // sorted; it was told to give them up
	Away     bool             // a static member that left for a while
}

// Describe tells about a group, false if it is not known here. The lists are shared
// and not to be changed.
func (c *Coordinator) Describe(name string) (Description, bool) {
	g := c.groups[name]
	if g == nil {
		return Description{}, false
	}
	d := Description{
		Group: name, Consumer: g.consumer, State: g.state, Assignor: g.assignor, Generation: g.generation,
		TargetEpoch: g.targetEpoch, Leader: g.leader, Resuming: g.resuming() && g.begun,
	}
	if g.consumer {
		d.State = g.consumerState()
	}
	for _, m := range g.sorted() {
		d.Members = append(d.Members, MemberDescription{
			MemberID: m.id, Instance: m.instance, ClientID: m.clientID, Topics: m.sub.Topics, Assigned: m.assigned,
			Waiting: m.join != 0 || m.sync != 0, Epoch: m.epoch, Target: m.target, Revoking: m.revoking, Away: m.away,
		})
	}
	return d, true
}

// Listing is a line of the list of groups.
type Listing struct {
	Group    string
	Consumer bool
	State    State
	Members  int
}

// List returns all groups, sorted.
func (c *Coordinator) List() []Listing {
	ls := make([]Listing, 0, len(c.groups))
	for _, name := range slices.Sorted(maps.Keys(c.groups)) {
		g := c.groups[name]
		l := Listing{Group: name, Consumer: g.consumer, State: g.state, Members: len(g.members)}
		if g.consumer {
			l.State = g.consumerState()
		}
		ls = append(ls, l)
	}
	return ls
}
