package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/group"
	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/internal/wire"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/session"
)

// DescribeBroker describes this broker.
func (s *Server) DescribeBroker(context.Context, *tacitv1.DescribeBrokerRequest) (*tacitv1.DescribeBrokerResponse, error) {
	resp := &tacitv1.DescribeBrokerResponse{
		Entry: s.entry(), Version: s.cfg.Version, Started: timestamppb.New(s.started),
		Durability: DurabilityName(s.cfg.Durability), Writable: !s.full.Load() && !s.slow.Load(),
		StoredBytes: dirBytes(s.cfg.DataDir), FreeBytes: freeBytes(s.cfg.DataDir),
	}
	for _, t := range s.topics.set().byName {
		resp.Topics++
		resp.Queues += int64(t.read)
	}
	s.driver.view(func(r *group.Registry, _ time.Time) {
		st := r.Stats()
		resp.Sessions, resp.Groups = int64(st.Sessions), int64(st.Groups)
	})
	return resp, nil
}

// PutTopic creates or changes a topic on this broker.
func (s *Server) PutTopic(_ context.Context, req *tacitv1.PutTopicRequest) (*tacitv1.PutTopicResponse, error) {
	if req.GetConfig() == nil {
		return nil, rpcerr.Invalid("config", "is missing")
	}
	want := topicFrom(req.GetConfig())
	set, err := s.topics.put(want, req.GetCreateOnly(), req.GetForce())
	if err != nil {
		return nil, err
	}
	s.log.Info("topic set", zap.String("topic", want.name), zap.Int32("read_queues", want.read), zap.Int32("write_queues", want.write),
		zap.Bool("readable", want.readable), zap.Bool("writable", want.writable), zap.Bool("force", req.GetForce()))
	s.registrar.topicsChanged()
	return &tacitv1.PutTopicResponse{Config: want.proto(), ConfigVersion: set.version}, nil
}

// DeleteTopic deletes a topic on this broker with its messages and offsets; if
// asked so only when nobody loses anything.
func (s *Server) DeleteTopic(_ context.Context, req *tacitv1.DeleteTopicRequest) (*tacitv1.DeleteTopicResponse, error) {
	if err := message.CheckTopic(req.GetTopic()); err != nil {
		return nil, err //nolint:wrapcheck // says all
	}
	if err := s.topics.remove(req.GetTopic(), req.GetDrainedOnly()); err != nil {
		return nil, err
	}
	s.driver.forget(func(k lease.Key) bool { return k.Queue.Topic == req.GetTopic() })
	s.log.Info("topic deleted", zap.String("topic", req.GetTopic()))
	s.registrar.topicsChanged()
	return &tacitv1.DeleteTopicResponse{}, nil
}

// ListTopics lists the topics of this broker, or one.
func (s *Server) ListTopics(_ context.Context, req *tacitv1.ListTopicsRequest) (*tacitv1.ListTopicsResponse, error) {
	topics := s.topics.set().sorted()
	if name := req.GetTopic(); name != "" {
		t, err := s.topics.get(name)
		if err != nil {
			return nil, err
		}
		topics = []*topic{t}
	}
	queues := make(map[string][]store.QueueInfo)
	for _, q := range s.store.Snapshot() {
		queues[q.Queue.Topic] = append(queues[q.Queue.Topic], q)
	}
	resp := &tacitv1.ListTopicsResponse{}
	for _, t := range topics {
		info := &tacitv1.TopicInfo{Config: t.proto()}
		for _, q := range queues[t.name] {
			qi := &tacitv1.QueueInfo{Queue: s.protoQueue(q.Queue), MinOffset: q.Min, MaxOffset: q.Max}
			if q.LastTime > 0 {
				qi.LastStore = timestamppb.New(time.UnixMilli(q.LastTime))
			}
			info.Queues = append(info.Queues, qi)
		}
		resp.Topics = append(resp.Topics, info)
	}
	return resp, nil
}

// maxScheduledSeen bounds how many scheduled batches are looked at for an answer.
const maxScheduledSeen = 100_000

// States of a group.
const (
	groupSettled  = "settled"
	groupChanging = "changing"
	groupWarming  = "warming"
	groupEmpty    = "empty"
)

// ListGroups lists the groups that have members or offsets here.
func (s *Server) ListGroups(context.Context, *tacitv1.ListGroupsRequest) (*tacitv1.ListGroupsResponse, error) {
	infos := make(map[string]*tacitv1.GroupInfo)
	s.driver.view(func(r *group.Registry, _ time.Time) {
		for _, g := range r.ListGroups() {
			info := &tacitv1.GroupInfo{Group: g.Group, Mode: wire.HandOver(g.Mode), Members: int32(g.Members), State: groupSettled} //nolint:gosec // bounded by sessions
			d, _ := r.Describe(g.Group)
			if settled, counts := settledHere(&d); counts && !settled {
				info.State = groupChanging
				if slices.ContainsFunc(d.Views, func(v group.ViewInfo) bool { return v.Warming }) {
					info.State = groupWarming
				}
			}
			infos[g.Group] = info
		}
	})
	for _, name := range s.store.State().Groups() {
		if infos[name] == nil {
			infos[name] = &tacitv1.GroupInfo{Group: name, State: groupEmpty}
		}
	}
	resp := &tacitv1.ListGroupsResponse{}
	for _, i := range infos {
		resp.Groups = append(resp.Groups, i)
	}
	slices.SortFunc(resp.GetGroups(), func(a, b *tacitv1.GroupInfo) int { return strings.Compare(a.GetGroup(), b.GetGroup()) })
	return resp, nil
}

