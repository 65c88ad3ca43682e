package allocate

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
)

// The recorded cases come from Apache RocketMQ's own classes (Apache License 2.0)
// at commit 8fc57f1468. Each asks as one client, from lists that may be null, not
// contain it or contain it twice; recorded.ask asks our strategies, which answer
// for all members, in that way.

type recordedQueue struct {
	Topic   *string
	Broker  string
	QueueID int32
}

func (q recordedQueue) queue(topic string) Queue {
	if q.Topic != nil {
		topic = *q.Topic
	}
	return Queue{Topic: topic, Broker: q.Broker, ID: q.QueueID}
}

type recordedParams struct {
	MessageQueues []recordedQueue
	Rooms         []string
	VirtualNodes  int
	Inner         string
	InnerParams   *recordedParams
	BrokerRooms   map[string]string
	ConsumerRooms map[string]string
}

type recorded struct {
	ID            string
	Strategy      string
	Params        recordedParams
	Topic         string
	Queues        []recordedQueue
	Consumers     []string
	CurrentCID    string // null and "" mean the same
	Expected      []recordedQueue
	ExpectedError string
}

func TestRocketMQStrategiesGiveTheRecordedAnswers(t *testing.T) {
	t.Parallel()
	cases := readRecorded(t)
	if len(cases) != 260 {
		t.Fatalf("%d recorded cases, want 260", len(cases))
	}
	for _, c := range cases {
		t.Run(c.ID, func(t *testing.T) {
			t.Parallel()
			got, err := c.ask()
			if kind := errorKind(err); kind != c.ExpectedError {
				t.Fatalf("error %v (%s), want kind %q", err, kind, c.ExpectedError)
			}
			var want []Queue
			for _, q := range c.Expected {
				want = append(want, q.queue(c.Topic))
			}
			if !slices.Equal(got, want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
		})
	}
}

// errNoCurrentCID is an error that only a question by one client can make.
var errNoCurrentCID = errors.New("no current client id")

// ask answers as the original does for c.CurrentCID.
func (c recorded) ask() ([]Queue, error) {
	s, err := recordedStrategy(c.Strategy, c.Params)
	if err != nil {
		return nil, err
	}
	in := Input{Group: "group", Topic: c.Topic}
	for _, q := range c.Queues {
		in.Queues = append(in.Queues, q.queue(c.Topic))
	}
	slices.SortStableFunc(in.Queues, Queue.Compare)
	ids := slices.Clone(c.Consumers)
	slices.SortStableFunc(ids, CompareStrings)
	for _, id := range ids {
		in.Members = append(in.Members, Member{ClientID: id, Data: recordedData(c.Strategy, c.Params, id)})
	}
	if c.Strategy == "CONFIG" {
		// The original looks at nothing but its own list.
		in.Queues, in.Members = nil, []Member{{ClientID: c.CurrentCID, Data: recordedData(c.Strategy, c.Params, c.CurrentCID)}}
	} else {
		switch { // what the original checks before it looks any further
		case c.CurrentCID == "":
			return nil, errNoCurrentCID
		case in.check() != nil:
			// The strategy itself must say so.
		case !slices.Contains(ids, c.CurrentCID):
			return nil, nil
		}
	}
	before := fmt.Sprint(in)
	all, err := s.Allocate(in)
	if after := fmt.Sprint(in); before != after {
		return nil, fmt.Errorf("Allocate changed its input from %s to %s", before, after)
	}
	return all[c.CurrentCID], err
}

func recordedStrategy(name string, p recordedParams) (Strategy, error) {
	switch name {
	case "AVG":
		return Averagely{}, nil
	case "AVG_BY_CIRCLE":
		return AveragelyByCircle{}, nil
	case "CONFIG":
		return Config{}, nil
	case "MACHINE_ROOM":
		if p.Rooms == nil {
			return &MachineRoom{}, nil // null there, the zero value here
		}
		return newMachineRoom(p.Rooms), nil
	case "CONSISTENT_HASH":
		return NewConsistentHash(p.VirtualNodes)
	case "MACHINE_ROOM_NEARBY":
		inner, err := recordedStrategy(p.Inner, *p.InnerParams)
		if err != nil {
			return nil, err
		}
		if p.BrokerRooms == nil {
			return nil, errors.New("no room resolver")
		}
		return NewMachineRoomNearby(inner, p.BrokerRooms)
	}
	return nil, fmt.Errorf("strategy %q", name)
}

func recordedData(strategy string, p recordedParams, id string) []byte {
	switch strategy {
	case "CONFIG":
		var queues []Queue
		for _, q := range p.MessageQueues {
			queues = append(queues, q.queue(""))
		}
		return EncodeQueues(queues)
	case "MACHINE_ROOM_NEARBY":
		return EncodeZone(p.ConsumerRooms[id], recordedData(p.Inner, *p.InnerParams, id))
	}
	return nil
}

func errorKind(err error) string {
	for kind, target := range map[string]error{
		"EMPTY_CURRENT_CID":      errNoCurrentCID,
		"EMPTY_QUEUES":           ErrNoQueues,
		"EMPTY_CONSUMERS":        ErrNoMembers,
		"EMPTY_QUEUE_ROOM":       ErrNoBrokerZone,
		"EMPTY_CONSUMER_ROOM":    ErrNoMemberZone,
		"NEGATIVE_VIRTUAL_NODES": ErrVirtualNodes,
		"NULL_ROOM_SET":          ErrNoRooms,
	} {
		if errors.Is(err, target) {
			return kind
		}
	}
	if err != nil {
		return "OTHER"
	}
	return ""
}

func readRecorded(t *testing.T) []recorded {
	t.Helper()
	raw, err := os.ReadFile("testdata/allocate-rocketmq.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []recorded
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}
