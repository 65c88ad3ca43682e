package coordinator

import (
	"cmp"
	"slices"
	"time"

	"github.com/tacitmq/tacit/coordination"
)

// maxIncarnation bounds what a request may say, so that one more can be counted.
const maxIncarnation = 1 << 62

// request answers r, now, later or when something else has happened.
func (c *Coordinator) request(id uint64, r coordination.Request) {
	code, text := coordination.OK, ""
	who := r.Who()
	switch {
	case who.Group == "":
		code, text = coordination.InvalidRequest, "no group"
	case who.Generation.Broker > maxIncarnation || who.Generation.Counter > maxIncarnation || tooGreat(r):
		code, text = coordination.InvalidRequest, "generation out of range"
	case !c.hosted:
		code, text = coordination.NotAvailable, "the broker does not know yet which groups it coordinates"
	default:
		if host := coordination.Host(who.Group, c.brokers); host != c.cfg.Broker {
			code, text = coordination.NotCoordinator, "coordinated by "+host
		}
	}
	if code != coordination.OK {
		c.answer(id, refusal(r, code, text))
		return
	}
	switch r := r.(type) {
	case coordination.Join:
		c.join(id, r)
	case coordination.Sync:
		c.sync(id, r)
	case coordination.Heartbeat:
		c.heartbeat(id, r)
	case coordination.Leave:
		c.leave(id, r)
	case coordination.ConsumerHeartbeat:
		c.consumerHeartbeat(id, r)
	case coordination.Resume:
		c.resume(id, r)
	}
}

func tooGreat(r coordination.Request) bool {
	great := func(g coordination.Generation) bool { return g.Broker > maxIncarnation || g.Counter > maxIncarnation }
	switch r := r.(type) {
	case coordination.Join:
		return great(r.Exceed) || great(r.Subscription.Generation)
	case coordination.ConsumerHeartbeat:
		return great(r.Exceed)
	case coordination.Sync, coordination.Heartbeat, coordination.Leave, coordination.Resume:
	}
	return false
}

// refusal is an answer to r that has a code and nothing else.
func refusal(r coordination.Request, code coordination.Code, text string) coordination.Answer {
	res := coordination.Result{Code: code, Text: text}
	switch r.(type) {
	case coordination.Join:
		return coordination.JoinAnswer{Result: res}
	case coordination.Sync:
		return coordination.SyncAnswer{Result: res}
	case coordination.Heartbeat:
		return coordination.HeartbeatAnswer{Result: res}
	case coordination.Leave:
		return coordination.LeaveAnswer{Result: res}
	case coordination.ConsumerHeartbeat:
		return coordination.ConsumerHeartbeatAnswer{Result: res}
	case coordination.Resume:
	}
	return coordination.ResumeAnswer{Result: res}
}

// refuse turns an answer into one that has a code and nothing else.
func refuse(a coordination.Answer, code coordination.Code, text string) coordination.Answer {
	res := coordination.Result{Code: code, Text: text}
	switch a.(type) {
	case coordination.JoinAnswer:
		return coordination.JoinAnswer{Result: res}
	case coordination.SyncAnswer:
		return coordination.SyncAnswer{Result: res}
	case coordination.HeartbeatAnswer:
		return coordination.HeartbeatAnswer{Result: res}
	case coordination.LeaveAnswer:
		return coordination.LeaveAnswer{Result: res}
	case coordination.ConsumerHeartbeatAnswer:
		return coordination.ConsumerHeartbeatAnswer{Result: res}
	case coordination.ResumeAnswer:
	}
	return coordination.ResumeAnswer{Result: res}
}

// refuseParked answers what waits of m.
func (c *Coordinator) refuseParked(m *member, code coordination.Code, text string) {
	res := coordination.Result{Code: code, Text: text}
	if m.join != 0 {
		delete(c.parked, m.join)
		c.answer(m.join, coordination.JoinAnswer{Result: res})
		m.join = 0
		m.g.joined--
	}
	c.refuseSync(m, code, text)
}

func (c *Coordinator) refuseSync(m *member, code coordination.Code, text string) {
	if m.sync != 0 {
		delete(c.parked, m.sync)
		c.answer(m.sync, coordination.SyncAnswer{Result: coordination.Result{Code: code, Text: text}})
		m.sync = 0
	}
}

// incarnation returns that of a group which begins, above exceed unless that is zero.
func (c *Coordinator) incarnation(exceed coordination.Generation) uint64 {
	n := max(c.cfg.BrokerEpoch, uint64(max(c.now.UnixMilli(), 0)))
	if !exceed.IsZero() {
		n = max(n, exceed.Broker+1)
	}
	return n
}

// next returns the generation after g's.
func (c *Coordinator) next(g *group) coordination.Generation {
	n := coordination.Generation{Broker: g.generation.Broker, Counter: g.generation.Counter + 1}
	if g.exceed.Compare(n) >= 0 {
		n.Broker = max(n.Broker, g.exceed.Broker+1)
	}
	return n
}

func (g *group) mustExceed(x coordination.Generation) {
	if x.Compare(g.exceed) > 0 {
		g.exceed = x
	}
}

// begin makes a group. At a name that had another kind of group it goes on from there.
func (c *Coordinator) begin(name string, consumer bool, exceed coordination.Generation) *group {
	g := newGroup(name, consumer)
	if old := c.groups[name]; old != nil {
		exceed = maxGeneration(exceed, maxGeneration(old.generation, old.exceed))
		c.forget(old, Forgotten, "the empty group changes its protocol")
	}
	g.generation = coordination.Generation{Broker: c.incarnation(exceed)}
	c.groups[name] = g
	c.set(&g.idle, c.now.Add(c.cfg.KeepEmpty))
	return g
}

func maxGeneration(a, b coordination.Generation) coordination.Generation {
	if a.Compare(b) < 0 {
		return b
	}
	return a
}

// memberID makes an id: that of the instance or client, then chance. Members of the
// consumer protocol may have made the same themselves.
func (c *Coordinator) memberID(g *group, instance, client string) string {
	for {
		id := cmp.Or(instance, client) + "-" + c.cfg.NewID()
		if g.members[id] == nil && g.pending[id] == nil {
			return id
		}
	}
}

// unique returns the values in their order, each once.
func unique(values []string) (out []string) {
	for _, v := range values {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// sortedTopics returns a sorted copy without doubles.
func sortedTopics(topics []string) []string {
	t := slices.Clone(topics)
	slices.Sort(t)
	return slices.Compact(t)
}

// rebalanceTimeout bounds what a member asks for; none is its session timeout.
func rebalanceTimeout(asked, session time.Duration) time.Duration {
	if asked <= 0 {
		return session
	}
	return min(asked, MaxRebalanceTimeout)
}
