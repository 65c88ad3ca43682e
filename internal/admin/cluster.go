package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/internal/wire"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/route"
)

// Cluster is what the name servers say together.
type Cluster struct {
	// Brokers are those registered, and those that host a topic asked for, sorted
	// by name.
	Brokers []route.Broker
	// Topics are those asked for that exist, or all, sorted by name.
	Topics []route.Topic
	// Warming says that no name server is sure yet: something may be missing.
	Warming bool
	// Failures are the name servers that did not answer.
	Failures []Failure
}

// Topic returns the route of a topic; without hosts if there is no such topic.
func (c *Cluster) Topic(name string) route.Topic {
	i, ok := slices.BinarySearchFunc(c.Topics, name, func(t route.Topic, name string) int { return allocate.CompareStrings(t.Name, name) })
	if !ok {
		return route.Topic{Name: name}
	}
	return c.Topics[i]
}

// Broker returns the entry of a broker.
func (c *Cluster) Broker(name string) (route.Broker, bool) {
	for _, b := range c.Brokers {
		if b.Name == name {
			return b, true
		}
	}
	return route.Broker{}, false
}

// Cluster asks all name servers for all brokers and topics. It is an error that
// wraps [rpcerr.ErrUnreachable] if none answers.
func (c *Client) Cluster(ctx context.Context) (Cluster, error) {
	updates, errs := ask(ctx, c, c.cfg.NameServers, func(address string) string { return address },
		func(ctx context.Context, conn *grpc.ClientConn, _ string) (route.Update, error) {
			resp, err := tacitv1.NewNameServerServiceClient(conn).GetRoutes(ctx, &tacitv1.GetRoutesRequest{})
			if err != nil {
				return route.Update{}, fmt.Errorf("get routes: %w", err)
			}
			return wire.GetUpdate(resp)
		})
	out := Cluster{Warming: true}
	answered := false
	says := make(map[string][]route.Saying) // by topic, of the name servers that know it
	brokers := make(map[string]route.Broker)
	meet := func(b route.Broker) {
		if o, ok := brokers[b.Name]; !ok || route.CompareBrokers(o, b) < 0 {
			brokers[b.Name] = b
		}
	}
	for i, u := range updates {
		address := c.cfg.NameServers[i]
		if errs[i] != nil {
			out.Failures = append(out.Failures, failure(address, address, unwrapped(errs[i])))
			continue
		}
		answered = true
		state := route.Warming
		if !u.Warming {
			state, out.Warming = route.Ready, false
		}
		for _, b := range u.Brokers {
			meet(b)
		}
		for _, t := range u.Topics {
			says[t.Name] = append(says[t.Name], route.Saying{State: state, Hosts: t.Hosts})
			for _, h := range t.Hosts {
				meet(h.Broker)
			}
		}
	}
	if !answered {
		if err := ctx.Err(); err != nil {
			return out, fmt.Errorf("ask name servers: %w", err)
		}
		return out, rpcerr.With(rpcerr.ErrUnreachable, unreachable(out.Failures))
	}
	for name, s := range says {
		if t := route.Merge(route.Topic{Name: name}, s); len(t.Hosts) > 0 {
			out.Topics = append(out.Topics, t)
		}
	}
	slices.SortFunc(out.Topics, func(a, b route.Topic) int { return allocate.CompareStrings(a.Name, b.Name) })
	for _, b := range brokers {
		out.Brokers = append(out.Brokers, b)
	}
	slices.SortFunc(out.Brokers, func(a, b route.Broker) int { return allocate.CompareStrings(a.Name, b.Name) })
	return out, nil
}

// unreachable says that none of the servers answered, and why.
func unreachable(failures []Failure) error {
	list := make([]string, 0, len(failures))
	for _, f := range failures {
		list = append(list, f.String())
	}
	return fmt.Errorf("no name server answers: %s", strings.Join(list, "; "))
}

// unwrapped takes off the wrapping that says what was asked, where the reader
// knows.
func unwrapped(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		if _, ok := errors.AsType[*rpcerr.Error](inner); ok {
			return inner
		}
	}
	return err
}

// Broker is one broker as it describes itself.
type Broker struct {
	Name          string     `json:"name"`
	Address       string     `json:"address"`
	Cluster       string     `json:"cluster"`
	Epoch         uint64     `json:"epoch"`
	ConfigVersion uint64     `json:"config_version"`
	Reachable     bool       `json:"reachable"`
	Error         string     `json:"error,omitempty"` // why it is not reachable
	Version       string     `json:"version,omitempty"`
	Started       *time.Time `json:"started"`
	Topics        int64      `json:"topics"`
	Queues        int64      `json:"queues"`
	Groups        int64      `json:"groups"` // with members connected to it
	Sessions      int64      `json:"sessions"`
	StoredBytes   int64      `json:"stored_bytes"`
	FreeBytes     int64      `json:"free_bytes"` // of its disk
	Durability    string     `json:"durability,omitempty"`
	Writable      bool       `json:"writable"` // false while the disk is full
}

// Brokers describes all brokers, sorted by name; those that do not answer by
// what the name servers say.
func (c *Client) Brokers(ctx context.Context) ([]Broker, []Failure, error) {
	cluster, err := c.Cluster(ctx)
	if err != nil {
		return nil, nil, err
	}
	answers, errs := askBrokers(ctx, c, cluster.Brokers, func(ctx context.Context, a tacitv1.AdminServiceClient, _ route.Broker) (*tacitv1.DescribeBrokerResponse, error) {
		return a.DescribeBroker(ctx, &tacitv1.DescribeBrokerRequest{})
	})
	out := make([]Broker, len(cluster.Brokers))
	failures := cluster.Failures
	for i, r := range answers {
		entry := cluster.Brokers[i]
		b := &out[i]
		*b = Broker{Name: entry.Name, Address: entry.Address, Cluster: entry.Cluster, Epoch: entry.Stamp.Epoch, ConfigVersion: entry.Stamp.Version}
		if errs[i] == nil && r.GetEntry().GetBroker() != entry.Name {
			errs[i] = fmt.Errorf("calls itself %q", r.GetEntry().GetBroker())
		}
		if errs[i] != nil {
			f := failure(entry.Name, entry.Address, errs[i])
			b.Error = f.Reason
			failures = append(failures, f)
			continue
		}
		b.Reachable = true
		if e := r.GetEntry(); e != nil {
			b.Epoch, b.ConfigVersion, b.Cluster = e.GetBrokerEpoch(), e.GetConfigVersion(), e.GetCluster()
		}
		b.Version, b.Durability, b.Writable = r.GetVersion(), r.GetDurability(), r.GetWritable()
		b.Topics, b.Queues, b.Groups, b.Sessions = r.GetTopics(), r.GetQueues(), r.GetGroups(), r.GetSessions()
		b.StoredBytes, b.FreeBytes = r.GetStoredBytes(), r.GetFreeBytes()
		b.Started = timeOf(r.GetStarted())
	}
	return out, failures, nil
}
