package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/internal/wire"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/route"
	"github.com/tacitmq/tacit/session"
)

// State of a group.
type State string

// The states. A group is what its worst topic is.
const (
	Settled  State = "settled"  // every queue is held by exactly the member that the strategy names
	Changing State = "changing" // queues are changing hands
	Warming  State = "warming"  // the view broker started a moment ago and does not know all members yet
	Empty    State = "empty"    // no members, only offsets
	Unknown  State = "unknown"  // no broker that hosts the topics answers
)

// Group is a consumer group over all brokers.
type Group struct {
	Name    string        `json:"group"`
	Mode    string        `json:"mode,omitempty"`
	State   State         `json:"state"`
	Members []GroupMember `json:"members"` // sorted by client id
	Topics  []GroupTopic  `json:"topics"`  // sorted by name
	// Queues are all readable ones of the topics, with an owner or without,
	// sorted.
	Queues []GroupQueue `json:"queues"`
	// RetriesScheduled counts the messages that failed and wait for the time of
	// their next attempt. They are in no queue and in no lag.
	RetriesScheduled int64 `json:"retries_scheduled"`
}

// retryTopic is where messages of the group lie whose time has come again.
func (g *Group) retryTopic() string { return message.RetryTopic(g.Name) }

// Retries counts the messages that failed and are to be handed out again: those
// that wait for their time and those that are due.
func (g *Group) Retries() int64 {
	n := g.RetriesScheduled
	for i := range g.Queues {
		if q := &g.Queues[i]; q.Topic == g.retryTopic() && q.Lag != nil {
			n += *q.Lag
		}
	}
	return n
}

// GroupMember is one member of a group.
type GroupMember struct {
	ClientID      string         `json:"client_id"`
	Instance      string         `json:"instance,omitempty"` // of a static member
	Host          string         `json:"host"`
	Incarnation   string         `json:"incarnation"`
	Brokers       []string       `json:"brokers"` // that have a session with it
	Subscriptions []Subscription `json:"subscriptions"`
	// Queues it owns, sorted; of a broadcasting member all of its topics.
	Queues         []QueueName `json:"queues"`
	SessionTimeout float64     `json:"session_timeout_s"`
	LastHeard      float64     `json:"last_heard_s"` // ago, by the broker that heard it last
	Leaving        bool        `json:"leaving"`
}

// Subscription of a member.
type Subscription struct {
	Topic  string `json:"topic"`
	Filter string `json:"filter"`
}

// QueueName names a queue.
type QueueName struct {
	Topic  string `json:"topic"`
	Broker string `json:"broker"`
	ID     int32  `json:"queue"`
}

func nameOf(q allocate.Queue) QueueName { return QueueName{q.Topic, q.Broker, q.ID} }

// Queue returns the queue of that name.
func (n QueueName) Queue() allocate.Queue {
	return allocate.Queue{Topic: n.Topic, Broker: n.Broker, ID: n.ID}
}

// GroupTopic is a group's part in one topic.
type GroupTopic struct {
	Topic    string `json:"topic"`
	State    State  `json:"state"`
	Members  int    `json:"members"`
	Strategy string `json:"strategy,omitempty"`
	// ViewBroker is the broker whose view counts, the first in rank that serves
	// it; empty if none does.
	ViewBroker string `json:"view_broker,omitempty"`
	Version    string `json:"version,omitempty"` // of the view
	// Down are the brokers of the topic that do not answer, sorted. The state is
	// that of the others' queues.
	Down []string `json:"brokers_down,omitempty"`
	// View is that view, for package rebalance to explain.
	View session.View `json:"-"`
}

