package rocketmq

import (
	"slices"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
)

// cluster answers a client at once, by what a test has set.
type cluster struct {
	t      *testing.T
	c      *Client
	now    time.Time
	wake   time.Time
	queues int32
	ids    []string // nil: no answer
	passes int      // lists asked for of the topic T
	takes  []Take
	drops  []allocate.Queue
	beats  int
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	k := &cluster{t: t, now: time.Unix(1000, 0), queues: 8, ids: []string{"a", "b"}}
	k.c = NewClient(Config{Group: "G", ClientID: "a", Topics: []string{"T"}, Timers: DefaultTimers(), Choose: func(int) int { return 0 }, Idle: true})
	return k
}

func (k *cluster) step(ev Event) {
	for _, eff := range k.c.Step(k.now, ev) {
		switch eff := eff.(type) {
		case WakeAt:
			k.wake = eff.At
		case Call:
			if a := k.answer(eff.Request); a != nil {
				k.step(Answered{eff.ID, a})
			} else {
				k.step(Failed{eff.ID})
			}
		case Take:
			k.takes = append(k.takes, eff)
		case Drop:
			k.drops = append(k.drops, eff.Queue)
		case Save, Halt, Stopped:
		}
	}
}

func (k *cluster) answer(r Request) Answer {
	switch r := r.(type) {
	case RouteQuery:
		if r.Topic != "T" {
			return Refused{}
		}
		rt := Route{Brokers: []string{"x"}}
		for id := range k.queues {
			rt.Queues = append(rt.Queues, allocate.Queue{Topic: "T", Broker: "x", ID: id})
		}
		return Routed{rt}
	case ConsumerList:
		k.passes++
		if k.ids == nil {
			return nil
		}
		return IDs{k.ids}
	case QueryOffset:
		return Offset{int64(r.Queue.ID)}
	case Heartbeat:
		k.beats++
	case Unregister, UpdateOffset:
	}
	return Done{}
}

// run lets time pass.
func (k *cluster) run(d time.Duration) {
	end := k.now.Add(d)
	for !k.wake.IsZero() && !k.wake.After(end) {
		k.now = k.wake
		k.wake = time.Time{}
		k.step(Wake{})
	}
	k.now = end
}

func (k *cluster) start() {
	k.step(Start{})
	k.run(2 * time.Second)
	if n := len(k.c.Held()); n != 4 {
		k.t.Fatalf("%d queues held of 8 for two", n)
	}
}

// A queue is pulled half a second after it was assigned, from where the broker says.
func TestFirstPullComesHalfASecondLater(t *testing.T) {
	k := newCluster(t)
	k.start()
	for i, take := range k.takes {
		if take.Queue.ID != int32(i) || take.Offset != int64(i) {
			t.Errorf("take %d: %+v", i, take)
		}
	}
	k.takes = nil
	k.ids = []string{"a"}
	at := k.now
	k.step(Notified{})
	if len(k.takes) != 4 || !k.takes[0].At.Equal(at.Add(FirstPull)) {
		t.Errorf("at %v: %+v", at, k.takes)
	}
}

// Who is not in the list drops all queues, and takes that for balanced: nothing is looked
// at again before the next notice or tick.
func TestOwnIDMissingDropsEverything(t *testing.T) {
	k := newCluster(t)
	k.start()
	k.ids = []string{"b"}
	k.step(Notified{})
	if len(k.c.Held()) != 0 || len(k.drops) != 4 {
		t.Fatalf("held %v", k.c.Held())
	}
	asked := k.passes
	k.run(19 * time.Second)
	if k.passes != asked {
		t.Errorf("asked %d times more within the tick", k.passes-asked)
	}
	k.ids = []string{"a", "b"}
	k.run(2 * time.Second)
	if len(k.c.Held()) != 4 {
		t.Errorf("held %v after the tick", k.c.Held())
	}
}

// A list that cannot be had leaves everything as it is until the next tick.
func TestMissingListChangesNothing(t *testing.T) {
	k := newCluster(t)
	k.start()
	k.ids = nil
	asked := k.passes
	k.step(Notified{})
	k.run(19 * time.Second)
	if len(k.c.Held()) != 4 || k.passes != asked+1 {
		t.Errorf("held %v, asked %d times", k.c.Held(), k.passes-asked)
	}
}

