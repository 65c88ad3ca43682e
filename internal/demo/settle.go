package demo

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/admin"
)

// expectation is what a group must come to.
type expectation struct {
	topic   string
	queues  int
	members []string // sorted
	brokers []string // sorted
}

// unsettled says why the group is not what is expected, by what its brokers say
// of leases, sessions and views and by what the members say of themselves; ""
// if it is.
func (e *expectation) unsettled(g *admin.Group, failures []admin.Failure, told allocate.Owners) string {
	if len(failures) > 0 {
		return failures[0].String()
	}
	ids := make([]string, 0, len(g.Members))
	for _, m := range g.Members {
		ids = append(ids, m.ClientID)
		switch {
		case m.Leaving:
			return m.ClientID + " is leaving"
		case !slices.Equal(m.Brokers, e.brokers):
			return fmt.Sprintf("%s has sessions with %s only", m.ClientID, strings.Join(m.Brokers, ", "))
		}
	}
	if !slices.Equal(ids, e.members) {
		return fmt.Sprintf("the members are %s, not %s", list(ids), list(e.members))
	}
	held := make(map[string]int, len(e.members))
	for _, m := range e.members {
		held[m] = 0
	}
	owners := make(allocate.Owners)
	for _, q := range g.Queues {
		if q.Topic != e.topic {
			continue
		}
		if q.Owner == "" {
			return fmt.Sprintf("nobody holds %s/%d", q.Broker, q.ID)
		}
		held[q.Owner]++
		owners[q.Queue()] = q.Owner
	}
	if len(owners) != e.queues {
		return fmt.Sprintf("there are %d queues, not %d", len(owners), e.queues)
	}
	if len(held) != len(e.members) {
		return "somebody holds a queue who is no member"
	}
	counts := slices.Sorted(maps.Values(held))
	if low, high := counts[0], counts[len(counts)-1]; high-low > 1 {
		return fmt.Sprintf("the share of a member is %d to %d queues", low, high)
	}
	if t, _ := g.Topic(e.topic); t.State != admin.Settled {
		return "the view broker says " + string(t.State)
	}
	if !maps.Equal(owners, told) {
		return "members and brokers do not agree on who owns what"
	}
	return ""
}

func list(ids []string) string {
	if len(ids) == 0 {
		return "nobody"
	}
	return strings.Join(ids, ", ")
}
