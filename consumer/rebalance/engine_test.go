package rebalance

import (
	"strings"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

func TestNewNamesWhatIsWrong(t *testing.T) {
	good := func() Config {
		return Config{Group: "g", ClientID: "c", Subscriptions: on("t")}
	}
	for _, tc := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Group = " " }, "group is empty"},
		{func(c *Config) { c.ClientID = "" }, "client id is empty"},
		{func(c *Config) { c.Mode = 9 }, "unknown mode(9)"},
		{func(c *Config) { c.Tick = -1 }, "tick -1ns is negative"},
		{func(c *Config) { c.Heartbeat = -time.Second }, "heartbeat -1s is negative"},
		{func(c *Config) { c.SessionTimeout = time.Second }, "heartbeat 3s is not shorter than session timeout 1s"},
		{func(c *Config) { c.Strategies = []allocate.Strategy{nil} }, "a strategy is nil"},
		{func(c *Config) { c.Strategies = []allocate.Strategy{nameless{}} }, "has no name"},
		{func(c *Config) { c.Strategies = []allocate.Strategy{nameless{panics: true}} }, "it panicked"},
		{func(c *Config) { c.Strategies = []allocate.Strategy{allocate.Sticky{}, allocate.Sticky{}} }, `strategy "sticky" is given twice`},
		{func(c *Config) { c.Subscriptions = on("t", "t") }, `topic "t" is subscribed twice`},
		{func(c *Config) { c.Subscriptions = on("") }, "subscription without a topic"},
	} {
		c := good()
		tc.change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v, want %q", err, tc.want)
		}
	}
	e, err := New(good())
	if err != nil {
		t.Fatal(err)
	}
	if e.cfg.Tick != 20*time.Second || e.cfg.Heartbeat != 3*time.Second || e.cfg.SessionTimeout != 10*time.Second || e.offers[0].Strategy != "sticky" || e.inc.Counter != 1 {
		t.Errorf("the defaults are %+v", e.cfg)
	}
}

type nameless struct{ panics bool }

func (s nameless) Name() string {
	if s.panics {
		panic("no name")
	}
	return ""
}

func (nameless) Allocate(allocate.Input) (allocate.Assignment, error) { return nil, nil }

func TestTicksComeEarlierByChanceOnly(t *testing.T) {
	for _, chance := range []float64{0, 0.5, 0.999} {
		e, err := New(Config{Group: "g", ClientID: "c", Jitter: func() float64 { return chance }})
		if err != nil {
			t.Fatal(err)
		}
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		for range 3 {
			e.Step(now, Wake{})
			if d := e.wake.Sub(now); d > 20*time.Second || d < 18*time.Second {
				t.Errorf("the next tick comes in %v", d)
			}
			now = e.wake
		}
	}
}

// A wall clock that jumps past the end of a session ends it though the monotonic
// one, which stands still in suspend, does not say so.
func TestEitherClockEndsASession(t *testing.T) {
	now := time.Now()
	until := now.Add(10 * time.Second)
	if expired(now.Add(9*time.Second), until) {
		t.Error("ended too early")
	}
	if !expired(now.Add(10*time.Second), until) {
		t.Error("the monotonic clock does not count")
	}
	if !expired(now.Round(0).Add(11*time.Second), until) {
		t.Error("the wall clock does not count")
	}
}

// A pause of our own process says nothing about brokers: they are not reported as
// silent for it.
func TestPauseOfOurOwnIsNoSilenceOfBrokers(t *testing.T) {
	e, now := settledEngine(t, bigView(10, 100), 0)
	out := e.Step(now.Add(time.Minute), Wake{})
	lost := 0
	for _, eff := range out {
		switch eff := eff.(type) {
		case Lose:
			lost++
		case Send:
			t.Errorf("%T is sent", eff.Frame)
		default:
		}
	}
	for _, b := range e.Snapshot().Brokers {
		if b.Silent != 0 || b.Phase != "connecting" || !b.ValidUntil.IsZero() {
			t.Errorf("%+v", b)
		}
	}
	if lost != 10 {
		t.Errorf("%d queues are lost", lost)
	}
}

func TestPatienceGrowsWithTheGroup(t *testing.T) {
	for _, tc := range []struct {
		members int
		want    time.Duration
	}{{1, 100 * time.Millisecond}, {64, 100 * time.Millisecond}, {65, 97500 * time.Microsecond}, {1000, 1500 * time.Millisecond}} {
		e := &Engine{cfg: Config{Tick: DefaultTick}}
		if got := e.firstPatience(&topic{last: &basis{members: make([]session.Member, tc.members)}}); got != tc.want {
			t.Errorf("%d members: patience %v, want %v", tc.members, got, tc.want)
		}
	}
}

// A settled join is told by the notice: only the newcomer fetches the view.
func TestJoinOfASettledGroupIsNotFetched(t *testing.T) {
	c := newCluster(t, map[string]map[string]int{"t": {"b1": 16}})
	for _, id := range ids(8) {
		c.join(id, nil)
	}
	c.run(2 * time.Second)
	c.settled()
	c.fetches = 0
	m := c.join("new", nil)
	c.run(50 * time.Millisecond)
	c.settled()
	if c.fetches != 1 || len(m.owns) != 1 {
		t.Errorf("%d fetches, the newcomer has %d queues", c.fetches, len(m.owns))
	}
	if _, ok := sent[session.Heartbeat](m.engine.Step(c.now, Wake{})); ok {
		t.Error("a heartbeat before its time")
	}
}
