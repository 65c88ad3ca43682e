package wire

import (
	"net"
	"strconv"

	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/route"
)

// BrokerEntry encodes what a broker says of itself.
func BrokerEntry(b route.Broker) *tacitv1.BrokerEntry {
	return &tacitv1.BrokerEntry{
		Broker: b.Name, Address: b.Address, Cluster: b.Cluster, BrokerEpoch: b.Stamp.Epoch, ConfigVersion: b.Stamp.Version,
	}
}

// ToBrokerEntry decodes what a broker says of itself.
func ToBrokerEntry(m *tacitv1.BrokerEntry) (route.Broker, error) {
	b := route.Broker{
		Name: m.GetBroker(), Address: m.GetAddress(), Cluster: m.GetCluster(),
		Stamp: route.Stamp{Epoch: m.GetBrokerEpoch(), Version: m.GetConfigVersion()},
	}
	if m == nil {
		return b, rpcerr.Invalid("entry", "is missing")
	}
	if err := checkBroker("entry.broker", b.Name); err != nil {
		return b, err
	}
	if err := CheckAddress(b.Address); err != nil {
		return b, rpcerr.In(err, "entry")
	}
	if err := route.CheckCluster(b.Cluster); err != nil {
		return b, rpcerr.Invalid("entry.cluster", "%s", err.Error())
	}
	if b.Stamp.Epoch == 0 {
		return b, rpcerr.Invalid("entry.broker_epoch", "0: must be 1 or greater")
	}
	return b, nil
}

// CheckAddress checks that an address is host:port with a host and a port that
// can be dialled.
func CheckAddress(address string) error {
	if len(address) > route.MaxNameLength {
		return rpcerr.Invalid("address", "of %d bytes: must be at most %d bytes", len(address), route.MaxNameLength)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return rpcerr.Invalid("address", "%q: must be host:port", address)
	}
	for i := range len(host) {
		if host[i] <= ' ' || host[i] >= 0x7f || host[i] == '<' || host[i] == '>' || host[i] == '/' {
			return rpcerr.Invalid("address", "%q: must be host:port", address)
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return rpcerr.Invalid("address", "%q: port must be 1 to 65535", address)
	}
	return nil
}

// TopicConfig encodes one topic on one broker.
func TopicConfig(c route.Config) *tacitv1.TopicConfig {
	return &tacitv1.TopicConfig{
		Topic: c.Topic, ReadQueues: c.ReadQueues, WriteQueues: c.WriteQueues,
		Permission: &tacitv1.Permission{Readable: c.Readable, Writable: c.Writable},
	}
}

// ToTopicConfig decodes one topic on one broker. More writable than readable
// queues are refused: nobody could read what is written to the rest.
func ToTopicConfig(m *tacitv1.TopicConfig) (route.Config, error) {
	c := route.Config{
		Topic: m.GetTopic(), ReadQueues: m.GetReadQueues(), WriteQueues: m.GetWriteQueues(),
		Readable: m.GetPermission().GetReadable(), Writable: m.GetPermission().GetWritable(),
	}
	if err := message.CheckTopic(c.Topic); err != nil {
		return c, fieldOf("topic", err)
	}
	if c.ReadQueues < 0 || c.ReadQueues > route.MaxQueues {
		return c, rpcerr.Invalid("read_queues", "%d: must be 0 to %d", c.ReadQueues, route.MaxQueues)
	}
	if c.WriteQueues < 0 || c.WriteQueues > c.ReadQueues {
		return c, rpcerr.Invalid("write_queues", "%d: must be 0 to read_queues, which is %d", c.WriteQueues, c.ReadQueues)
	}
	return c, nil
}

// TopicConfigs encodes the topics of a broker.
func TopicConfigs(cs []route.Config) []*tacitv1.TopicConfig { return list(cs, TopicConfig) }

// ToTopicConfigs decodes the topics of a broker; field is their name in errors.
func ToTopicConfigs(field string, ms []*tacitv1.TopicConfig) ([]route.Config, error) {
	return unlist(field, ms, MaxListed, ToTopicConfig)
}

// TopicRoute encodes the route of a topic.
func TopicRoute(t route.Topic) *tacitv1.TopicRoute {
	return &tacitv1.TopicRoute{Topic: t.Name, Brokers: list(t.Hosts, func(h route.Host) *tacitv1.BrokerRoute {
		return &tacitv1.BrokerRoute{Entry: BrokerEntry(h.Broker), Config: TopicConfig(h.Config)}
	})}
}

// TopicRoutes encodes routes.
func TopicRoutes(ts []route.Topic) []*tacitv1.TopicRoute { return list(ts, TopicRoute) }

// ToTopicRoute decodes the route of a topic.
func ToTopicRoute(m *tacitv1.TopicRoute) (route.Topic, error) {
	t := route.Topic{Name: m.GetTopic()}
	if err := message.CheckTopic(t.Name); err != nil {
		return t, err
	}
	hosts, err := unlist("brokers", m.GetBrokers(), MaxListed, func(m *tacitv1.BrokerRoute) (h route.Host, err error) {
		if h.Broker, err = ToBrokerEntry(m.GetEntry()); err != nil {
			return h, err
		}
		if h.Config, err = ToTopicConfig(m.GetConfig()); err != nil {
			return h, rpcerr.In(err, "config")
		}
		if h.Config.Topic != t.Name {
			return h, rpcerr.Invalid("config.topic", "%q: must be %q as in the route", h.Config.Topic, t.Name)
		}
		return h, nil
	})
	t.Hosts = hosts
	return t, err
}

// ToTopicRoutes decodes routes; field is their name in errors.
func ToTopicRoutes(field string, ms []*tacitv1.TopicRoute) ([]route.Topic, error) {
	return unlist(field, ms, MaxListed, ToTopicRoute)
}

// BrokerEntries encodes broker entries.
func BrokerEntries(bs []route.Broker) []*tacitv1.BrokerEntry { return list(bs, BrokerEntry) }

// ToBrokerEntries decodes broker entries; field is their name in errors.
func ToBrokerEntries(field string, ms []*tacitv1.BrokerEntry) ([]route.Broker, error) {
	return unlist(field, ms, MaxListed, ToBrokerEntry)
}

// WatchUpdate decodes a push of a name server.
func WatchUpdate(m *tacitv1.WatchRoutesResponse) (route.Update, error) {
	u := route.Update{Full: m.GetFull(), Warming: m.GetWarming(), HasBrokers: len(m.GetBrokers()) > 0}
	var err error
	if u.Topics, err = ToTopicRoutes("routes", m.GetRoutes()); err != nil {
		return u, err
	}
	u.Brokers, err = ToBrokerEntries("brokers", m.GetBrokers())
	return u, err
}

// GetUpdate decodes an answer of a name server, which is the whole truth for
// what was asked.
func GetUpdate(m *tacitv1.GetRoutesResponse) (route.Update, error) {
	u := route.Update{Full: true, Warming: m.GetWarming(), HasBrokers: len(m.GetBrokers()) > 0}
	var err error
	if u.Topics, err = ToTopicRoutes("routes", m.GetRoutes()); err != nil {
		return u, err
	}
	u.Brokers, err = ToBrokerEntries("brokers", m.GetBrokers())
	return u, err
}