// GroupQueue is a group's progress on one queue. What is not known is nil.
type GroupQueue struct {
	QueueName
	Owner string `json:"owner,omitempty"` // client id
	Host  string `json:"host,omitempty"`
	Epoch string `json:"epoch,omitempty"` // of the lease
	// HeldFor is how long the owner has had it, in seconds.
	HeldFor *float64 `json:"held_for_s"`
	Waiting []string `json:"waiting,omitempty"` // client ids in line for it
	// Committed is the next message to read; nil if the group never committed on
	// this queue.
	Committed *int64 `json:"committed"`
	Min       *int64 `json:"min_offset"`
	Max       *int64 `json:"max_offset"`
	// Lag counts the messages to read, never negative. On a queue without a
	// committed offset it is all that are stored if the group has committed
	// elsewhere in the topic, since it then begins there at the first message.
	// Otherwise its members decide where it begins, which they commit within
	// seconds; until then it is nil, unless the queue is empty. In a broadcasting
	// group it is nil: members keep their progress themselves.
	Lag *int64 `json:"lag"`
	// LagAtMost is all that is stored, where Lag is nil and the broker answers.
	LagAtMost *int64 `json:"lag_at_most,omitempty"`
}

// Broadcasting tells whether each member of the group gets every message: there is
// nothing to share, nothing to settle, and no progress that a broker knows of.
func (g *Group) Broadcasting() bool { return g.Mode == session.Broadcasting.String() }

// Down are the brokers of the group's topics that do not answer, sorted.
func (g *Group) Down() []string {
	var out []string
	for i := range g.Topics {
		out = append(out, g.Topics[i].Down...)
	}
	slices.SortFunc(out, allocate.CompareStrings)
	return slices.Compact(out)
}

// Lag is the sum over all queues for which it is known, but for those of the
// retry topic.
func (g *Group) Lag() int64 {
	var n int64
	for i := range g.Queues {
		if q := &g.Queues[i]; q.Lag != nil && q.Topic != g.retryTopic() {
			n += *q.Lag
		}
	}
	return n
}

// LagAtMost is Lag and all that is stored in the queues where the lag depends on
// where the members begin; nil if there are none, retry topic apart.
func (g *Group) LagAtMost() *int64 {
	n, bounds := g.Lag(), false
	for i := range g.Queues {
		if q := &g.Queues[i]; q.LagAtMost != nil && q.Topic != g.retryTopic() {
			n, bounds = n+*q.LagAtMost, true
		}
	}
	if !bounds {
		return nil
	}
	return &n
}

// Topic returns the group's part in a topic.
func (g *Group) Topic(name string) (GroupTopic, bool) {
	for _, t := range g.Topics {
		if t.Topic == name {
			return t, true
		}
	}
	return GroupTopic{}, false
}

// Groups describes all groups that any broker knows, sorted by name.
func (c *Client) Groups(ctx context.Context) ([]Group, []Failure, error) {
	cluster, err := c.Cluster(ctx)
	if err != nil {
		return nil, nil, err
	}
	answers, errs := askBrokers(ctx, c, cluster.Brokers, func(ctx context.Context, a tacitv1.AdminServiceClient, _ route.Broker) (*tacitv1.ListGroupsResponse, error) {
		return a.ListGroups(ctx, &tacitv1.ListGroupsRequest{})
	})
	names := make(map[string]bool)
	failures := cluster.Failures
	var alive []route.Broker
	for i, b := range cluster.Brokers {
		if errs[i] != nil {
			failures = append(failures, failure(b.Name, b.Address, errs[i]))
			continue
		}
		alive = append(alive, b)
		for _, g := range answers[i].GetGroups() {
			names[g.GetGroup()] = true
		}
	}
	list := slices.SortedFunc(maps.Keys(names), allocate.CompareStrings)
	found := make([]*Group, len(list))
	more := make([][]Failure, len(list))
	var g errgroup.Group
	g.SetLimit(8)
	for i, name := range list {
		g.Go(func() error {
			found[i], more[i], _ = c.describeGroup(ctx, &cluster, alive, name) // gone meanwhile: not listed
			return nil
		})
	}
	_ = g.Wait() // none returns an error
	out := make([]Group, 0, len(list))
	for i := range found {
		failures = append(failures, more[i]...)
		if found[i] != nil {
			out = append(out, *found[i])
		}
	}
	return out, distinct(failures), nil
}

