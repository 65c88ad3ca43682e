package wire

import (
	"time"

	"pgregory.net/rapid"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/route"
	"github.com/tacitmq/tacit/session"
)

// gen draws valid values.
type gen struct{ *rapid.T }

func (g gen) topic() string  { return rapid.StringMatching(`[a-zA-Z0-9%|_-]{1,20}`).Draw(g.T, "topic") }
func (g gen) id() string     { return rapid.StringMatching(`[!-~]{1,30}`).Draw(g.T, "id") }
func (g gen) broker() string { return rapid.StringMatching(`[a-zA-Z0-9._-]{1,30}`).Draw(g.T, "broker") }
func (g gen) u64() uint64    { return rapid.Uint64().Draw(g.T, "u64") }
func (g gen) bool() bool     { return rapid.Bool().Draw(g.T, "bool") }
func (g gen) text() string   { return rapid.String().Draw(g.T, "text") }
func (g gen) offset() int64  { return rapid.Int64Min(0).Draw(g.T, "offset") }
func (g gen) opt() string {
	return rapid.SampledFrom([]string{"", "i-1", "node/7"}).Draw(g.T, "optional")
}

func (g gen) optBroker() string {
	return rapid.SampledFrom([]string{"", "b-1", "node.7"}).Draw(g.T, "optional broker")
}

func (g gen) filter() string {
	return rapid.SampledFrom([]string{"*", "a", "a||b"}).Draw(g.T, "filter")
}

func (g gen) timeout() time.Duration {
	return time.Duration(rapid.Int64Range(int64(MinSessionTimeout), int64(MaxSessionTimeout)).Draw(g.T, "timeout"))
}

func (g gen) queue() allocate.Queue {
	return allocate.Queue{Topic: g.topic(), Broker: g.broker(), ID: rapid.Int32Range(0, route.MaxQueues-1).Draw(g.T, "queue id")}
}
func (g gen) epoch() session.Epoch { return session.Epoch{Broker: g.u64(), Counter: g.u64()} }
func (g gen) incarnation() session.Incarnation {
	return session.Incarnation{Counter: g.u64(), Random: g.u64()}
}

func (g gen) version() session.Version {
	if g.bool() {
		return session.Version{}
	}
	return session.Version{Broker: g.broker(), Epoch: g.u64(), Counter: g.u64()}
}
func (g gen) digest() session.Digest { return session.Digest(g.u64()) }
func (g gen) reason() session.Reason {
	return session.Reason(rapid.IntRange(1, int(session.ReasonReplaced)).Draw(g.T, "reason"))
}
func (g gen) owned() session.Owned { return session.Owned{Queue: g.queue(), Epoch: g.epoch()} }
func (g gen) sub() session.Subscription {
	return session.Subscription{Topic: g.topic(), Filter: g.filter()}
}

func (g gen) offer() session.Offer {
	o := session.Offer{Strategy: g.id()}
	if data := rapid.SliceOf(rapid.Byte()).Draw(g.T, "data"); len(data) > 0 {
		o.Data = data
	}
	return o
}

func (g gen) silence() session.Silence {
	return session.Silence{Broker: g.broker(), Unreachable: g.bool()}
}

func (g gen) viewRef() session.ViewRef {
	return session.ViewRef{Topic: g.topic(), Version: g.version(), Members: g.digest()}
}

func (g gen) release() session.Release {
	r := session.Release{Queue: g.queue(), Epoch: g.epoch(), HasOffset: g.bool()}
	if r.HasOffset {
		r.Offset = g.offset()
	}
	return r
}

func (g gen) grant() session.Grant {
	r := g.release()
	return session.Grant{Queue: r.Queue, Epoch: r.Epoch, Offset: r.Offset, HasOffset: r.HasOffset, Kept: g.bool()}
}

// queueOf draws a queue of the topic, memberOf a member of a view of it.
func (g gen) queueOf(topic string) func() allocate.Queue {
	return func() allocate.Queue {
		q := g.queue()
		q.Topic = topic
		return q
	}
}