// Notices in a row make passes at least a second apart, and the last one is not lost.
func TestPassesAreASecondApart(t *testing.T) {
	k := newCluster(t)
	k.start()
	k.step(Notified{})
	asked := k.passes
	k.ids = []string{"a", "b", "c", "d"}
	for range 5 {
		k.step(Notified{})
	}
	if k.passes != asked {
		t.Errorf("%d passes at once", k.passes-asked)
	}
	k.run(MinRebalance)
	if k.passes != asked+1 || len(k.c.Held()) != 2 {
		t.Errorf("%d passes, held %v", k.passes-asked, k.c.Held())
	}
}

// New queues are seen at the poll of the route and taken at the tick after it.
func TestNewQueuesWaitForPollAndTick(t *testing.T) {
	k := newCluster(t)
	k.start()
	k.queues = 16
	k.run(25 * time.Second)
	if n := len(k.c.Held()); n != 4 {
		t.Errorf("%d queues held before the poll", n)
	}
	k.run(25 * time.Second)
	if n := len(k.c.Held()); n != 8 {
		t.Errorf("%d queues held after poll and tick", n)
	}
}

// A new connection is told to all of its group, the new one included; one whose heartbeats
// stay away is dropped after two minutes by a scan that tells nobody.
func TestScanTellsNobody(t *testing.T) {
	now := time.Unix(1000, 0)
	b, _ := NewBroker(DefaultTimers(), nil, now)
	beat := func(ch Channel, id string) (told []Channel) {
		for _, eff := range b.Step(now, Received{Channel: ch, ID: 1, Request: Heartbeat{ClientID: id, Group: "G", Topics: []string{"T"}}}) {
			if n, ok := eff.(Notify); ok {
				told = slices.Clone(n.Channels)
			}
		}
		return told
	}
	beat(1, "a")
	if told := beat(2, "b"); !slices.Equal(told, []Channel{1, 2}) {
		t.Errorf("told %v", told)
	}
	if told := beat(1, "a"); told != nil {
		t.Errorf("told %v of nothing new", told)
	}
	for range 13 {
		now = now.Add(10 * time.Second)
		beat(1, "a")
		for _, eff := range b.Step(now, BrokerWake{}) {
			if n, ok := eff.(Notify); ok {
				t.Errorf("the scan tells %v", n.Channels)
			}
			if c, ok := eff.(Close); ok && c.Channel != 2 {
				t.Errorf("closes %v", c.Channel)
			}
		}
	}
	for _, eff := range b.Step(now, Received{Channel: 1, ID: 2, Request: ConsumerList{"G"}}) {
		if r, ok := eff.(Reply); ok && !slices.Equal(r.Answer.(IDs).IDs, []string{"a"}) {
			t.Errorf("%v", r.Answer)
		}
	}
	// Left in order, the rest is told.
	beat(3, "c")
	told := false
	for _, eff := range b.Step(now, Received{Channel: 3, ID: 3, Request: Unregister{ClientID: "c", Group: "G"}}) {
		if n, ok := eff.(Notify); ok {
			told = slices.Equal(n.Channels, []Channel{1})
		}
	}
	if !told {
		t.Error("nobody is told of a member that leaves")
	}
}

// The last offset that comes is the one that counts, also backwards.
func TestLastOffsetWins(t *testing.T) {
	now := time.Unix(1000, 0)
	b, _ := NewBroker(DefaultTimers(), nil, now)
	q := allocate.Queue{Topic: "T", Broker: "x"}
	for _, offset := range []int64{10, 3} {
		b.Step(now, Received{Channel: 1, Request: UpdateOffset{"G", q, offset}})
	}
	for _, eff := range b.Step(now, Received{Channel: 1, ID: 1, Request: QueryOffset{"G", q}}) {
		if r, ok := eff.(Reply); !ok || r.Answer != (Offset{3}) {
			t.Errorf("%+v", eff)
		}
	}
}
