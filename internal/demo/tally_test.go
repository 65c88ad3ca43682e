package demo

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/admin"
)

func ms(n int) time.Time { return time.Unix(1000, 0).Add(time.Duration(n) * time.Millisecond) }

func q(id int32) allocate.Queue { return allocate.Queue{Topic: Topic, Broker: "b", ID: id} }

// story plays steps like "10 c1 own 0,1" or "12 c1 revoked 0"; times are in
// milliseconds, and steps may come in any order.
func story(t *testing.T, steps ...string) *tally {
	t.Helper()
	tl := newTally()
	for _, s := range steps {
		var at int
		var who, what, ids string
		if n, err := fmt.Sscan(s, &at, &who, &what, &ids); n < 3 {
			t.Fatalf("step %q: %v", s, err)
		}
		var queues []allocate.Queue
		for id := range strings.SplitSeq(ids, ",") {
			var n int32
			if _, err := fmt.Sscan(id, &n); err == nil {
				queues = append(queues, q(n))
			}
		}
		switch what {
		case "own":
			tl.own(who, queues, ms(at), true, true)
		case "revoked":
			tl.own(who, queues, ms(at), false, true)
		case "lost":
			tl.own(who, queues, ms(at), false, false)
		case "gone":
			tl.gone(who, ms(at))
		default:
			t.Fatalf("step %q", s)
		}
	}
	return tl
}

// Three start, and the first two are seen before the third.
func TestFirstOwnersAreTheStateBeforeTheStart(t *testing.T) {
	ta := newTally()
	at := time.Unix(0, 0)
	queues := make([]allocate.Queue, 6)
	for i := range queues {
		queues[i] = allocate.Queue{Topic: Topic, Broker: "a", ID: int32(i)}
	}
	ta.own("c1", queues[:3], at, true, true)
	ta.own("c2", queues[3:], at, true, true)
	for i, from := range map[int]string{2: "c1", 5: "c2"} {
		ta.own(from, queues[i:i+1], at.Add(time.Second), false, true)
		ta.own("c3", queues[i:i+1], at.Add(2*time.Second), true, true)
	}
	before := allocate.Owners{}
	ta.firstOwners(before)
	m := ta.measure(at, at.Add(time.Minute))
	if least := allocate.MinimumMoves(before, queues, []string{"c1", "c2", "c3"}); m.moved != 2 || least != 2 {
		t.Errorf("moved %d, minimum %d, want 2 and 2", m.moved, least)
	}
	before = allocate.Owners{queues[0]: "c9"}
	if ta.firstOwners(before); before[queues[0]] != "c9" {
		t.Error("an owner before was replaced")
	}
}

func TestMovesAndPausesAreThoseOfTheTimeLookedAt(t *testing.T) {
	for _, c := range []struct {
		name          string
		steps         []string
		from, to      int
		moved, paused int
		longest       int
	}{
		{"first owners are no moves and no pauses", []string{"10 c1 own 0,1"}, 0, 100, 0, 0, 0},
		{"a queue taken and given", []string{"10 c1 own 0,1", "50 c1 revoked 0", "57 c2 own 0"}, 40, 100, 1, 1, 7},
		{"reports in another order", []string{"57 c2 own 0", "50 c1 revoked 0", "10 c1 own 0,1"}, 40, 100, 1, 1, 7},
		{"what was before does not count", []string{"10 c1 own 0", "20 c1 revoked 0", "30 c2 own 0"}, 40, 100, 0, 0, 0},
		{"back at its owner is no move", []string{"10 c1 own 0", "50 c1 lost 0", "58 c1 own 0"}, 40, 100, 0, 1, 8},
		{"to and fro counts twice", []string{"10 c1 own 0", "50 c1 revoked 0", "52 c2 own 0", "60 c2 revoked 0", "65 c1 own 0"}, 40, 100, 2, 1, 5},
		{"killed", []string{"10 c1 own 0,1", "20 c2 own 2", "50 c1 gone", "80 c2 own 0", "85 c2 own 1"}, 40, 100, 2, 2, 35},
		{"nobody takes it", []string{"10 c1 own 0", "50 c1 gone"}, 40, 100, 0, 1, 50},
		{"the pause began before", []string{"10 c1 own 0", "20 c1 revoked 0", "60 c2 own 0"}, 40, 100, 1, 1, 20},
		{"later changes do not count", []string{"10 c1 own 0", "120 c1 revoked 0", "130 c2 own 0"}, 40, 100, 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			tl := story(t, c.steps...)
			m := tl.measure(ms(c.from), ms(c.to))
			if m.moved != c.moved || len(m.pauses) != c.paused || m.maxPause != time.Duration(c.longest)*time.Millisecond || m.twice != 0 {
				t.Errorf("measured %+v, want moved %d, paused %d, longest %d ms", m, c.moved, c.paused, c.longest)
			}
		})
	}
}

