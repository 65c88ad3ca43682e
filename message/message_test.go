package message_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tacitmq/tacit/message"
)

func TestNamesAreCheckedAgainstTheRulesOfTheField(t *testing.T) {
	for _, c := range []struct {
		name  string
		topic bool
		group bool
	}{
		{"orders", true, true},
		{"%RETRY%billing", true, true},
		{"a|b_c-9", true, true},
		{"", false, false},
		{"with space", false, false},
		{"dotted.name", false, false},
		{"schlüssel", false, false},
		{"nul\x00", false, false},
		{strings.Repeat("x", 120), true, true},
		{strings.Repeat("x", 127), true, false},
		{strings.Repeat("x", 128), false, false},
	} {
		if err := message.CheckTopic(c.name); (err == nil) != c.topic {
			t.Errorf("topic %.20q: %v", c.name, err)
		}
		if err := message.CheckGroup(c.name); (err == nil) != c.group {
			t.Errorf("group %.20q: %v", c.name, err)
		}
	}
	if err := message.CheckTopic(message.RetryTopic(strings.Repeat("g", message.MaxGroupLength))); err != nil {
		t.Errorf("the retry topic of the longest group: %v", err)
	}
}

func TestClientIDsArePrintable(t *testing.T) {
	for id, ok := range map[string]bool{
		"10.0.0.1@17#ab": true, "": false, "a b": false, "a\n": false, "ü": false,
		strings.Repeat("x", 255): true, strings.Repeat("x", 256): false,
	} {
		if err := message.CheckClientID(id); (err == nil) != ok {
			t.Errorf("%.20q: %v", id, err)
		}
	}
}

func TestLimitErrorsNameFieldValueAndLimit(t *testing.T) {
	ok := func() message.Message { return message.Message{Topic: "T"} }
	for _, c := range []struct {
		change func(m *message.Message)
		want   string
	}{
		{func(*message.Message) {}, ""},
		{func(m *message.Message) { m.Topic = "a b" }, `topic "a b": must be letters, digits or any of %|_-`},
		{func(m *message.Message) { m.Tag = strings.Repeat("t", 256) }, "tag of 256 bytes: must be at most 255 bytes"},
		{func(m *message.Message) { m.Tag = "a || b" }, `tag "a || b": must be without "||", which separates tags in a filter`},
		{func(m *message.Message) { m.Keys = make([]string, 65) }, "keys 65: must be at most 64"},
		{func(m *message.Message) { m.Keys = []string{""} }, `key "": must be not empty`},
		{func(m *message.Message) { m.Keys = []string{strings.Repeat("k", 1025)} }, "key of 1025 bytes: must be at most 1024 bytes"},
		{func(m *message.Message) { m.Properties = map[string]string{"": "v"} }, `property name "": must be not empty`},
		{func(m *message.Message) { m.Properties = map[string]string{"n": strings.Repeat("v", 32<<10)} }, "properties of 32769 bytes: must be at most 32768 bytes"},
		{func(m *message.Message) { m.Body = make([]byte, 4<<20) }, ""},
		{func(m *message.Message) { m.Body = make([]byte, 4<<20+1) }, "body of 4194305 bytes: must be at most 4194304 bytes"},
	} {
		m := ok()
		c.change(&m)
		err := m.Check(0)
		if got := fmt.Sprint(err); err == nil && c.want != "" || err != nil && got != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
		var limit *message.LimitError
		if err != nil && !errors.As(err, &limit) {
			t.Errorf("%v is no LimitError", err)
		}
	}
	m := ok()
	m.Body = make([]byte, 11)
	if err := m.Check(10); err == nil {
		t.Error("the configured limit is not used")
	}
}
