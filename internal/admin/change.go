package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/route"
)

// TopicChange says what to make of a topic. Nil fields stay as they are; a new
// topic is readable and writable.
type TopicChange struct {
	// Queues is the total over all brokers. Required for a new topic.
	Queues *int32
	// Brokers host the topic. Default: for a new topic all, else those that do.
	// Brokers can be added to a topic so; see Without.
	Brokers []string
	// Without takes a topic off these brokers. Their queues are closed for writing
	// at once, and go once every group has read them; until then the change is
	// pending. With Force they go with what is unread. The others keep theirs
	// unless Queues is set.
	Without  []string
	Readable *bool
	Writable *bool
	// Force removes queues though they hold unread messages.
	Force bool
}

// HostChange is what became of a topic on one broker.
type HostChange struct {
	Broker      string `json:"broker"`
	Before      int32  `json:"queues_before"`
	ReadQueues  int32  `json:"read_queues"`
	WriteQueues int32  `json:"write_queues"`
	Readable    bool   `json:"readable"`
	Writable    bool   `json:"writable"`
	// Pending says why queues that were to be removed are still readable: they
	// hold unread messages. They are not written any more.
	Pending string `json:"pending,omitempty"`
	// Removed says that the topic is not on this broker any more.
	Removed bool `json:"removed,omitempty"`
	// Error says why this broker was not changed.
	Error string `json:"error,omitempty"`
	Err   error  `json:"-"`
}

// CreateTopic makes a topic. It must not exist on any broker. The changes are
// sorted by broker; the error is that of the first broker that failed, while
// others may have done it.
func (c *Client) CreateTopic(ctx context.Context, name string, ch TopicChange) ([]HostChange, error) {
	if err := message.CheckTopic(name); err != nil {
		return nil, fmt.Errorf("create topic: %w", err)
	}
	cluster, err := c.Cluster(ctx)
	if err != nil {
		return nil, err
	}
	if t := cluster.Topic(name); len(t.Hosts) > 0 {
		return nil, fmt.Errorf("%w: %q on %s", rpcerr.ErrTopicExists, name, strings.Join(t.Brokers(), ", "))
	}
	if len(cluster.Brokers) == 0 {
		return nil, fmt.Errorf("create topic %q: the name servers know no broker", name)
	}
	present := make(map[string]int32)
	for _, b := range cluster.Brokers {
		present[b.Name] = 0
	}
	if len(ch.Brokers) > 0 {
		if err := cluster.known(ch.Brokers); err != nil {
			return nil, fmt.Errorf("create topic %q: %w", name, err)
		}
		clear(present)
		for _, b := range ch.Brokers {
			present[b] = 0
		}
	}
	if ch.Queues == nil || *ch.Queues < 1 {
		return nil, rpcerr.With(rpcerr.ErrInvalidArgument, errors.New("queues: must be 1 or more"))
	}
	var plan []hostPlan
	for broker, n := range Spread(*ch.Queues, present) {
		if n == 0 {
			continue // fewer queues than brokers
		}
		p := hostPlan{createOnly: true, to: route.Config{Topic: name, ReadQueues: n, WriteQueues: n, Readable: true, Writable: true}}
		p.broker, _ = cluster.Broker(broker)
		ch.permit(&p.to)
		plan = append(plan, p)
	}
	return c.put(ctx, plan, false)
}

