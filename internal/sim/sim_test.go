package sim

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/group"
	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/session"
)

// seeds reads SIM_SEEDS, the number of histories, and SIM_SEED, a single one to
// replay.
func seeds(t *testing.T, usual uint64) (from, to uint64) {
	t.Helper()
	number := func(name string) (uint64, bool) {
		v := os.Getenv(name)
		if v == "" {
			return 0, false
		}
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatalf("%s=%q: not a number", name, v)
		}
		return n, true
	}
	if n, ok := number("SIM_SEED"); ok {
		return n, n + 1
	}
	if n, ok := number("SIM_SEEDS"); ok {
		usual = n
	}
	return 1, usual + 1
}

// replay runs a failing seed again with its trace and reports it.
func replay(t *testing.T, opt Options) {
	t.Helper()
	opt.KeepTrace = true
	r := Run(opt)
	tail := r.Trace
	if n := 400; len(tail) > n && os.Getenv("SIM_SEED") == "" {
		tail = tail[len(tail)-n:]
	}
	t.Fatalf("seed %d: %v\nfaults: %v\nreplay with SIM_SEED=%d go test ./internal/sim -run '%s'\n%s",
		opt.Seed, r.Violation, r.Faults, opt.Seed, t.Name(), strings.Join(tail, "\n"))
}

// Every history of joins, leaves, crashes, restarts, cuts and pauses keeps S1 to
// S4 at every step and settles once it is quiet.
func TestSeeds(t *testing.T) {
	from, to := seeds(t, 40)
	var worst time.Duration
	for seed := from; seed < to; seed++ {
		opt := DefaultOptions(seed)
		r := Run(opt)
		if r.Violation != nil {
			replay(t, opt)
		}
		worst = max(worst, r.Settle)
	}
	t.Logf("%d histories, settled at most %v after the last fault ended", to-from, worst)
}

// Without failures nothing is handed out twice, across joins, graceful leaves and
// queue changes.
func TestCalmSeedsHandOutOnce(t *testing.T) {
	from, to := seeds(t, 20)
	for seed := from; seed < to; seed++ {
		opt := DefaultOptions(seed)
		opt.Calm = true
		r := Run(opt)
		if r.Violation != nil {
			replay(t, opt)
		}
		if r.Duplicates > 0 {
			t.Fatalf("seed %d: %d duplicates", seed, r.Duplicates)
		}
	}
}

// Name servers that come and go, and brokers that restart or freeze for less than
// a session timeout, move no queue and stop no queue of another broker.
func TestStillSeedsMoveNothing(t *testing.T) {
	from, to := seeds(t, 20)
	for seed := from; seed < to; seed++ {
		opt := DefaultOptions(seed)
		opt.Still = true
		if r := Run(opt); r.Violation != nil {
			replay(t, opt)
		}
	}
}

// Changes that come faster than they can be worked off, graceful ones and
// crashes, keep all promises.
func TestStormSeeds(t *testing.T) {
	from, to := seeds(t, 25)
	for seed := from; seed < to; seed++ {
		opt := DefaultOptions(seed)
		opt.Storm, opt.Calm = true, seed%2 == 0
		if r := Run(opt); r.Violation != nil {
			replay(t, opt)
		}
	}
}

// A member with another mode, strategy or filter is refused, and costs the others
// nothing, also where a broker that has just started meets it first.
func TestMisfitsAreRefusedAndCostNobody(t *testing.T) {
	from, to := seeds(t, 10)
	for seed := from; seed < to; seed++ {
		opt := DefaultOptions(seed)
		opt.Only, opt.Faults = []string{"misfit", "misfit", "onerestart", "kick", "reset"}, 20
		if r := Run(opt); r.Violation != nil {
			replay(t, opt)
		}
	}
}

// Dozens of members that come at once, and go again, keep all promises.
func TestBurstSeeds(t *testing.T) {
	from, to := seeds(t, 2)
	for seed := from; seed < to; seed++ {
		opt := DefaultOptions(seed)
		opt.Only, opt.Faults = []string{"burst", "rolling", "restart", "leave", "reset"}, 4
		if r := Run(opt); r.Violation != nil {
			replay(t, opt)
		}
	}
}

