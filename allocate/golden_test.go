package allocate_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/tacitmq/tacit/allocate"
)

// TestScoredStrategiesKeepTheirWireContract checks answers of a separate program,
// in another language, that sorts all pairs. Changed answers need a new name for
// the strategy, never new golden values.
func TestScoredStrategiesKeepTheirWireContract(t *testing.T) {
	t.Parallel()
	type queue struct {
		Topic, Broker string
		ID            int32
	}
	var golden struct {
		Scores []struct {
			Queue    queue
			ClientID string
			Score    string
			Extra    string
		}
		Cases []struct {
			Strategy, Topic string
			Queues          []queue
			Members         []struct {
				ID    string
				Owned []queue
			}
			Expected [][2]json.RawMessage
		}
	}
	raw, err := os.ReadFile("testdata/sticky-golden.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Scores) < 5 || len(golden.Cases) < 40 {
		t.Fatalf("%d scores and %d cases", len(golden.Scores), len(golden.Cases))
	}
	for _, s := range golden.Scores {
		got := pairOf(allocate.Queue{Topic: s.Queue.Topic, Broker: s.Queue.Broker, ID: s.Queue.ID}, s.ClientID).score
		if fmt.Sprintf("%016x", got) != s.Score {
			t.Errorf("score of %v and %q: %016x, want %s", s.Queue, s.ClientID, got, s.Score)
		}
		if got := allocate.NewHash().String(s.Queue.Topic).String(s.ClientID).Sum64(); fmt.Sprintf("%016x", got) != s.Extra {
			t.Errorf("extra of %q and %q: %016x, want %s", s.Queue.Topic, s.ClientID, got, s.Extra)
		}
	}
	for i, c := range golden.Cases {
		queues := func(list []queue) (out []allocate.Queue) {
			for _, q := range list {
				out = append(out, allocate.Queue{Topic: c.Topic, Broker: q.Broker, ID: q.ID})
			}
			return out
		}
		in := allocate.Input{Group: "group", Topic: c.Topic, Queues: queues(c.Queues)}
		for _, m := range c.Members {
			in.Members = append(in.Members, allocate.Member{ClientID: m.ID, Owned: queues(m.Owned)})
		}
		s, err := allocate.ByName(c.Strategy)
		if err != nil {
			t.Fatal(err)
		}
		got, err := allocate.Share(s, in)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range c.Expected {
			var id string
			var want []queue
			if err := json.Unmarshal(entry[0], &id); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(entry[1], &want); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got[id], queues(want)) {
				t.Errorf("case %d, %s: %q gets\n%v, want\n%v", i, c.Strategy, id, got[id], queues(want))
			}
		}
	}
}
