package allocate

import (
	"fmt"
	"slices"
)

// Config gives each member the fixed list of queues that it announced as its
// data (see [EncodeQueues]), whatever the topic and whoever else is there. As in
// RocketMQ nothing is checked: a list may name queues of other topics, unknown
// queues, and queues that others list too, which [Share] sorts out; and a queue
// that nobody lists is consumed by nobody.
type Config struct{}

// Name returns "config".
func (Config) Name() string { return nameConfig }

// Allocate returns the lists as they were announced. It fails with [ErrBadData],
// naming the member, if one cannot be decoded.
func (Config) Allocate(in Input) (Assignment, error) {
	out := make(Assignment, len(in.Members))
	for _, m := range in.Members {
		if _, ok := out[m.ClientID]; ok {
			continue
		}
		queues, err := DecodeQueues(m.Data)
		if err != nil {
			return nil, fmt.Errorf("member %q: %w", m.ClientID, err)
		}
		if len(queues) > 0 {
			out[m.ClientID] = slices.Clip(queues)
		}
	}
	return out, nil
}

func (Config) checkData(data []byte) error {
	_, err := DecodeQueues(data)
	return err
}
