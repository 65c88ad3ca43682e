package coordinated

import (
	"fmt"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/allocate/assignor"
	"github.com/tacitmq/tacit/coordination"
)

// Classic returns the assignor of the classic protocol with the name: one of
// [assignor.Names] but uniform, which is the coordinator's.
func Classic(name string) (Assignor, error) {
	a, err := assignor.ByName(name)
	if err == nil && name == assignor.NameUniform {
		err = fmt.Errorf("%q is the coordinator's: %w", name, assignor.ErrUnknownAssignor)
	}
	if err != nil {
		return nil, fmt.Errorf("assignor of the classic protocol: %w", err)
	}
	return Of(a), nil
}

// Of has a decide for the members of a generation.
func Of(a assignor.Assignor) Assignor { return leaders{a} }

type leaders struct{ assignor.Assignor }

// Cooperative reports whether members may keep queues while it decides.
func (l leaders) Cooperative() bool { return assignor.Cooperative(l.Name()) }

// Assign takes the claims as the members told them. The racks of queues are not known.
func (l leaders) Assign(members []coordination.Joined, topics map[string][]allocate.Queue) (map[string][]allocate.Queue, error) {
	in := assignor.Input{Topics: topics, Members: make([]assignor.Member, 0, len(members))}
	for i := range members {
		m := &members[i]
		generation := int64(assignor.NoGeneration)
		if !m.Subscription.Generation.IsZero() {
			generation = int64(m.Subscription.Generation.Counter)
		}
		in.Members = append(in.Members, assignor.Member{
			ID: m.MemberID, Instance: m.Instance, Rack: m.Subscription.Rack,
			Topics: m.Subscription.Topics, Owned: m.Subscription.Owned, Generation: generation,
		})
	}
	given, err := l.Assignor.Assign(in)
	if err != nil {
		return nil, fmt.Errorf("%d members: %w", len(members), err)
	}
	return given, nil
}
