package allocate_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/tacitmq/tacit/allocate"
)

// wild is a strategy from elsewhere that keeps no promise.
type wild struct {
	answer allocate.Assignment
	err    error
}

func (wild) Name() string { return "wild" }

func (w wild) Allocate(allocate.Input) (allocate.Assignment, error) { return w.answer, w.err }

func TestShareMakesAnyAnswerSafe(t *testing.T) {
	t.Parallel()
	q := func(broker string, id int32) allocate.Queue {
		return allocate.Queue{Topic: topic, Broker: broker, ID: id}
	}
	in := allocate.Input{
		Topic:   topic,
		Queues:  []allocate.Queue{q("b", 1), q("a", 10), q("a", 9), q("b", 2)},
		Members: []allocate.Member{{ClientID: "y"}, {ClientID: "x"}, {ClientID: "z"}},
	}
	s := wild{answer: allocate.Assignment{
		"x":      {q("b", 1), q("a", 9), q("unknown", 0)},
		"y":      {q("a", 10), q("a", 9), q("a", 10)},
		"nobody": {q("b", 2)},
		"z":      {{Topic: "other", Broker: "a", ID: 9}},
	}}
	want := allocate.Assignment{"x": {q("a", 9), q("b", 1)}, "y": {q("a", 10)}}
	if got, err := allocate.Share(s, in); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v (%v), want %v", got, err, want)
	}

	config := in
	config.Members = []allocate.Member{
		{ClientID: "y", Data: allocate.EncodeQueues(s.answer["y"])},
		{ClientID: "x", Data: allocate.EncodeQueues(s.answer["x"])},
	}
	if got, err := allocate.Share(allocate.Config{}, config); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("config: got %v (%v), want %v", got, err, want)
	}
}

func TestShareNamesStrategyAndTopicInItsErrors(t *testing.T) {
	t.Parallel()
	cause := errors.New("out of order")
	got, err := allocate.Share(wild{err: cause}, allocate.Input{Topic: topic})
	if got != nil || !errors.Is(err, cause) || !strings.Contains(err.Error(), `"orders" by wild`) {
		t.Errorf("got %v, %v", got, err)
	}
}