func (g gen) memberOf(topic string) func() session.Member {
	return func() session.Member {
		return session.Member{
			ClientID: g.id(), Instance: g.opt(), Incarnation: g.incarnation(), Offers: some(g, g.offer), Expected: g.digest(),
			Owned: some(g, func() session.Owned { return session.Owned{Queue: g.queueOf(topic)(), Epoch: g.epoch()} }),
		}
	}
}

func (g gen) view() session.View {
	topic := g.topic()
	return session.View{
		Topic: topic, Version: g.version(), Queues: some(g, g.queueOf(topic)), Members: some(g, g.memberOf(topic)),
		Inputs: g.digest(), Owners: g.digest(),
	}
}

// some draws zero to three values, none as nil.
func some[T any](g gen, one func() T) []T {
	var out []T
	for range rapid.IntRange(0, 3).Draw(g.T, "length") {
		out = append(out, one())
	}
	return out
}

// toBroker draws a frame of every kind.
func (g gen) toBroker() []session.ToBroker {
	return []session.ToBroker{
		session.Hello{
			Group: g.topic(), ClientID: g.id(), Instance: g.opt(), Incarnation: g.incarnation(),
			Mode: session.Mode(rapid.IntRange(0, 2).Draw(g.T, "mode")), SessionTimeout: g.timeout(),
			Subscriptions: some(g, g.sub), Offers: some(g, g.offer), Held: some(g, g.owned),
			Views: some(g, g.viewRef), Silent: some(g, g.silence), Leaving: g.bool(),
		},
		session.Heartbeat{Seq: g.u64()},
		session.Subscribe{Subscriptions: some(g, g.sub)},
		session.Reach{Silent: some(g, g.silence)},
		session.Report{
			Topic: g.topic(), Full: g.bool(), Owned: some(g, g.owned), NotOwned: some(g, g.queue),
			Expected: g.digest(), Draining: g.bool(),
		},
		session.FetchView{Topic: g.topic(), Seq: g.u64()},
		session.Acquire{Queues: some(g, g.queue), ViewBroker: g.optBroker()},
		session.Withdraw{Queues: some(g, g.queue)},
		session.Released{Leases: some(g, g.release)},
		session.MemberList{Topic: g.topic(), Members: g.digest(), IDs: some(g, g.id)},
		session.Leaving{},
		session.Goodbye{},
	}
}

// toMember draws a frame of every kind.
func (g gen) toMember() []session.ToMember {
	answer := session.ViewAnswer{Seq: g.u64(), Warming: g.bool()}
	if !answer.Warming || g.bool() {
		answer.View = g.view()
	}
	topic := g.topic()
	return []session.ToMember{
		session.Welcome{
			Broker: g.broker(), BrokerEpoch: g.u64(), SessionTimeout: g.timeout(),
			Grants: some(g, g.grant), Inherited: some(g, g.owned),
		},
		session.Refused{Reason: g.reason(), Text: g.text(), Incarnation: g.incarnation()},
		session.HeartbeatAck{Seq: g.u64(), Views: some(g, func() session.ViewState {
			return session.ViewState{Topic: g.topic(), Version: g.version(), Inputs: g.digest(), Owners: g.digest(), OwnersSettled: g.bool()}
		})},
		answer,
		session.ViewReady{Topic: g.topic(), Version: g.version(), Inputs: g.digest()},
		session.GroupChanged{
			Topic: topic, Version: g.version(), Previous: g.version(), Joined: some(g, g.memberOf(topic)), Left: some(g, g.id),
			Added: some(g, g.queueOf(topic)), Removed: some(g, g.queueOf(topic)), Inputs: g.digest(), OwnersBefore: g.digest(),
		},
		session.OwnersChanged{Topic: g.topic(), Version: g.version(), Owners: g.digest()},
		session.Nudge{Topic: g.topic(), Queue: g.queue()},
		session.AskMembers{Topic: g.topic(), Members: g.digest()},
		session.Granted{Grants: some(g, g.grant)},
		session.LeaseWanted{Queues: some(g, g.queue), ViewBroker: g.optBroker()},
		session.Withdrawn{Queues: some(g, g.queue), Reason: g.reason()},
		session.LeaseLost{Leases: some(g, g.owned), Reason: g.reason()},
	}
}
