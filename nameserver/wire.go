package nameserver

import (
	"fmt"
	"slices"

	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/internal/wire"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/nameserver/route"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// toRegister decodes a message of a broker.
func toRegister(stream uint64, m *tacitv1.RegisterRequest) (route.Register, error) {
	out := route.Register{Stream: stream, Full: m.GetFull(), Leaving: m.GetLeaving()}
	var err error
	if out.Entry, err = wire.ToBrokerEntry(m.GetEntry()); err != nil {
		return out, err
	}
	if out.Topics, err = wire.ToTopicConfigs("topics", m.GetTopics()); err != nil {
		return out, err
	}
	seen := make(map[string]bool, len(out.Topics))
	for i, c := range out.Topics {
		if seen[c.Topic] {
			return out, rpcerr.Invalid(fmt.Sprintf("topics[%d].topic", i), "%q: is there twice", c.Topic)
		}
		seen[c.Topic] = true
	}
	out.Removed, err = checkTopics("removed_topics", m.GetRemovedTopics())
	return out, err
}

// toTopics checks the topics that a client asks for and removes doubles.
func toTopics(names []string) ([]string, error) {
	names, err := checkTopics("topics", names)
	return unique(slices.Clone(names)), err
}

func checkTopics(field string, names []string) ([]string, error) {
	if len(names) > wire.MaxListed {
		return nil, rpcerr.Invalid(field, "has %d entries: must be at most %d", len(names), wire.MaxListed)
	}
	for i, name := range names {
		if err := message.CheckTopic(name); err != nil {
			return nil, rpcerr.In(err, fmt.Sprintf("%s[%d]", field, i))
		}
	}
	return names, nil
}
