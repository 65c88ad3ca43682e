package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/internal/wire"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/route"
)

// ResetKind says how new offsets are found.
type ResetKind uint8

// The kinds.
const (
	ToEarliest ResetKind = iota + 1 // the oldest message stored
	ToLatest                        // past the newest
	ToOffset                        // [Reset.Offset]
	ToTime                          // the first message stored at or after [Reset.Time]
	ByShift                         // the present offset plus [Reset.Shift]
)

// Reset is a change of a group's offsets by an operator.
type Reset struct {
	Group string
	// Topics to reset. None: all that the group has offsets or members for, but
	// its retry topic.
	Topics []string
	// Brokers and IDs narrow it to queues of these brokers and with these ids.
	// None: all.
	Brokers []string
	IDs     []int32

	Kind   ResetKind
	Offset int64
	Time   time.Time
	Shift  int64

	// Force resets queues that members hold too.
	Force bool
	// Execute carries it out; otherwise it is computed only.
	Execute bool
}

// OffsetChange is the change of one queue.
type OffsetChange struct {
	QueueName
	Before *int64 `json:"before"` // nil: none
	After  int64  `json:"after"`
	Min    int64  `json:"min_offset"`
	Max    int64  `json:"max_offset"`
	// Lag is what is to be read after the change.
	Lag int64 `json:"lag"`
	// Clamped says that After was moved into what the queue holds.
	Clamped bool `json:"clamped,omitempty"`
	// Holder is the member that holds the queue.
	Holder string `json:"holder,omitempty"`
	// Executed says that the broker has stored the offset.
	Executed bool `json:"executed"`
	// Error says why this queue was not changed.
	Error string `json:"error,omitempty"`
}

// ResetOffsets computes a reset and, with Execute, carries it out. Without Force
// a queue that a member holds makes it fail with [rpcerr.ErrGroupActive] before
// anything is changed; as a preview it is shown in any case. Brokers that do not
// answer keep their offsets and are among the failures.
func (c *Client) ResetOffsets(ctx context.Context, r Reset) ([]OffsetChange, []Failure, error) {
	if err := message.CheckGroup(r.Group); err != nil {
		return nil, nil, fmt.Errorf("reset offsets: %w", err)
	}
	cluster, err := c.Cluster(ctx)
	if err != nil {
		return nil, nil, err
	}
	group, failures, err := c.describeGroup(ctx, &cluster, cluster.Brokers, r.Group)
	if err != nil && (len(r.Topics) == 0 || !errors.Is(err, rpcerr.ErrGroupNotFound)) {
		return nil, append(cluster.Failures, failures...), err
	}
	failures = append(cluster.Failures, failures...)
	changes, more, err := c.planReset(ctx, &cluster, group, &r)
	failures = append(failures, more...)
	if err != nil {
		return nil, distinct(failures), err
	}
	if !r.Execute {
		return changes, distinct(failures), nil
	}
	if !r.Force {
		for _, ch := range changes {
			if ch.Holder != "" {
				return changes, distinct(failures), fmt.Errorf("%w: %s holds queue %s/%d of topic %q; stop the group or use force",
					rpcerr.ErrGroupActive, ch.Holder, ch.Broker, ch.ID, ch.Topic)
			}
		}
	}
	err = c.executeReset(ctx, &cluster, &r, changes)
	return changes, distinct(failures), err
}

// planReset finds the new offset of each queue.
func (c *Client) planReset(ctx context.Context, cluster *Cluster, group *Group, r *Reset) ([]OffsetChange, []Failure, error) {
	topics := r.Topics
	if len(topics) == 0 {
		for _, t := range group.Topics {
			if t.Topic != message.RetryTopic(r.Group) {
				topics = append(topics, t.Topic)
			}
		}
	}
	known := make(map[QueueName]*GroupQueue)
	if group != nil {
		for i := range group.Queues {
			known[group.Queues[i].QueueName] = &group.Queues[i]
		}
	}
	var routes []route.Topic
	for _, t := range slices.Compact(slices.Sorted(slices.Values(topics))) {
		rt, err := cluster.mustTopic(t)
		if err != nil {
			return nil, nil, err
		}
		routes = append(routes, rt)
	}
	infos, failures := c.topicInfos(ctx, hostsOf(routes), "")
	var out []OffsetChange
	for _, rt := range routes {
		for _, h := range rt.Hosts {
			info := infos[h.Broker.Name][rt.Name]
			if info == nil || len(r.Brokers) > 0 && !slices.Contains(r.Brokers, h.Broker.Name) {
				continue
			}
			t := Topic{Name: rt.Name}
			t.addHost(h, info, "")
			for _, q := range t.Queues {
				if len(r.IDs) > 0 && !slices.Contains(r.IDs, q.ID) {
					continue
				}
				ch := OffsetChange{QueueName: QueueName{t.Name, q.Broker, q.ID}, Min: *q.Min, Max: *q.Max}
				if k := known[ch.QueueName]; k != nil {
					ch.Before, ch.Holder = k.Committed, k.Owner
				}
				out = append(out, ch)
			}
		}
	}
	if len(out) == 0 && len(failures) == 0 {
		return nil, nil, rpcerr.With(rpcerr.ErrInvalidArgument, fmt.Errorf("no queue of group %q matches", r.Group))
	}
	out, more := c.target(ctx, cluster, r, out)
	return out, append(failures, more...), nil
}

