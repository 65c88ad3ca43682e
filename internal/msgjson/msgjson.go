// Package msgjson is how programs print a message as JSON.
package msgjson

import (
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/tacitmq/tacit/message"
)

// printed is a message as JSON. A body that is no text is in body_base64.
type printed struct {
	Topic          string            `json:"topic"`
	Broker         string            `json:"broker"`
	Queue          int32             `json:"queue"`
	Offset         int64             `json:"offset"`
	Tag            string            `json:"tag,omitempty"`
	Keys           []string          `json:"keys,omitempty"`
	Properties     map[string]string `json:"properties,omitempty"`
	Born           time.Time         `json:"born"`
	Stored         time.Time         `json:"stored"`
	ReconsumeTimes int32             `json:"reconsume_times,omitempty"`
	Body           *string           `json:"body,omitempty"`
	Bytes          []byte            `json:"body_base64,omitempty"`
}

// Append appends m to b as one line of JSON, with its end.
func Append(b []byte, m *message.Message) ([]byte, error) {
	out := printed{
		Topic: m.Topic, Broker: m.Queue.Broker, Queue: m.Queue.ID, Offset: m.Offset, Tag: m.Tag, Keys: m.Keys, Properties: m.Properties,
		Born: m.BornTime.UTC(), Stored: m.StoreTime.UTC(), ReconsumeTimes: m.ReconsumeTimes,
	}
	if utf8.Valid(m.Body) {
		out.Body = new(string(m.Body))
	} else {
		out.Bytes = m.Body
	}
	line, err := json.Marshal(out)
	if err != nil {
		return b, fmt.Errorf("encode message: %w", err)
	}
	return append(append(b, line...), '\n'), nil
}
