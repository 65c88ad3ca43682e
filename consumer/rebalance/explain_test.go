package rebalance

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

func TestExplainIsWhatMembersCompute(t *testing.T) {
	v := bigView(4, 40)
	x, err := Explain(Question{Group: "g", View: v, AddMembers: []session.Member{{ClientID: "new"}}})
	if err != nil {
		t.Fatal(err)
	}
	if x.Strategy != "sticky" || len(x.Moved) != 8 || x.Minimum != 8 || len(x.Members) != 5 || len(x.Unowned) != 0 {
		t.Errorf("a join: %d moved, at least %d, %d members, by %s", len(x.Moved), x.Minimum, len(x.Members), x.Strategy)
	}
	for _, m := range x.Members {
		if m.After != 8 || m.Joins != (m.ClientID == "new") {
			t.Errorf("%+v", m)
		}
	}
	if !strings.HasPrefix(x.Text, "new joins. The strategy is sticky, the first in the order of ") ||
		!strings.HasSuffix(x.Text, "Queues: 40, 8 for each member. Queues that change owner: 8; no balanced assignment needs fewer than 8.") {
		t.Errorf("%q", x.Text)
	}
	same, err := Explain(Question{Group: "g", View: v})
	if err != nil || len(same.Moved) != 0 || session.OwnersDigest("t", same.After) != v.Owners {
		t.Errorf("a settled group: %d moved, %v", len(same.Moved), err)
	}
	less, err := Explain(Question{Group: "g", View: v, RemoveMembers: []string{v.Members[0].ClientID}, RemoveQueues: v.Queues[:2]})
	if err != nil || len(less.Queues) != 38 || len(less.Members) != 3 {
		t.Errorf("a leave: %d queues, %d members, %v", len(less.Queues), len(less.Members), err)
	}
}

func TestExplainSaysWhyNothingCanBeComputed(t *testing.T) {
	v := bigView(2, 20)
	if _, err := Explain(Question{Group: "g", View: v, RemoveMembers: []string{v.Members[0].ClientID, v.Members[1].ClientID}}); !errors.Is(err, allocate.ErrNoMembers) {
		t.Errorf("nobody left: %v", err)
	}
	if _, err := Explain(Question{Group: "g", View: v, RemoveQueues: v.Queues}); !errors.Is(err, allocate.ErrNoQueues) {
		t.Errorf("no queues: %v", err)
	}
	other := session.Member{ClientID: "new", Offers: []session.Offer{{Strategy: "averagely"}}}
	if _, err := Explain(Question{Group: "g", View: v, AddMembers: []session.Member{other}}); !errors.Is(err, ErrNoCommonStrategy) {
		t.Errorf("nothing in common: %v", err)
	}
	v.Members[0].Offers = []session.Offer{{Strategy: "ours"}}
	v.Members[1].Offers = v.Members[0].Offers
	if _, err := Explain(Question{Group: "g", View: v}); !errors.Is(err, allocate.ErrUnknownStrategy) {
		t.Errorf("unknown strategy: %v", err)
	}
	if _, err := Explain(Question{Group: "g", View: v, Strategies: []allocate.Strategy{nil}}); err == nil {
		t.Error("a nil strategy is taken")
	}
}

func TestOwnersAreThoseOfTheSessionPackage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := chance{func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "n") }}
		var queues []allocate.Queue
		for range c.pick(12) {
			queues = append(queues, c.queue())
		}
		queues = cleanQueues("a", queues)
		members := sortMembers(many(c, 5, c.member))
		owner, all := owners(queues, members)
		if got, want := ownersDigest("a", queues, members, owner, all), session.OwnersDigest("a", session.Owners(members)); got != want {
			t.Fatalf("digest %x, want %x", got, want)
		}
		want := slices.DeleteFunc(session.Owners(members), func(h session.Holding) bool { return !slices.Contains(queues, h.Queue) })
		if got := holdingsOf(queues, members, owner); !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}

// rogue gives queues twice, to strangers, and some that do not exist.
type rogue struct{}

func (rogue) Name() string { return "rogue" }

func (rogue) Allocate(in allocate.Input) (allocate.Assignment, error) {
	out := allocate.Assignment{"stranger": in.Queues, "": in.Queues}
	for _, m := range in.Members {
		out[m.ClientID] = append(slices.Clone(in.Queues), allocate.Queue{Topic: in.Topic, Broker: "nowhere"}, in.Queues[0])
	}
	for i := range in.Queues {
		in.Queues[i].Topic = "scribbled on"
	}
	for i := range in.Members {
		in.Members[i].ClientID = "scribbled on"
	}
	return out, nil
}

func TestResultOfACustomStrategyIsMadeSafe(t *testing.T) {
	v := bigView(3, 30)
	for i := range v.Members {
		v.Members[i].Offers = []session.Offer{{Strategy: "rogue"}}
	}
	x, err := Explain(Question{Group: "g", View: v, Strategies: []allocate.Strategy{rogue{}}})
	if err != nil {
		t.Fatal(err)
	}
	if len(x.After) != len(v.Queues) {
		t.Fatalf("%d of %d queues are given", len(x.After), len(v.Queues))
	}
	for i, h := range x.After {
		if h.ClientID != v.Members[0].ClientID || h.Queue != v.Queues[i] || i > 0 && x.After[i-1].Queue == h.Queue {
			t.Fatalf("%v is given to %s", h.Queue, h.ClientID)
		}
	}
	if v.Queues[0].Topic != "t" {
		t.Error("the strategy has changed the view")
	}
}
