//go:build e2e && unix

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/test/e2e/internal/trail"
)

// flow is a group that counts commits while they are produced.
type flow struct {
	c       *cluster
	board   *board
	members map[string]*proc
	printer *proc // cmd/consumer, in a group of its own
	feeder  *proc
}

func newFlow(t *testing.T, members []string, flags ...string) *flow {
	t.Helper()
	f := &flow{c: newCluster(t, []string{"broker-a", "broker-b"}), board: newBoard(t), members: make(map[string]*proc)}
	f.c.setQueues(topic, 8, true)
	for _, id := range members {
		path := filepath.Join(f.c.dir, id+".trail")
		f.members[id] = start(t, id, "counter", append([]string{
			"--nameservers", f.c.names.address, "--group", group, "--topic", topic, "--client-id", id, "--trail", path,
		}, flags...)...)
		f.board.follow(id, path)
	}
	f.printer = start(t, "consumer", "consumer", "--nameservers", f.c.names.address, "--group", "print", "--topic", topic, "--from", "first",
		"--format", "json", "--client-id", "printer", "--http", "127.0.0.1:0")
	f.c.awaitSettled(group, 8, slices.Clone(members)...)
	f.c.awaitSettled("print", 8, "printer")
	f.feeder = start(t, "feeder", "feeder", "--nameservers", f.c.names.address, "--topic", topic, "--input", "testdata/commits.jsonl",
		"--trail", filepath.Join(f.c.dir, "feeder.trail"), "--rate", "1000", "--timeout", "2m")
	f.board.awaitHandled(300)
	return f
}

// SIGTERM ends each process in time and with exit code 0, whatever it is doing
// and whoever else is there.
func TestStopsEndInTimeInAnyOrder(t *testing.T) {
	const limit = 10 * time.Second
	orders := map[string]func(f *flow) []*proc{
		"servers first": func(f *flow) []*proc {
			return []*proc{f.c.names.proc, f.c.nodes["broker-a"].proc, f.c.nodes["broker-b"].proc, f.members["m1"], f.members["m2"], f.printer}
		},
		"members first": func(f *flow) []*proc {
			return []*proc{f.printer, f.members["m1"], f.members["m2"], f.c.nodes["broker-a"].proc, f.c.nodes["broker-b"].proc, f.c.names.proc}
		},
	}
	for name, order := range orders {
		t.Run(name, func(t *testing.T) {
			f := newFlow(t, []string{"m1", "m2"}, "--work", "5ms")
			var took []string
			for _, p := range order(f) {
				took = append(took, fmt.Sprintf("%s %v", p.name, p.stop(limit).Round(time.Millisecond)))
			}
			f.feeder.kill()
			t.Logf("stopped under load: %s", strings.Join(took, ", "))
		})
	}
	t.Run("all at once", func(t *testing.T) {
		f := newFlow(t, []string{"m1", "m2"}, "--work", "5ms")
		all := []*proc{f.printer, f.members["m1"], f.members["m2"], f.c.nodes["broker-a"].proc, f.c.nodes["broker-b"].proc, f.c.names.proc}
		begun := time.Now()
		for _, p := range all {
			p.signal(syscall.SIGTERM)
		}
		var took []string
		for _, p := range all {
			took = append(took, fmt.Sprintf("%s %v", p.name, p.end(begun, limit).Round(time.Millisecond)))
		}
		f.feeder.kill()
		t.Logf("stopped under load, all at once: %s", strings.Join(took, ", "))
	})
}

// A member that stands still for longer than its session timeout loses its
// queues to the others. When it goes on it hands out nothing of what it had, is
// told so, comes back, and gets a share again.
func TestFrozenMemberHasNoQueueWithTwoOwnersAndComesBack(t *testing.T) {
	const frozen = "m2"
	f := newFlow(t, []string{"m1", frozen, "m3"}, "--work", "20ms", "--concurrency", "4",
		"--tick", "5s", "--heartbeat", "500ms", "--session-timeout", "2s")
	p := f.members[frozen]
	had := f.c.owned(frozen)
	if len(had) == 0 {
		t.Fatal("it has no queue to lose")
	}

	p.signal(syscall.SIGSTOP)
	stopped := time.Now()
	taken := await(t, settleLimit, "the others to take over", func() (bool, string) {
		now := f.c.owners()
		for _, q := range had {
			if now[q] == "" || now[q] == frozen {
				return false, fmt.Sprint(now)
			}
		}
		return true, ""
	})
	f.c.awaitSettled(group, 8, "m1", "m3")
	f.board.awaitMore("", 200)

	resumed := time.Now()
	p.signal(syscall.SIGCONT)
	back := f.c.awaitSettled(group, 8, "m1", frozen, "m3")
	count := func() (n int) {
		f.board.look()
		for _, hs := range f.board.byQueue {
			for _, h := range hs {
				if h.member == frozen && h.Begin.After(resumed) {
					n++
				}
			}
		}
		return n
	}
	await(t, flowLimit, "the member that came back to handle messages", func() (bool, string) {
		n := count()
		return n >= 50, fmt.Sprintf("%d handled", n)
	})
	t.Logf("%d queues taken over %v after the freeze; settled with the member again %v after it went on", len(had),
		taken.Round(time.Millisecond), back.Round(time.Millisecond))
	if taken < time.Second {
		t.Errorf("the others took over after %v, before the session can have timed out", taken)
	}

	f.board.look()
	if o := f.board.overlaps(); len(o) > 0 {
		t.Errorf("%d times two members handled one queue at once, for example\n%s", len(o), strings.Join(o[:min(5, len(o))], "\n"))
	}
	// Whatever it began after it went on belongs to a queue that it was given anew.
	entries, err := trail.Follow(filepath.Join(f.c.dir, frozen+".trail")).Next()
	if err != nil {
		t.Fatal(err)
	}
	mine, begunStale, lost := make(map[allocate.Queue]time.Time), 0, 0
	for _, e := range entries {
		switch e.Kind {
		case trail.Assigned:
			mine[e.Queue] = e.Begin
		case trail.Lost:
			delete(mine, e.Queue)
			lost++
		case trail.Handled:
			if at, ok := mine[e.Queue]; e.Begin.After(resumed) && (!ok || at.Before(stopped)) {
				begunStale++
			}
		case trail.Revoked, trail.Stored:
		}
	}
	if begunStale > 0 {
		t.Errorf("it handed out %d messages of queues that it had lost", begunStale)
	}
	if lost < len(had) {
		t.Errorf("it was told of %d lost queues, had %d", lost, len(had))
	}
	f.feeder.kill()
	f.c.stopAll(f.printer, f.members["m1"], f.members[frozen], f.members["m3"])
}

// owners returns who holds each queue of the topic.
func (c *cluster) owners() map[allocate.Queue]string {
	c.t.Helper()
	g, _, err := c.admin.DescribeGroup(c.t.Context(), group)
	if err != nil {
		c.t.Fatal(err)
	}
	out := make(map[allocate.Queue]string)
	for _, q := range g.Queues {
		if q.Topic == topic {
			out[q.Queue()] = q.Owner
		}
	}
	return out
}

// owned returns the queues of the topic that a member holds.
func (c *cluster) owned(member string) (out []allocate.Queue) {
	c.t.Helper()
	for q, owner := range c.owners() {
		if owner == member {
			out = append(out, q)
		}
	}
	return out
}