// DescribeGroup describes a group. One that no broker knows is an error that
// wraps [rpcerr.ErrGroupNotFound].
func (c *Client) DescribeGroup(ctx context.Context, name string) (*Group, []Failure, error) {
	if err := message.CheckGroup(name); err != nil {
		return nil, nil, fmt.Errorf("describe group: %w", err)
	}
	cluster, err := c.Cluster(ctx)
	if err != nil {
		return nil, nil, err
	}
	g, failures, err := c.describeGroup(ctx, &cluster, cluster.Brokers, name)
	return g, append(cluster.Failures, failures...), err
}

func (c *Client) describeGroup(ctx context.Context, cluster *Cluster, brokers []route.Broker, name string) (*Group, []Failure, error) {
	answers, errs := askBrokers(ctx, c, brokers, func(ctx context.Context, a tacitv1.AdminServiceClient, _ route.Broker) (*tacitv1.DescribeGroupResponse, error) {
		return a.DescribeGroup(ctx, &tacitv1.DescribeGroupRequest{Group: name})
	})
	m := newMerge(name, cluster)
	var failures []Failure
	for i, b := range brokers {
		switch {
		case errors.Is(errs[i], rpcerr.ErrGroupNotFound):
			m.answered[b.Name] = true
		case errs[i] != nil:
			failures = append(failures, failure(b.Name, b.Address, errs[i]))
		default:
			m.answered[b.Name], m.known = true, true
			if err := m.add(b.Name, answers[i]); err != nil {
				failures = append(failures, failure(b.Name, b.Address, err))
			}
		}
	}
	if !m.known {
		switch {
		case len(failures) == 0:
			return nil, nil, fmt.Errorf("%w: %q has neither members nor offsets on any broker", rpcerr.ErrGroupNotFound, name)
		case len(failures) == len(brokers):
			return nil, failures, rpcerr.With(rpcerr.ErrUnreachable, fmt.Errorf("no broker answers: %s", joined(failures)))
		}
		return nil, failures, fmt.Errorf("%w: %q is not known to the brokers that answer", rpcerr.ErrGroupNotFound, name)
	}
	return m.group(), failures, nil
}

// merge makes one group of what brokers say.
type merge struct {
	name     string
	cluster  *Cluster
	known    bool
	answered map[string]bool
	mode     string
	members  map[string]*GroupMember
	views    map[string]map[string]*tacitv1.GroupView // by topic and broker
	topics   map[string]bool
	queues   map[allocate.Queue]*GroupQueue
	holder   map[allocate.Queue]string
	retries  int64
}

func newMerge(name string, cluster *Cluster) *merge {
	return &merge{
		name: name, cluster: cluster, answered: make(map[string]bool), members: make(map[string]*GroupMember),
		views: make(map[string]map[string]*tacitv1.GroupView), topics: make(map[string]bool),
		queues: make(map[allocate.Queue]*GroupQueue), holder: make(map[allocate.Queue]string),
	}
}

// add takes the answer of one broker.
func (m *merge) add(broker string, r *tacitv1.DescribeGroupResponse) error {
	if len(r.GetSessions()) > 0 || m.mode == "" {
		mode, err := wire.ToMode(r.GetMode())
		if err != nil {
			return fmt.Errorf("describe group: %w", err)
		}
		m.mode = mode.String()
	}
	m.retries += r.GetRetriesScheduled()
	for _, s := range r.GetSessions() {
		m.addSession(broker, s)
	}
	for _, v := range r.GetViews() {
		topic := v.GetView().GetTopic()
		m.topics[topic] = true
		if m.views[topic] == nil {
			m.views[topic] = make(map[string]*tacitv1.GroupView)
		}
		m.views[topic][broker] = v
	}
	for _, l := range r.GetLeases() {
		q, err := wire.ToQueue(l.GetQueue())
		if err != nil {
			return fmt.Errorf("describe group: %w", err)
		}
		m.topics[q.Topic] = true
		m.queues[q] = queueOf(q, l)
	}
	return nil
}

