package message

import (
	"fmt"
	"strconv"
	"strings"
)

// Limits of names and messages. Topic and group names follow RocketMQ: letters,
// digits and any of "%|_-". A group name leaves room for the "%RETRY%" of its
// retry topic within the limit of a topic name.
const (
	MaxTopicLength    = 127      // bytes
	MaxGroupLength    = 120      // bytes
	MaxClientIDLength = 255      // bytes
	MaxTagLength      = 255      // bytes
	MaxFilterTags     = 256      // per subscription
	MaxFilterLength   = 4 << 10  // bytes, tags and separators of a subscription
	MaxKeyLength      = 1024     // bytes, each key
	MaxKeys           = 64       // per message
	MaxPropertyBytes  = 32 << 10 // names and values of a message together
	MaxBodyBytes      = 4 << 20  // default; configurable at producer and broker
)

// LimitError says which field of a message or request is out of range.
type LimitError struct {
	Field string // as in the API: "topic", "body", ...
	Value string // the offending value, shortened; for sizes "N bytes"
	Limit string // what is allowed
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%s %s: must be %s", e.Field, e.Value, e.Limit)
}

// CheckTopic checks the name of a topic.
func CheckTopic(name string) error { return checkName("topic", name, MaxTopicLength) }

// CheckGroup checks the name of a consumer group.
func CheckGroup(name string) error { return checkName("group", name, MaxGroupLength) }

// CheckClientID checks a client id: 1 to 255 bytes of printable ASCII without
// blanks, so that ids stay readable in tables and logs.
func CheckClientID(id string) error {
	limit := "1 to " + strconv.Itoa(MaxClientIDLength) + " printable ASCII characters without blanks"
	if id == "" || len(id) > MaxClientIDLength {
		return &LimitError{Field: "client id", Value: shown(id), Limit: limit}
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] >= 0x7f {
			return &LimitError{Field: "client id", Value: shown(id), Limit: limit}
		}
	}
	return nil
}

// Check checks everything of m that a producer sets. maxBody is the limit of
// the body in bytes; 0 means [MaxBodyBytes].
func (m *Message) Check(maxBody int) error {
	if maxBody <= 0 {
		maxBody = MaxBodyBytes
	}
	if err := CheckTopic(m.Topic); err != nil {
		return err
	}
	if len(m.Tag) > MaxTagLength {
		return atMost("tag", len(m.Tag), MaxTagLength)
	}
	if strings.Contains(m.Tag, "||") {
		return &LimitError{Field: "tag", Value: shown(m.Tag), Limit: `without "||", which separates tags in a filter`}
	}
	if len(m.Keys) > MaxKeys {
		return &LimitError{Field: "keys", Value: strconv.Itoa(len(m.Keys)), Limit: "at most " + strconv.Itoa(MaxKeys)}
	}
	for _, k := range m.Keys {
		if k == "" {
			return &LimitError{Field: "key", Value: `""`, Limit: "not empty"}
		}
		if len(k) > MaxKeyLength {
			return atMost("key", len(k), MaxKeyLength)
		}
	}
	n := 0
	for k, v := range m.Properties {
		if k == "" {
			return &LimitError{Field: "property name", Value: `""`, Limit: "not empty"}
		}
		n += len(k) + len(v)
	}
	if n > MaxPropertyBytes {
		return atMost("properties", n, MaxPropertyBytes)
	}
	if len(m.Body) > maxBody {
		return atMost("body", len(m.Body), maxBody)
	}
	return nil
}

func atMost(field string, n, limit int) error {
	return &LimitError{Field: field, Value: "of " + strconv.Itoa(n) + " bytes", Limit: "at most " + strconv.Itoa(limit) + " bytes"}
}

func checkName(field, name string, limit int) error {
	if name == "" || len(name) > limit {
		return &LimitError{Field: field, Value: shown(name), Limit: fmt.Sprintf("1 to %d characters, is %d", limit, len(name))}
	}
	for i := range len(name) {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '%', c == '|', c == '_', c == '-':
		default:
			return &LimitError{Field: field, Value: shown(name), Limit: "letters, digits or any of %|_-"}
		}
	}
	return nil
}

// shown is a value that may come from anywhere, shortened.
func shown(s string) string { return fmt.Sprintf("%.64q", s) }
