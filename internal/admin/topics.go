package admin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/route"
)

// Topic is one topic over all brokers.
type Topic struct {
	Name        string `json:"topic"`
	ReadQueues  int32  `json:"read_queues"` // of all brokers together
	WriteQueues int32  `json:"write_queues"`
	// Messages stored, of the brokers that answered.
	Messages int64        `json:"messages"`
	Hosts    []TopicHost  `json:"brokers"` // sorted by name
	Queues   []TopicQueue `json:"queues,omitempty"`
}

// TopicHost is a topic on one broker.
type TopicHost struct {
	Broker      string `json:"broker"`
	Address     string `json:"address"`
	ReadQueues  int32  `json:"read_queues"`
	WriteQueues int32  `json:"write_queues"`
	Readable    bool   `json:"readable"`
	Writable    bool   `json:"writable"`
	Error       string `json:"error,omitempty"` // why the broker could not be asked
}

// TopicQueue is one queue. What its broker did not say is nil.
type TopicQueue struct {
	Broker    string     `json:"broker"`
	ID        int32      `json:"queue"`
	Min       *int64     `json:"min_offset"`
	Max       *int64     `json:"max_offset"` // one past the last message
	LastStore *time.Time `json:"last_store"`
}

// Topics describes one topic, or all with an empty name. A topic that no name
// server knows is an error that wraps [rpcerr.ErrTopicNotFound].
func (c *Client) Topics(ctx context.Context, name string) ([]Topic, []Failure, error) {
	cluster, err := c.Cluster(ctx)
	if err != nil {
		return nil, nil, err
	}
	routes := cluster.Topics
	if name != "" {
		r, err := cluster.mustTopic(name)
		if err != nil {
			return nil, nil, err
		}
		routes = []route.Topic{r}
	}
	infos, failures := c.topicInfos(ctx, hostsOf(routes), name)
	failed := failedServers(failures)
	out := make([]Topic, 0, len(routes))
	for _, r := range routes {
		t := Topic{Name: r.Name}
		for _, h := range r.Hosts {
			t.addHost(h, infos[h.Broker.Name][r.Name], failed[h.Broker.Name])
		}
		out = append(out, t)
	}
	return out, append(cluster.Failures, failures...), nil
}

func (c *Cluster) mustTopic(name string) (route.Topic, error) {
	if err := message.CheckTopic(name); err != nil {
		return route.Topic{}, fmt.Errorf("describe topic: %w", err)
	}
	r := c.Topic(name)
	if len(r.Hosts) == 0 {
		more := ""
		if c.Warming {
			more = "; the name servers started a moment ago and may not know all brokers yet"
		}
		return r, fmt.Errorf("%w: %q%s", rpcerr.ErrTopicNotFound, name, more)
	}
	return r, nil
}

// addHost adds what one broker has of t. info is nil if the broker did not say:
// its queues are listed all the same.
func (t *Topic) addHost(h route.Host, info *tacitv1.TopicInfo, failed string) {
	host := TopicHost{
		Broker: h.Broker.Name, Address: h.Broker.Address, ReadQueues: h.Config.ReadQueues, WriteQueues: h.Config.WriteQueues,
		Readable: h.Config.Readable, Writable: h.Config.Writable, Error: failed,
	}
	bounds := make(map[int32]*tacitv1.QueueInfo)
	if info != nil { // newer than what the name servers say
		host.ReadQueues, host.WriteQueues = info.GetConfig().GetReadQueues(), info.GetConfig().GetWriteQueues()
		host.Readable, host.Writable = info.GetConfig().GetPermission().GetReadable(), info.GetConfig().GetPermission().GetWritable()
		for _, q := range info.GetQueues() {
			bounds[q.GetQueue().GetQueueId()] = q
		}
	}
	t.Hosts = append(t.Hosts, host)
	t.ReadQueues += host.ReadQueues
	t.WriteQueues += host.WriteQueues
	for id := range host.ReadQueues {
		q := TopicQueue{Broker: host.Broker, ID: id}
		switch b := bounds[id]; {
		case b != nil:
			q.Min, q.Max, q.LastStore = new(b.GetMinOffset()), new(b.GetMaxOffset()), timeOf(b.GetLastStore())
			t.Messages += b.GetMaxOffset() - b.GetMinOffset()
		case info != nil: // nothing was ever stored in it
			q.Min, q.Max = new(int64), new(int64)
		}
		t.Queues = append(t.Queues, q)
	}
}

// topicInfos asks brokers for one topic, or all with an empty name: by broker
// and topic.
func (c *Client) topicInfos(ctx context.Context, brokers []route.Broker, topic string) (map[string]map[string]*tacitv1.TopicInfo, []Failure) {
	answers, errs := askBrokers(ctx, c, brokers, func(ctx context.Context, a tacitv1.AdminServiceClient, _ route.Broker) (*tacitv1.ListTopicsResponse, error) {
		return a.ListTopics(ctx, &tacitv1.ListTopicsRequest{Topic: topic})
	})
	out := make(map[string]map[string]*tacitv1.TopicInfo, len(brokers))
	var failures []Failure
	for i, b := range brokers {
		if errs[i] != nil {
			failures = append(failures, failure(b.Name, b.Address, errs[i]))
			continue
		}
		out[b.Name] = make(map[string]*tacitv1.TopicInfo)
		for _, t := range answers[i].GetTopics() {
			out[b.Name][t.GetConfig().GetTopic()] = t
		}
	}
	return out, failures
}

// hostsOf returns the brokers that host any of the topics, sorted by name.
func hostsOf(topics []route.Topic) []route.Broker {
	byName := make(map[string]route.Broker)
	for _, t := range topics {
		for _, h := range t.Hosts {
			byName[h.Broker.Name] = h.Broker
		}
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b route.Broker) int { return allocate.CompareStrings(a.Name, b.Name) })
}

func failedServers(failures []Failure) map[string]string {
	out := make(map[string]string, len(failures))
	for _, f := range failures {
		out[f.Server] = f.Reason
	}
	return out
}

// timeOf returns a time, nil if it is absent.
func timeOf(t *timestamppb.Timestamp) *time.Time {
	if t == nil || !t.IsValid() {
		return nil
	}
	return new(t.AsTime())
}

// Spread shares a number of queues among brokers as evenly as possible. present
// is what each has now: those that have most keep the extra ones, then it goes
// by name, so that raising and lowering a count moves no more than it must.
func Spread(total int32, present map[string]int32) map[string]int32 {
	if len(present) == 0 {
		return nil
	}
	order := slices.SortedFunc(maps.Keys(present), func(a, b string) int {
		return cmp.Or(cmp.Compare(present[b], present[a]), allocate.CompareStrings(a, b))
	})
	n := int32(len(order)) //nolint:gosec // a number of brokers
	out := make(map[string]int32, n)
	for i, name := range order {
		out[name] = total / n
		if int32(i) < total%n { //nolint:gosec // below n
			out[name]++
		}
	}
	return out
}