// AlterTopic changes the number of queues, the permissions or the brokers of a
// topic. Queues that go are closed for writing at once, and for reading too once
// no group has unread messages in them, or with Force; until then the change is
// pending and can be repeated.
func (c *Client) AlterTopic(ctx context.Context, name string, ch TopicChange) ([]HostChange, error) {
	cluster, err := c.Cluster(ctx)
	if err != nil {
		return nil, err
	}
	r, err := cluster.mustTopic(name)
	if err != nil {
		return nil, err
	}
	now := make(map[string]route.Config)
	present := make(map[string]int32)
	var total int32
	for _, h := range r.Hosts {
		now[h.Broker.Name] = h.Config
		// What is closed for writing is on its way out, and not kept for its number.
		present[h.Broker.Name] = h.Config.WriteQueues
		total += h.Config.WriteQueues
	}
	if len(ch.Brokers) > 0 {
		if err := cluster.known(ch.Brokers); err != nil {
			return nil, fmt.Errorf("alter topic %q: %w", name, err)
		}
		for b := range now {
			if !slices.Contains(ch.Brokers, b) {
				return nil, rpcerr.With(rpcerr.ErrInvalidArgument, fmt.Errorf("brokers: %s hosts topic %q too; take the topic off it with --without", b, name))
			}
		}
		for _, b := range ch.Brokers {
			present[b] += 0
		}
	}
	gone, err := cluster.without(r, &ch)
	if err != nil {
		return nil, err
	}
	for _, p := range gone {
		total -= present[p.broker.Name]
		delete(present, p.broker.Name)
	}
	if ch.Queues != nil {
		total = *ch.Queues
	}
	if n := len(present); int(total) < n && (ch.Queues != nil || len(ch.Brokers) > 0) {
		return nil, rpcerr.With(rpcerr.ErrInvalidArgument, fmt.Errorf("queues %d: must be at least %d, one for each broker of topic %q", total, n, name))
	}
	spread := present
	if ch.Queues != nil || len(ch.Brokers) > 0 {
		spread = Spread(total, present)
	}
	if len(ch.Without) > 0 && ch.Queues == nil && len(ch.Brokers) == 0 && ch.Readable == nil && ch.Writable == nil {
		spread = nil // the others stay as they are
	}
	plan := gone
	for broker, n := range spread {
		old, hosted := now[broker]
		p := hostPlan{from: old.ReadQueues, createOnly: !hosted, to: old}
		if !hosted {
			p.to = route.Config{Topic: name, Readable: r.Hosts[0].Config.Readable, Writable: r.Hosts[0].Config.Writable}
		}
		p.broker, _ = cluster.Broker(broker)
		p.to.WriteQueues = n
		p.to.ReadQueues = n
		if ch.Queues == nil && len(ch.Brokers) == 0 {
			p.to.ReadQueues = old.ReadQueues // permissions alone
		}
		ch.permit(&p.to)
		plan = append(plan, p)
	}
	return c.put(ctx, plan, ch.Force)
}

// without plans what becomes of a topic on the brokers that it is taken off. One
// that does not host it is done with.
func (c *Cluster) without(r route.Topic, ch *TopicChange) (plan []hostPlan, err error) {
	for _, name := range ch.Without {
		p := hostPlan{remove: true, to: route.Config{Topic: r.Name}}
		for _, h := range r.Hosts {
			if h.Broker.Name == name {
				p.broker, p.from, p.to = h.Broker, h.Config.ReadQueues, h.Config
			}
		}
		switch {
		case p.broker.Name == "":
			if err := c.known([]string{name}); err != nil {
				return nil, fmt.Errorf("alter topic %q: %w", r.Name, err)
			}
			p.broker, _ = c.Broker(name)
		case slices.Contains(ch.Brokers, name):
			return nil, rpcerr.With(rpcerr.ErrInvalidArgument, fmt.Errorf("broker %s: both to have topic %q and to be without", name, r.Name))
		}
		plan = append(plan, p)
	}
	left := len(r.Hosts)
	for _, p := range plan {
		if p.from > 0 {
			left--
		}
	}
	if left == 0 {
		return nil, rpcerr.With(rpcerr.ErrInvalidArgument, fmt.Errorf("topic %q: must stay on a broker; delete it to be rid of it", r.Name))
	}
	return plan, nil
}

func (ch *TopicChange) permit(to *route.Config) {
	if ch.Readable != nil {
		to.Readable = *ch.Readable
	}
	if ch.Writable != nil {
		to.Writable = *ch.Writable
	}
}

func (c *Cluster) known(brokers []string) error {
	var errs []error
	for _, b := range brokers {
		if _, ok := c.Broker(b); !ok {
			errs = append(errs, rpcerr.With(rpcerr.ErrInvalidArgument, fmt.Errorf("broker %q: the name servers do not know it", b)))
		}
	}
	return errors.Join(errs...)
}

// hostPlan is what one broker is asked to make of a topic.
type hostPlan struct {
	broker     route.Broker
	from       int32 // readable queues now
	to         route.Config
	createOnly bool
	remove     bool
}