func TestTwoOwnersAtOnceAreSeen(t *testing.T) {
	tl := story(t, "10 c1 own 0", "50 c2 own 0", "55 c1 revoked 0")
	if m := tl.measure(ms(40), ms(100)); m.twice != 1 {
		t.Errorf("measured %+v, want two owners once", m)
	}
	// One that lost a queue may hear of it after the next owner.
	tl = story(t, "10 c1 own 0", "50 c2 own 0", "55 c1 lost 0")
	if m := tl.measure(ms(40), ms(100)); m.twice != 0 || m.moved != 1 {
		t.Errorf("measured %+v, want one move and never two owners", m)
	}
}

func TestOwnersAreThoseOfNow(t *testing.T) {
	tl := story(t, "10 c1 own 0,1,2", "50 c1 revoked 0", "51 c2 own 0", "60 c1 lost 2")
	if got := tl.owners(); !maps.Equal(got, allocate.Owners{q(0): "c2", q(1): "c1"}) {
		t.Errorf("owners %v", got)
	}
	if last := tl.lastChange(ms(51)); !last.Equal(ms(60)) {
		t.Errorf("last change %v", last)
	}
	if last := tl.lastChange(ms(61)); !last.IsZero() {
		t.Errorf("last change %v, want none", last)
	}
}

func TestWaitingMessagesPauseAQueueThatHasAnOwner(t *testing.T) {
	for _, c := range []struct {
		name    string
		sent    []int // when each message was sent
		handed  []int // and handed out
		longest int   // 0: no pause
	}{
		{"steady", []int{0, 20, 40, 60}, []int{2, 22, 43, 61}, 0},
		{"the first one may wait", []int{0, 20, 400}, []int{390, 391, 402}, 0},
		{"the broker was away", []int{0, 20, 40, 60}, []int{2, 22, 260, 261}, 220},
		{"the producer was away", []int{0, 20, 600}, []int{2, 22, 602}, 0},
		{"below the limit", []int{0, 20, 40}, []int{2, 22, 130}, 0},
		{"counted from the message before", []int{0, 10, 11}, []int{2, 200, 340}, 190},
	} {
		t.Run(c.name, func(t *testing.T) {
			tl := story(t, "0 c1 own 0")
			for i, at := range c.sent {
				tl.send(uint64(i), ms(at))
			}
			for i, at := range slices.Backward(c.handed) { // in any order
				tl.hand(q(0), uint64(i), ms(at))
			}
			m := tl.measure(ms(0), ms(1000))
			if m.maxPause != time.Duration(c.longest)*time.Millisecond {
				t.Errorf("longest pause %v, want %d ms", m.maxPause, c.longest)
			}
		})
	}
}

func TestMessagesAreCountedByWhatBecameOfThem(t *testing.T) {
	tl := newTally()
	for seq := range uint64(5) {
		tl.event = int(seq) / 3
		tl.send(seq, ms(int(seq)))
	}
	for _, seq := range []uint64{0, 1, 3} {
		tl.outcome(seq, true)
	}
	tl.outcome(2, false)
	tl.hand(q(0), 0, ms(10))
	tl.hand(q(0), 2, ms(11)) // stored, though the producer does not know
	tl.event = 1
	tl.hand(q(0), 0, ms(12))
	tl.hand(q(0), 99, ms(12))
	if missing, unknown := tl.outstanding(1, ms(100)); missing != 2 || unknown != 1 {
		t.Errorf("missing %d, unknown %d", missing, unknown)
	}
	if missing, unknown := tl.outstanding(0, ms(100)); missing != 1 || unknown != 0 {
		t.Errorf("of event 0: missing %d, unknown %d", missing, unknown)
	}
	if missing, unknown := tl.outstanding(1, ms(2)); missing != 1 || unknown != 0 {
		t.Errorf("sent by 2 ms: missing %d, unknown %d", missing, unknown)
	}
	produced, consumed, repeats := tl.totals()
	if produced != 4 || consumed != 2 || repeats != 1 || tl.repeated[1] != 1 || tl.strange != 1 {
		t.Errorf("produced %d, consumed %d, repeats %d, by event %v, strange %d", produced, consumed, repeats, tl.repeated, tl.strange)
	}
	if tl.lost(0, ms(100)) != 1 || tl.lost(1, ms(100)) != 1 || tl.lost(1, ms(2)) != 0 {
		t.Errorf("lost %d and %d", tl.lost(0, ms(100)), tl.lost(1, ms(100)))
	}
}

// A group that hands out what nobody sent is wrong, even if it loses nothing.
func TestMessagesThatNobodySentFailTheDemo(t *testing.T) {
	tl := newTally()
	tl.send(1, time.Unix(1, 0))
	tl.outcome(1, true)
	q := allocate.Queue{Topic: Topic, Broker: "a"}
	tl.hand(q, 1, time.Unix(2, 0))
	d := &demo{tally: tl, cfg: Default()}
	res := Result{Settled: true}
	d.finish(t.Context(), &res)
	if err := res.verdict(); err != nil || res.Strange != 0 {
		t.Fatal(err, res)
	}
	tl.hand(q, 2, time.Unix(3, 0))
	d.finish(t.Context(), &res)
	if err := res.verdict(); !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "1 message handed out that nobody sent") {
		t.Errorf("%v", err)
	}
}

