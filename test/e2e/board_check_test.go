//go:build e2e && unix

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/test/e2e/internal/trail"
)

// The checks of the runs can fail: duplicates without a kill and queues with two
// owners are seen, those with a reason are not held against anybody.
func TestBoardTellsWhatNoKillExplains(t *testing.T) {
	zero := time.Now()
	at := func(s float64) time.Time { return zero.Add(time.Duration(s * float64(time.Second))) }
	qa, qb := allocate.Queue{Topic: topic, Broker: "broker-a"}, allocate.Queue{Topic: topic, Broker: "broker-b"}
	did := func(member string, q allocate.Queue, offset int64, begin, end float64) hand {
		return hand{member, trail.Entry{Kind: trail.Handled, Queue: q, Offset: offset, Begin: at(begin), End: at(end), Commit: &trail.Commit{SHA: "c"}}}
	}
	events := []event{
		{what: "m1 died", at: at(10), until: at(11), member: "m1"},
		{what: "broker-b died", at: at(20), until: at(22), broker: "broker-b"},
		{what: "m9 joined", at: at(30), until: at(31)},
	}
	for _, tc := range []struct {
		name         string
		first, again hand
		cause        string // "" if there is none
	}{
		{"by a member that died later", did("m1", qa, 1, 9, 9.1), did("m2", qa, 1, 10.5, 10.6), "m1 died"},
		{"repeated before it died", did("m1", qa, 1, 8, 8.1), did("m2", qa, 1, 9, 9.1), ""},
		{"by one that lives", did("m3", qa, 1, 9, 9.1), did("m2", qa, 1, 10.5, 10.6), ""},
		{"of a broker that died", did("m3", qb, 1, 19, 19.1), did("m2", qb, 1, 21, 21.1), "broker-b died"},
		{"of the broker that did not", did("m3", qa, 1, 19, 19.1), did("m2", qa, 1, 21, 21.1), ""},
		{"after the broker was back", did("m3", qb, 1, 25, 25.1), did("m2", qb, 1, 26, 26.1), ""},
		{"at a join", did("m3", qa, 1, 29, 29.1), did("m9", qa, 1, 30.5, 30.6), ""},
		{"stored twice", did("m1", qa, 1, 9, 9.1), did("m2", qa, 2, 10.5, 10.6), ""},
	} {
		text, unexplained := report([]duplicate{{tc.first, tc.again}}, events)
		if (unexplained == 0) != (tc.cause != "") || !strings.Contains(text, tc.cause) {
			t.Errorf("%s: %d unexplained: %s", tc.name, unexplained, text)
		}
	}

	for _, tc := range []struct {
		name string
		lost float64 // when m1 lost the queue; 0 if it did not
		b    hand
		want int
	}{
		{"one after the other", 0, did("m2", qa, 2, 1.5, 2), 0},
		{"both at once", 0, did("m2", qa, 2, 0.5, 2), 1},
		{"both at once, the first had lost it", 0.4, did("m2", qa, 2, 0.5, 2), 0},
		{"in different queues", 0, did("m2", qb, 2, 0.5, 2), 0},
	} {
		a := did("m1", qa, 1, 0.1, 1)
		b := newBoard(t)
		b.byQueue[a.Queue] = append(b.byQueue[a.Queue], a)
		b.byQueue[tc.b.Queue] = append(b.byQueue[tc.b.Queue], tc.b)
		if tc.lost > 0 {
			b.losses[qa] = []hand{{"m1", trail.Entry{Kind: trail.Lost, Queue: qa, Begin: at(tc.lost)}}}
		}
		if got := b.overlaps(); len(got) != tc.want {
			t.Errorf("%s: %d overlaps, want %d: %v", tc.name, len(got), tc.want, got)
		}
	}
}