func (m *merge) addSession(broker string, s *tacitv1.SessionInfo) {
	heard := s.GetLastHeard().AsDuration().Seconds()
	o := m.members[s.GetClientId()]
	if o == nil {
		o = &GroupMember{ClientID: s.GetClientId(), LastHeard: heard, Queues: []QueueName{}}
		m.members[s.GetClientId()] = o
	}
	o.Brokers = append(o.Brokers, broker)
	o.Leaving = o.Leaving || s.GetLeaving()
	if s.GetInstance() != "" {
		o.Instance = s.GetInstance()
	}
	if s.GetHost() != "" {
		o.Host = s.GetHost()
	}
	if heard <= o.LastHeard {
		o.LastHeard = heard
		i := wire.ToIncarnation(s.GetIncarnation())
		o.Incarnation = fmt.Sprintf("%d.%016x", i.Counter, i.Random)
		o.SessionTimeout = s.GetSessionTimeout().AsDuration().Seconds()
		o.Subscriptions = nil
		for _, sub := range s.GetSubscriptions() {
			o.Subscriptions = append(o.Subscriptions, Subscription{sub.GetTopic(), sub.GetFilter()})
			m.topics[sub.GetTopic()] = true
		}
	}
}

func queueOf(q allocate.Queue, l *tacitv1.LeaseInfo) *GroupQueue {
	out := &GroupQueue{
		QueueName: nameOf(q), Owner: l.GetHolder(), Waiting: l.GetWaiting(),
		Min: new(l.GetMinOffset()), Max: new(l.GetMaxOffset()),
	}
	if l.GetHolder() != "" {
		if e := wire.ToEpoch(l.GetEpoch()); !e.IsZero() {
			out.Epoch = e.String()
		}
		if l.GetHeldFor() != nil {
			out.HeldFor = new(l.GetHeldFor().AsDuration().Seconds())
		}
	}
	if l.GetHasCommitted() {
		out.Committed = new(l.GetCommitted())
	}
	return out
}

// group puts everything together.
func (m *merge) group() *Group {
	g := &Group{Name: m.name, Mode: m.mode, State: Empty, Members: []GroupMember{}, Topics: []GroupTopic{}, Queues: []GroupQueue{}, RetriesScheduled: m.retries}
	for _, topic := range slices.SortedFunc(maps.Keys(m.topics), allocate.CompareStrings) {
		r := m.cluster.Topic(topic)
		m.list(r)
		t := m.topic(r)
		if t.Members == 0 && len(r.Hosts) == 0 {
			continue // a retry topic that nobody needed yet
		}
		g.Topics = append(g.Topics, t)
	}
	m.progress()
	for _, q := range slices.SortedFunc(maps.Keys(m.queues), allocate.Queue.Compare) {
		gq := m.queues[q]
		if o := m.members[gq.Owner]; o != nil {
			o.Queues = append(o.Queues, gq.QueueName)
			gq.Host = o.Host
		}
		for _, o := range m.members {
			if m.broadcasting() && o.subscribes(q.Topic) {
				o.Queues = append(o.Queues, gq.QueueName)
			}
		}
		g.Queues = append(g.Queues, *gq)
	}
	for _, id := range slices.SortedFunc(maps.Keys(m.members), allocate.CompareStrings) {
		o := m.members[id]
		slices.SortFunc(o.Brokers, allocate.CompareStrings)
		g.Members = append(g.Members, *o)
	}
	if len(g.Members) > 0 {
		g.State = worst(g.Topics)
	}
	return g
}