// DescribeGroup describes a group as this broker sees it: sessions, views and,
// for each of this broker's queues of its topics, lease and progress. Queues
// that nobody owns are listed too.
func (s *Server) DescribeGroup(_ context.Context, req *tacitv1.DescribeGroupRequest) (*tacitv1.DescribeGroupResponse, error) {
	name := req.GetGroup()
	if err := message.CheckGroup(name); err != nil {
		return nil, err //nolint:wrapcheck // says all
	}
	resp := &tacitv1.DescribeGroupResponse{Group: name, Broker: s.cfg.Name}
	leases := make(map[allocate.Queue]*tacitv1.LeaseInfo)
	topics := make(map[string]bool)
	known := false
	s.driver.view(func(r *group.Registry, now time.Time) {
		d, ok := r.Describe(name)
		if !ok {
			return
		}
		known = true
		resp.Mode = wire.HandOver(d.Mode)
		for _, m := range d.Members {
			resp.Sessions = append(resp.Sessions, s.sessionInfo(m, now))
			for _, sub := range m.Subscriptions {
				topics[sub.Topic] = true
			}
		}
		for i := range d.Views {
			v := &d.Views[i]
			resp.Views = append(resp.Views, &tacitv1.GroupView{
				View: wire.View(v.View), Warming: v.Warming, Settled: v.Settled, Strategy: strategyOf(&v.View),
			})
		}
		for _, l := range d.Leases {
			info := &tacitv1.LeaseInfo{Queue: wire.Queue(l.Queue), Epoch: wire.Epoch(l.Epoch), Holder: l.Holder, Waiting: l.Line}
			if since, ok := s.driver.granted[lease.Key{Group: name, Queue: l.Queue}]; ok && l.Holder != "" {
				info.HeldFor = durationpb.New(now.Sub(since))
			}
			leases[l.Queue] = info
		}
	})
	for q := range s.store.State().Offsets(name) {
		known = true
		topics[q.Topic] = true
	}
	if !known {
		return nil, fmt.Errorf("%w: %q has neither members nor offsets on broker %s", rpcerr.ErrGroupNotFound, name, s.cfg.Name)
	}
	set := s.topics.set()
	for t := range topics {
		if cfg := set.byName[t]; cfg != nil {
			for id := range cfg.read {
				q := allocate.Queue{Topic: t, Broker: s.cfg.Name, ID: id}
				if leases[q] == nil {
					leases[q] = &tacitv1.LeaseInfo{Queue: wire.Queue(q)}
				}
			}
		}
	}
	order := make([]allocate.Queue, 0, len(leases))
	for q := range leases {
		order = append(order, q)
	}
	slices.SortFunc(order, allocate.Queue.Compare)
	for _, q := range order {
		l := leases[q]
		low, high, err := s.store.Bounds(localQueue(q))
		if err != nil {
			continue // deleted meanwhile
		}
		l.MinOffset, l.MaxOffset = low, high
		l.Committed, l.HasCommitted = s.store.State().Offset(name, localQueue(q))
		resp.Leases = append(resp.Leases, l)
	}
	n, _, err := s.store.State().ScheduledFor(message.RetryTopic(name), maxScheduledSeen)
	if err != nil {
		return nil, fmt.Errorf("describe group %q: %w", name, fromStore(err))
	}
	resp.RetriesScheduled = n
	return resp, nil
}

func (s *Server) sessionInfo(m group.MemberInfo, now time.Time) *tacitv1.SessionInfo {
	i := &tacitv1.SessionInfo{
		ClientId: m.ClientID, Instance: m.Instance, Incarnation: wire.Incarnation(m.Incarnation),
		Subscriptions: wire.Subscriptions(m.Subscriptions), SessionTimeout: durationpb.New(m.Timeout),
		LastHeard: durationpb.New(now.Sub(m.LastFrame)), Leaving: m.Leaving,
	}
	if c := s.driver.sessions[m.Session]; c != nil { // used in the driver's turn
		i.Host = c.peer
	}
	return i
}

// strategyOf names the strategy that the members of a view use: the first of the
// smallest client id's that all support.
func strategyOf(v *session.View) string {
	if len(v.Members) == 0 {
		return ""
	}
	for _, o := range v.Members[0].Offers {
		all := true
		for i := range v.Members {
			if !slices.ContainsFunc(v.Members[i].Offers, func(p session.Offer) bool { return p.Strategy == o.Strategy }) {
				all = false
				break
			}
		}
		if all {
			return o.Strategy
		}
	}
	return ""
}