func TestLinesComeBackAsTheyWere(t *testing.T) {
	for _, l := range []line{
		{word: wordReady, at: ms(1)},
		{word: wordJoining, at: ms(1)},
		{word: wordOwn, at: ms(1), queues: []allocate.Queue{q(0), {Topic: Topic, Broker: "x/y", ID: 12}}},
		{word: wordRevoked, at: ms(1)},
		{word: wordLost, at: ms(1), queues: []allocate.Queue{q(3)}},
		{word: wordMessage, at: ms(1), queues: []allocate.Queue{q(3)}, seq: 1<<64 - 1},
		{word: wordEnded, at: ms(1), text: "session refused: why"},
	} {
		got, err := parseLine(l.String(), Topic)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(l) || !got.at.Equal(l.at) {
			t.Errorf("%q: %+v, %v", l, got, err)
		}
	}
}

func FuzzLinesAreReadOrRefused(f *testing.F) {
	for _, s := range []string{"own 1 b/0", "message 1 b/0 7", "message 1 b/0", "ended 1 x y", "own x", "what 1", "own 1 /0", "own 1 b/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := parseLine(text, Topic)
		if err != nil {
			return
		}
		again, err := parseLine(l.String(), Topic)
		if err != nil || again.String() != l.String() {
			t.Errorf("%q became %q, then %q, %v", text, l, again, err)
		}
		if l.word == wordMessage && len(l.queues) != 1 {
			t.Errorf("%q: a message without a queue", text)
		}
	})
}

func TestGroupIsSettledOnlyIfEverybodySaysSo(t *testing.T) {
	group := func() *admin.Group {
		g := &admin.Group{Name: Group, Topics: []admin.GroupTopic{{Topic: Topic, State: admin.Settled}}}
		for _, id := range []string{"c1", "c2"} {
			g.Members = append(g.Members, admin.GroupMember{ClientID: id, Brokers: []string{"b"}})
		}
		for id := range int32(3) {
			owner := "c1"
			if id == 2 {
				owner = "c2"
			}
			g.Queues = append(g.Queues, admin.GroupQueue{QueueName: admin.QueueName{Topic: Topic, Broker: "b", ID: id}, Owner: owner})
		}
		g.Queues = append(g.Queues, admin.GroupQueue{QueueName: admin.QueueName{Topic: "%RETRY%" + Group, Broker: "b"}})
		return g
	}
	told := allocate.Owners{q(0): "c1", q(1): "c1", q(2): "c2"}
	want := expectation{topic: Topic, queues: 3, members: []string{"c1", "c2"}, brokers: []string{"b"}}
	if why := want.unsettled(group(), nil, told); why != "" {
		t.Fatalf("settled, and yet: %s", why)
	}
	for _, c := range []struct {
		name   string
		change func(g *admin.Group, w *expectation)
		told   allocate.Owners
		why    string
	}{
		{"member missing", func(g *admin.Group, _ *expectation) { g.Members = g.Members[:1] }, told, "the members are c1, not c1, c2"},
		{"member leaving", func(g *admin.Group, _ *expectation) { g.Members[0].Leaving = true }, told, "c1 is leaving"},
		{"session missing", func(_ *admin.Group, w *expectation) { w.brokers = []string{"b", "c"} }, told, "c1 has sessions with b only"},
		{"nobody holds it", func(g *admin.Group, _ *expectation) { g.Queues[1].Owner = "" }, told, "nobody holds b/1"},
		{"queues missing", func(_ *admin.Group, w *expectation) { w.queues = 4 }, told, "there are 3 queues, not 4"},
		{"a stranger", func(g *admin.Group, _ *expectation) { g.Queues[1].Owner = "c9" }, told, "somebody holds a queue who is no member"},
		{"uneven", func(g *admin.Group, _ *expectation) { g.Queues[2].Owner = "c1" }, told, "the share of a member is 0 to 3 queues"},
		{"the view broker", func(g *admin.Group, _ *expectation) { g.Topics[0].State = admin.Changing }, told, "the view broker says changing"},
		{"members say otherwise", func(*admin.Group, *expectation) {}, allocate.Owners{q(0): "c1"}, "members and brokers do not agree on who owns what"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, w := group(), want
			c.change(g, &w)
			if why := w.unsettled(g, nil, c.told); why != c.why {
				t.Errorf("%q, want %q", why, c.why)
			}
		})
	}
	if why := want.unsettled(group(), []admin.Failure{{Server: "b", Address: "x", Reason: "gone"}}, told); why != "b (x): gone" {
		t.Errorf("a broker that does not answer: %q", why)
	}
}