// list adds the readable queues of a topic that no broker spoke of, such as
// those of a broker that does not answer: a queue is never hidden because
// nobody owns it.
func (m *merge) list(r route.Topic) {
	for _, q := range r.Readable() {
		if m.queues[q] == nil {
			m.queues[q] = &GroupQueue{QueueName: nameOf(q)}
		}
	}
}

// topic finds the view that counts: that of the first broker in rank that
// serves one.
func (m *merge) topic(r route.Topic) GroupTopic {
	t := GroupTopic{Topic: r.Name, State: Empty}
	for _, id := range slices.SortedFunc(maps.Keys(m.members), allocate.CompareStrings) {
		if m.members[id].subscribes(r.Name) {
			t.Members++
		}
	}
	for _, broker := range r.Brokers() {
		if !m.answered[broker] {
			t.Down = append(t.Down, broker)
		}
	}
	if t.Members == 0 {
		return t
	}
	if len(r.Hosts) == 0 || m.broadcasting() && len(t.Down) < len(r.Hosts) {
		t.State = Settled // nothing to share
		return t
	}
	t.State = Unknown
	for _, broker := range session.RankBrokers(m.name, r.Name, r.Brokers()) {
		v := m.views[r.Name][broker]
		if v == nil {
			if m.answered[broker] {
				t.State = Changing // members are still on their way to it
			}
			continue
		}
		if v.GetWarming() {
			t.State = Warming
			continue
		}
		view, err := wire.ToView(v.GetView())
		if err != nil {
			continue
		}
		t.ViewBroker, t.View, t.Strategy, t.State = broker, view, v.GetStrategy(), Changing
		if !view.Version.IsZero() {
			t.Version = view.Version.String()
		}
		if v.GetSettled() {
			t.State = Settled
		}
		if m.mode == session.Immediate.String() {
			m.claim(view)
		}
		break
	}
	return t
}

// claim takes the owners from a view, where there are no leases to tell them.
func (m *merge) claim(view session.View) {
	for _, h := range session.Owners(view.Members) {
		if q := m.queues[h.Queue]; q != nil {
			q.Owner = h.ClientID
		}
	}
}

func (m *merge) broadcasting() bool { return m.mode == session.Broadcasting.String() }

func (m *GroupMember) subscribes(topic string) bool {
	return slices.ContainsFunc(m.Subscriptions, func(s Subscription) bool { return s.Topic == topic })
}

// progress computes the lags. Members of a broadcasting group keep their progress
// themselves; what is stored is that of other times.
func (m *merge) progress() {
	if m.broadcasting() {
		return
	}
	begun := make(map[string]bool)
	for _, q := range m.queues {
		begun[q.Topic] = begun[q.Topic] || q.Committed != nil
	}
	for _, q := range m.queues {
		switch {
		case q.Max == nil || q.Min == nil:
		case q.Committed != nil:
			q.Lag = new(max(0, *q.Max-max(*q.Committed, *q.Min)))
		case begun[q.Topic] || *q.Max == *q.Min: // of an empty queue nothing is left wherever the group begins
			q.Lag = new(max(0, *q.Max-*q.Min))
		default:
			q.LagAtMost = new(max(0, *q.Max-*q.Min))
		}
	}
}

// worst is the state of a group by those of its topics.
func worst(topics []GroupTopic) State {
	rank := []State{Empty, Settled, Changing, Warming, Unknown}
	out := Settled
	for _, t := range topics {
		if slices.Index(rank, t.State) > slices.Index(rank, out) {
			out = t.State
		}
	}
	return out
}

func joined(failures []Failure) string {
	list := make([]string, len(failures))
	for i, f := range failures {
		list[i] = f.String()
	}
	return strings.Join(list, "; ")
}

// distinct drops what is said of one server again.
func distinct(failures []Failure) []Failure {
	slices.SortStableFunc(failures, func(a, b Failure) int { return cmp.Compare(a.Server, b.Server) })
	return slices.CompactFunc(failures, func(a, b Failure) bool { return a.Server == b.Server })
}