// ResetOffsets sets committed offsets, also backwards. Offsets below what a queue
// still holds are raised to that. All or nothing, unless the disk fails.
func (s *Server) ResetOffsets(ctx context.Context, req *tacitv1.ResetOffsetsRequest) (*tacitv1.ResetOffsetsResponse, error) {
	name := req.GetGroup()
	if err := message.CheckGroup(name); err != nil {
		return nil, err //nolint:wrapcheck // says all
	}
	if n := len(req.GetOffsets()); n > maxOffsets {
		return nil, rpcerr.Invalid("offsets", "has %d entries: must be at most %d", n, maxOffsets)
	}
	resp := &tacitv1.ResetOffsetsResponse{}
	queues := make([]allocate.Queue, 0, len(req.GetOffsets()))
	for i, o := range req.GetOffsets() {
		q, err := s.ownQueue(o.GetQueue())
		if err == nil && req.GetTopic() != "" && q.Topic != req.GetTopic() {
			err = rpcerr.Invalid("queue", "is of topic %q, not of %q", q.Topic, req.GetTopic())
		}
		if err == nil {
			err = s.checkOffset(q, o.GetOffset())
		}
		if err != nil {
			return nil, rpcerr.In(err, fmt.Sprintf("offsets[%d]", i))
		}
		low, _, err := s.store.Bounds(localQueue(q))
		if err != nil {
			return nil, fromStore(err)
		}
		c := &tacitv1.ResetOffsetsResponse_Change{Queue: wire.Queue(q), After: max(low, o.GetOffset())}
		c.Before, c.HadBefore = s.store.State().Offset(name, localQueue(q))
		resp.Changes = append(resp.Changes, c)
		queues = append(queues, q)
	}
	if !req.GetForce() {
		if err := s.notHeld(name, queues); err != nil {
			return nil, err
		}
	}
	if req.GetDryRun() {
		return resp, nil
	}
	errs, err := s.driver.ask(ctx, len(queues), func(i int, id uint64) group.Event {
		return group.Reset{Req: id, Key: lease.Key{Group: name, Queue: queues[i]}, Offset: resp.GetChanges()[i].GetAfter(), Force: req.GetForce()}
	})
	if err == nil {
		err = errors.Join(errs...)
	}
	if errors.Is(err, rpcerr.ErrLeaseHeld) {
		err = rpcerr.With(rpcerr.ErrGroupActive, err)
	}
	if err != nil {
		return nil, err
	}
	s.log.Info("offsets reset", zap.String("group", name), zap.Int("queues", len(queues)), zap.Bool("force", req.GetForce()))
	return resp, nil
}

// notHeld refuses if a member holds one of the queues.
func (s *Server) notHeld(name string, queues []allocate.Queue) (err error) {
	s.driver.view(func(r *group.Registry, _ time.Time) {
		d, _ := r.Describe(name)
		for _, l := range d.Leases {
			if l.Holder != "" && slices.Contains(queues, l.Queue) {
				err = fmt.Errorf("%w: %s holds queue %d of topic %q; stop the group or use force", rpcerr.ErrGroupActive, l.Holder, l.Queue.ID, l.Queue.Topic)
				return
			}
		}
	})
	return err
}

// DeleteGroup removes all offsets and leases of a group without members.
func (s *Server) DeleteGroup(ctx context.Context, req *tacitv1.DeleteGroupRequest) (*tacitv1.DeleteGroupResponse, error) {
	name := req.GetGroup()
	if err := message.CheckGroup(name); err != nil {
		return nil, err //nolint:wrapcheck // says all
	}
	members := 0
	s.driver.view(func(r *group.Registry, _ time.Time) {
		d, _ := r.Describe(name)
		members = len(d.Members)
	})
	if members > 0 {
		return nil, fmt.Errorf("%w: members of %q: %d", rpcerr.ErrGroupActive, name, members)
	}
	state := s.store.State()
	if len(state.Offsets(name)) == 0 {
		return nil, fmt.Errorf("%w: %q has no offsets on broker %s", rpcerr.ErrGroupNotFound, name, s.cfg.Name)
	}
	u := state.NewUpdate()
	u.DeleteGroup(name)
	err := state.Scan(sentBackSpace, "", func(key string, _ []byte) bool {
		if of, _, _, ok := parseSentBack(key); ok && of == name {
			u.Delete(sentBackSpace, key)
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("delete group %q: %w", name, fromStore(err))
	}
	if err := state.Apply(ctx, u); err != nil {
		return nil, fmt.Errorf("delete group %q: %w", name, fromStore(err))
	}
	s.driver.forget(func(k lease.Key) bool { return k.Group == name })
	s.log.Info("group deleted", zap.String("group", name))
	return &tacitv1.DeleteGroupResponse{}, nil
}