// put carries a plan out at all brokers at once.
func (c *Client) put(ctx context.Context, plan []hostPlan, force bool) ([]HostChange, error) {
	slices.SortFunc(plan, func(a, b hostPlan) int { return allocate.CompareStrings(a.broker.Name, b.broker.Name) })
	brokers := make([]route.Broker, len(plan))
	byName := make(map[string]hostPlan, len(plan))
	for i, p := range plan {
		brokers[i], byName[p.broker.Name] = p.broker, p
	}
	out, errs := askBrokers(ctx, c, brokers, func(ctx context.Context, a tacitv1.AdminServiceClient, b route.Broker) (HostChange, error) {
		return putHost(ctx, a, byName[b.Name], force)
	})
	var first error
	for i := range out {
		out[i].Broker, out[i].Before = plan[i].broker.Name, plan[i].from
		if errs[i] != nil {
			f := failure(brokers[i].Name, brokers[i].Address, errs[i])
			out[i].Error, out[i].Err = f.Reason, errs[i]
			if first == nil {
				first = fmt.Errorf("broker %s: %w", brokers[i].Name, rpcerr.With(errs[i], errors.New(f.Reason)))
			}
		}
	}
	return out, first
}

// putHost changes a topic on one broker, in two steps where queues go.
func putHost(ctx context.Context, a tacitv1.AdminServiceClient, p hostPlan, force bool) (HostChange, error) {
	put := func(read, write int32, force bool) (*tacitv1.PutTopicResponse, error) {
		return a.PutTopic(ctx, &tacitv1.PutTopicRequest{
			Config: &tacitv1.TopicConfig{
				Topic: p.to.Topic, ReadQueues: read, WriteQueues: write,
				Permission: &tacitv1.Permission{Readable: p.to.Readable, Writable: p.to.Writable},
			},
			CreateOnly: p.createOnly, Force: force,
		})
	}
	done := func(r *tacitv1.PutTopicResponse) HostChange {
		cfg := r.GetConfig()
		return HostChange{
			ReadQueues: cfg.GetReadQueues(), WriteQueues: cfg.GetWriteQueues(),
			Readable: cfg.GetPermission().GetReadable(), Writable: cfg.GetPermission().GetWritable(),
		}
	}
	if p.remove {
		return removeHost(ctx, a, p, put, force)
	}
	var ch HostChange
	if p.to.ReadQueues < p.from {
		r, err := put(p.from, p.to.WriteQueues, false)
		if err != nil {
			return HostChange{ReadQueues: p.from}, err
		}
		ch = done(r)
	}
	r, err := put(p.to.ReadQueues, p.to.WriteQueues, force)
	switch {
	case errors.Is(err, rpcerr.ErrUnreadBacklog) && p.to.ReadQueues < p.from:
		ch.Pending = err.Error()
		return ch, nil
	case err != nil:
		return HostChange{ReadQueues: p.from}, err
	}
	return done(r), nil
}

// removeHost takes a topic off a broker: closed for writing at once, gone once
// it is read.
func removeHost(ctx context.Context, a tacitv1.AdminServiceClient, p hostPlan, put func(read, write int32, force bool) (*tacitv1.PutTopicResponse, error), force bool) (HostChange, error) {
	if p.from == 0 {
		return HostChange{Removed: true}, nil
	}
	ch := HostChange{ReadQueues: p.from, Readable: p.to.Readable}
	if !force {
		if _, err := put(p.from, 0, false); err != nil {
			return ch, err
		}
	}
	_, err := a.DeleteTopic(ctx, &tacitv1.DeleteTopicRequest{Topic: p.to.Topic, DrainedOnly: !force})
	switch {
	case errors.Is(err, rpcerr.ErrUnreadBacklog):
		ch.Pending = err.Error()
		return ch, nil
	case err != nil && !errors.Is(err, rpcerr.ErrTopicNotFound):
		return ch, err
	}
	return HostChange{Removed: true}, nil
}

// DeleteTopic deletes a topic with its messages on all brokers that host it. The
// failures are the brokers on which it is still there.
func (c *Client) DeleteTopic(ctx context.Context, name string) (deleted []string, failures []Failure, err error) {
	cluster, err := c.Cluster(ctx)
	if err != nil {
		return nil, nil, err
	}
	r, err := cluster.mustTopic(name)
	if err != nil {
		return nil, nil, err
	}
	hosts := hostsOf([]route.Topic{r})
	_, errs := askBrokers(ctx, c, hosts, func(ctx context.Context, a tacitv1.AdminServiceClient, _ route.Broker) (*tacitv1.DeleteTopicResponse, error) {
		return a.DeleteTopic(ctx, &tacitv1.DeleteTopicRequest{Topic: name})
	})
	for i, b := range hosts {
		if errs[i] != nil && !errors.Is(errs[i], rpcerr.ErrTopicNotFound) {
			failures = append(failures, failure(b.Name, b.Address, errs[i]))
			continue
		}
		deleted = append(deleted, b.Name)
	}
	return deleted, failures, nil
}
