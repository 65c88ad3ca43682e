package assignor

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tacitmq/tacit/allocate"
)

type recordedMember struct {
	ID         string
	Topics     []string
	InstanceID string
	Rack       string
	Owned      []string
	Generation *int64
}

type recorded struct {
	Cases []struct {
		Name, Assignor   string
		Members          []recordedMember
		Topics           map[string]int
		Racks            map[string][][]string
		Expected         map[string][]string
		OrderIndependent bool
		IterationOrder   []string
	}
	Sequences []struct {
		Name    string
		Topics  map[string]int
		Members []recordedMember
		Steps   []struct {
			Op, Member, Topic string
			Topics            []string
			Partitions        int
		}
		Runs map[string][]struct {
			Moved, Orphaned, Fresh, Min, Max int
			Rebalances                       []struct {
				Generation       int64
				Expected         map[string][]string
				OrderIndependent bool
				IterationOrder   []string
			}
		}
	}
}

func readRecorded(t testing.TB) (out recorded) {
	t.Helper()
	raw, err := os.ReadFile("testdata/assign-kafka.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	if len(out.Cases) < 220 || len(out.Sequences) < 12 {
		t.Fatalf("%d cases, %d sequences", len(out.Cases), len(out.Sequences))
	}
	return out
}

// partition is the queue that stands for Kafka's topic-n.
func partition(t testing.TB, text string) allocate.Queue {
	t.Helper()
	at := strings.LastIndexByte(text, '-')
	n, err := strconv.Atoi(text[at+1:])
	if err != nil {
		t.Fatal(err)
	}
	return queue(text[:at], n)
}

func queue(topic string, n int) allocate.Queue {
	return allocate.Queue{Topic: topic, Broker: "b", ID: int32(n)}
}

func partitions(topics map[string]int) map[string][]allocate.Queue {
	out := map[string][]allocate.Queue{}
	for topic, count := range topics {
		for n := range count {
			out[topic] = append(out[topic], queue(topic, n))
		}
	}
	return out
}

func (m recordedMember) member(t testing.TB) Member {
	t.Helper()
	out := Member{ID: m.ID, Instance: m.InstanceID, Rack: m.Rack, Topics: m.Topics, Generation: NoGeneration}
	for _, p := range m.Owned {
		out.Owned = append(out.Owned, partition(t, p))
	}
	if m.Generation != nil {
		out.Generation = *m.Generation
	}
	return out
}

// texts turns an answer into the form of the recorded ones.
func texts(all map[string][]allocate.Queue) map[string][]string {
	out := make(map[string][]string, len(all))
	for id, queues := range all {
		out[id] = []string{}
		for _, q := range queues {
			out[id] = append(out[id], fmt.Sprintf("%s-%d", q.Topic, q.ID))
		}
	}
	return out
}

func byName(t testing.TB, name string, walk []string) Assignor {
	t.Helper()
	a, err := ByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := a.(sticky); ok {
		s.walk = walk
		return s
	}
	return a
}

func assign(t testing.TB, a Assignor, in Input) map[string][]allocate.Queue {
	t.Helper()
	out, err := a.Assign(in)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func sameTexts(a, b map[string][]string) bool { return maps.EqualFunc(a, b, slices.Equal) }

// TestAnswersEqualThoseOfKafka compares all recorded cases exactly. Where Kafka's
// answer hangs on the order of a hash table, the recorded order is taken.
func TestAnswersEqualThoseOfKafka(t *testing.T) {
	t.Parallel()
	for _, c := range readRecorded(t).Cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			in := Input{Topics: partitions(c.Topics), Racks: c.Racks}
			for _, m := range c.Members {
				in.Members = append(in.Members, m.member(t))
			}
			got := texts(assign(t, byName(t, c.Assignor, c.IterationOrder), in))
			if !sameTexts(got, c.Expected) {
				t.Errorf("got  %v\nwant %v", got, c.Expected)
			}
		})
	}
}
