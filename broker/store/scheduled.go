package store

import (
	"github.com/tacitmq/tacit/internal/batch"
)

// ScheduledFor counts the messages that are scheduled for a topic. It looks at
// most batches; more says that there are others.
func (st *State) ScheduledFor(topic string, most int) (messages int64, more bool, err error) {
	err = st.scan([]byte{keySchedule}, []byte{keySchedule + 1}, func(_, v []byte) (bool, error) {
		if most--; most < 0 {
			more = true
			return false, nil
		}
		if h, err := batch.Parse(v); err == nil && string(h.Topic) == topic { // what cannot be read is told of when it is due
			messages += int64(h.Count)
		}
		return true, nil
	})
	return messages, more, err
}