// Other strategies and the immediate mode, which promises no single owner on the
// way, settle all the same.
func TestOtherStrategiesAndModesSettle(t *testing.T) {
	from, to := seeds(t, 5)
	for _, v := range []struct {
		mode     session.Mode
		strategy allocate.Strategy
	}{
		{session.Exclusive, allocate.Rendezvous{}},
		{session.Exclusive, allocate.Averagely{}},
		{session.Immediate, allocate.Sticky{}},
		{session.Immediate, allocate.AveragelyByCircle{}},
	} {
		t.Run(v.mode.String()+"/"+v.strategy.Name(), func(t *testing.T) {
			for seed := from; seed < to; seed++ {
				opt := DefaultOptions(seed)
				opt.Mode, opt.Strategies = v.mode, []allocate.Strategy{v.strategy}
				if r := Run(opt); r.Violation != nil {
					replay(t, opt)
				}
			}
		})
	}
}

// The same seed twice is the same history to the last line.
func TestSameSeedReplaysExactly(t *testing.T) {
	for seed := uint64(1); seed <= 5; seed++ {
		opt := DefaultOptions(seed)
		opt.KeepTrace = true
		a, b := Run(opt), Run(opt)
		if a.Hash != b.Hash {
			for i := range min(len(a.Trace), len(b.Trace)) {
				if a.Trace[i] != b.Trace[i] {
					t.Fatalf("seed %d differs at line %d:\n%s\n%s", seed, i, a.Trace[i], b.Trace[i])
				}
			}
			t.Fatalf("seed %d: traces of %d and %d lines", seed, len(a.Trace), len(b.Trace))
		}
	}
}

// Each rule of the protocol is needed: without it the checker finds a broken
// promise. This also shows that the checker can fail.
func TestBrokenVariantsAreCaught(t *testing.T) {
	calm := func(o *Options) { o.Calm = true }
	still := func(o *Options) { o.Still = true }
	echoes := func(o *Options) { o.Calm, o.Only = true, []string{"echo", "echo", "join", "leave", "subscribe"} }
	storm := func(o *Options) { o.Storm, o.Only = true, []string{"join", "leave", "subscribe"} }
	drains := func(o *Options) { o.Calm, o.Only = true, []string{"slow", "slow", "join", "leave"} }
	only := func(kinds ...string) func(*Options) { return func(o *Options) { o.Only = kinds } }
	variants := []struct {
		name   string
		member rebalance.Broken
		broker group.Broken
		set    func(*Options) // where the rule matters most
		from   uint64         // the first seed tried: where it was caught last, to save time
	}{
		{"no epoch check on commit", rebalance.Broken{}, group.Broken{NoCommitEpochCheck: true}, nil, 1},
		{"grant before release", rebalance.Broken{}, group.Broken{GrantBeforeRelease: true}, nil, 1},
		{"no healing signals", rebalance.Broken{NoHealing: true}, group.Broken{NoHealing: true}, nil, 47},
		{"view from a random broker", rebalance.Broken{RandomViewBroker: true}, group.Broken{}, nil, 1},
		{"drop on empty route", rebalance.Broken{DropOnEmptyRoute: true}, group.Broken{}, still, 1},
		{"no warm-up rule", rebalance.Broken{}, group.Broken{NoWarmUp: true}, still, 27},
		{"a broker's restart reported as loss", rebalance.Broken{RestartIsLoss: true}, group.Broken{}, still, 35},
		{"no reach report", rebalance.Broken{NoReachReport: true}, group.Broken{}, only("staycut"), 1},
		{"no sending clock", rebalance.Broken{NoSendingClock: true}, group.Broken{}, nil, 1},
		{"two requests in flight", rebalance.Broken{TwoRequests: true}, group.Broken{}, storm, 29},
		{"release without epoch", rebalance.Broken{}, group.Broken{ReleaseWithoutEpoch: true}, echoes, 1},
		{"goodbye before drain", rebalance.Broken{GoodbyeFirst: true}, group.Broken{}, calm, 1},
		{"re-claim keeps a stale process queue", rebalance.Broken{KeepStaleQueue: true}, group.Broken{}, nil, 1},
		{"quiet signal ignores drains", rebalance.Broken{}, group.Broken{QuietIgnoresDrains: true}, drains, 76},
	}
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			for seed := v.from; seed < v.from+300; seed++ {
				opt := DefaultOptions(seed)
				opt.MemberBroken, opt.BrokerBroken = v.member, v.broker
				if v.set != nil {
					v.set(&opt)
				}
				if r := Run(opt); r.Violation != nil {
					t.Logf("caught with seed %d: %v", seed, r.Violation)
					return
				}
			}
			t.Errorf("not caught in 300 seeds")
		})
	}
}