// target sets After. Queues for which it cannot be found are left out.
func (c *Client) target(ctx context.Context, cluster *Cluster, r *Reset, all []OffsetChange) ([]OffsetChange, []Failure) {
	var failures []Failure
	found := make(map[QueueName]int64)
	if r.Kind == ToTime {
		failures = c.findOffsets(ctx, cluster, r.Time, all, found)
	}
	out := make([]OffsetChange, 0, len(all))
	for _, ch := range all {
		var to int64
		switch r.Kind {
		case ToEarliest:
			to = ch.Min
		case ToLatest:
			to = ch.Max
		case ToOffset:
			to = r.Offset
		case ToTime:
			at, ok := found[ch.QueueName]
			if !ok {
				continue
			}
			to = at
		case ByShift:
			from := ch.Max // as a group that never committed begins by default
			if ch.Before != nil {
				from = *ch.Before
			}
			if to = from + r.Shift; r.Shift > 0 && to < from {
				to = math.MaxInt64
			}
		}
		ch.After = min(max(to, ch.Min), ch.Max)
		ch.Clamped = ch.After != to
		ch.Lag = ch.Max - ch.After
		out = append(out, ch)
	}
	return out, failures
}

// findOffsets asks for the first offset of each queue at or after a time.
func (c *Client) findOffsets(ctx context.Context, cluster *Cluster, t time.Time, all []OffsetChange, found map[QueueName]int64) []Failure {
	address := func(ch OffsetChange) string {
		b, _ := cluster.Broker(ch.Broker)
		return b.Address
	}
	answers, errs := ask(ctx, c, all, address, func(ctx context.Context, conn *grpc.ClientConn, ch OffsetChange) (int64, error) {
		resp, err := tacitv1.NewDataServiceClient(conn).FindOffset(ctx, &tacitv1.FindOffsetRequest{
			Queue: wire.Queue(ch.Queue()), Time: timestamppb.New(t),
		})
		return resp.GetOffset(), err //nolint:wrapcheck // the failure names the broker
	})
	var failures []Failure
	for i, ch := range all {
		if errs[i] != nil {
			failures = append(failures, failure(ch.Broker, address(ch), errs[i]))
			continue
		}
		found[ch.QueueName] = answers[i]
	}
	return failures
}

// executeReset sets the offsets, broker by broker at once, and fills in what
// they were by then.
func (c *Client) executeReset(ctx context.Context, cluster *Cluster, r *Reset, changes []OffsetChange) error {
	byBroker := make(map[string][]*tacitv1.OffsetTarget)
	at := make(map[QueueName]*OffsetChange, len(changes))
	for i := range changes {
		ch := &changes[i]
		at[ch.QueueName] = ch
		byBroker[ch.Broker] = append(byBroker[ch.Broker], &tacitv1.OffsetTarget{Queue: wire.Queue(ch.Queue()), Offset: ch.After})
	}
	brokers := make([]route.Broker, 0, len(byBroker))
	for _, name := range slices.SortedFunc(maps.Keys(byBroker), allocate.CompareStrings) {
		b, _ := cluster.Broker(name)
		brokers = append(brokers, b)
	}
	answers, errs := askBrokers(ctx, c, brokers, func(ctx context.Context, a tacitv1.AdminServiceClient, b route.Broker) (*tacitv1.ResetOffsetsResponse, error) {
		return a.ResetOffsets(ctx, &tacitv1.ResetOffsetsRequest{Group: r.Group, Offsets: byBroker[b.Name], Force: r.Force})
	})
	var first error
	for i, b := range brokers {
		if errs[i] != nil {
			f := failure(b.Name, b.Address, errs[i])
			for j := range changes {
				if changes[j].Broker == b.Name {
					changes[j].Error = f.Reason
				}
			}
			if first == nil {
				first = fmt.Errorf("broker %s: %w", b.Name, rpcerr.With(errs[i], errors.New(f.Reason)))
			}
			continue
		}
		for _, done := range answers[i].GetChanges() {
			q, err := wire.ToQueue(done.GetQueue())
			if err != nil {
				continue
			}
			if ch := at[nameOf(q)]; ch != nil {
				ch.Before, ch.After, ch.Executed = nil, done.GetAfter(), true
				if done.GetHadBefore() {
					ch.Before = new(done.GetBefore())
				}
				ch.Lag = max(0, ch.Max-ch.After)
			}
		}
	}
	return first
}

// DeleteGroup removes a group without members from all brokers. The failures are
// the brokers that still have it.
func (c *Client) DeleteGroup(ctx context.Context, name string) (deleted []string, failures []Failure, err error) {
	if err := message.CheckGroup(name); err != nil {
		return nil, nil, fmt.Errorf("delete group: %w", err)
	}
	cluster, err := c.Cluster(ctx)
	if err != nil {
		return nil, nil, err
	}
	// A member may be connected to some of the brokers only: ask before anything goes.
	group, failures, err := c.describeGroup(ctx, &cluster, cluster.Brokers, name)
	if err != nil {
		return nil, failures, err
	}
	if n := len(group.Members); n > 0 {
		return nil, failures, fmt.Errorf("%w: members of %q: %d, such as %s", rpcerr.ErrGroupActive, name, n, group.Members[0].ClientID)
	}
	_, errs := askBrokers(ctx, c, cluster.Brokers, func(ctx context.Context, a tacitv1.AdminServiceClient, _ route.Broker) (*tacitv1.DeleteGroupResponse, error) {
		return a.DeleteGroup(ctx, &tacitv1.DeleteGroupRequest{Group: name})
	})
	failures = nil
	for i, b := range cluster.Brokers {
		switch {
		case errs[i] == nil:
			deleted = append(deleted, b.Name)
		case errors.Is(errs[i], rpcerr.ErrGroupNotFound):
		default:
			failures = append(failures, failure(b.Name, b.Address, errs[i]))
		}
	}
	return deleted, append(cluster.Failures, failures...), nil
}
