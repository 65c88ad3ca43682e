//go:build e2e && unix

package e2e

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tacitmq/tacit/test/e2e/internal/trail"
)

const (
	topic = "commits"
	group = "count"
	rate  = 1000 // commits a second
)

// The totals equal the file, and every duplicate comes from a kill.
func TestTotalsSurviveKills(t *testing.T) {
	r := newRun(t, true)
	r.play()
	text, unexplained := report(r.duplicates, r.events)
	t.Logf("duplicates and where they came from:\n%s", text)
	if unexplained > 0 {
		t.Errorf("%d duplicates that no kill explains", unexplained)
	}
}

// The same run with stops instead of kills repeats nothing.
func TestNothingIsRepeatedWithoutKills(t *testing.T) {
	r := newRun(t, false)
	r.play()
	if n := len(r.duplicates); n > 0 {
		text, _ := report(r.duplicates, nil)
		t.Errorf("%d duplicates:\n%s", n, text)
	}
}

// run is one counting of all commits.
type run struct {
	t       *testing.T
	kills   bool
	c       *cluster
	board   *board
	members map[string]*proc // that are to be there
	expect  map[string]totals
	all     int // commits
	queues  int
	feeder  *proc
	stored  *trail.Reader

	events     []event
	duplicates []duplicate
}

func newRun(t *testing.T, kills bool) *run {
	t.Helper()
	r := &run{
		t: t, kills: kills, c: newCluster(t, []string{"broker-a", "broker-b"}), board: newBoard(t), members: make(map[string]*proc),
		expect: readTotals(t, "testdata/commits-by-component.json"), queues: 8,
	}
	for _, sum := range r.expect {
		r.all += int(sum.Commits)
	}
	return r
}

func (r *run) play() {
	t := r.t
	r.c.setQueues(topic, 8, true)
	for i := range 4 {
		r.join(fmt.Sprintf("counter-%d", i+1))
	}
	t.Logf("4 consumers settled in %v", r.settle().Round(time.Millisecond))

	trailPath := filepath.Join(r.c.dir, "feeder.trail")
	r.feeder = start(t, "feeder", "feeder", "--nameservers", r.c.names.address, "--topic", topic, "--input", "testdata/commits.jsonl",
		"--trail", trailPath, "--rate", fmt.Sprint(rate))
	r.stored = trail.Follow(trailPath)

	r.at(10, "counter-5 joins", func(*event) { r.join("counter-5") })
	r.at(22, "counter-2 "+r.word(), func(e *event) {
		if r.kills {
			e.member = "counter-2"
		}
		r.leave("counter-2", r.kills)
	})
	r.at(34, "counter-3 leaves", func(*event) { r.leave("counter-3", false) })
	r.at(46, "queues go from 8 to 12", func(*event) {
		r.queues = 12
		r.c.setQueues(topic, 12, false)
	})
	r.at(58, "broker-b "+r.word()+" and restarts", func(e *event) {
		b := r.c.nodes["broker-b"]
		if r.kills {
			e.broker = b.name
		}
		r.end(b)
		flow := r.board.awaitMore("broker-a", 200)
		took := b.start()
		t.Logf("while broker-b was away 200 messages of broker-a took %v; broker-b was back in %v", flow.Round(time.Millisecond), took.Round(time.Millisecond))
	})
	r.at(78, "the name server "+r.word()+" and restarts", func(*event) {
		r.end(r.c.names)
		flow := r.board.awaitMore("", 200)
		took := r.c.names.start()
		t.Logf("while the name server was away 200 messages took %v; it was back in %v", flow.Round(time.Millisecond), took.Round(time.Millisecond))
		r.c.awaitBrokers(2)
	})
	if !r.feeder.running() {
		t.Error("the producer ended before the last event")
	}
	r.finish()
}

// word says how something ends in this run.
func (r *run) word() string {
	if r.kills {
		return "is killed with -9"
	}
	return "is stopped"
}

// at does something once a share of the commits was handled, waits until the
// group has settled, and notes it.
func (r *run) at(percent int, what string, do func(e *event)) {
	r.t.Helper()
	r.board.awaitHandled(r.all * percent / 100)
	e := event{what: what, at: time.Now()}
	do(&e)
	e.settle = r.settle()
	e.until = time.Now()
	r.events = append(r.events, e)
	r.t.Logf("at %2d %%: %s; settled %v later", percent, what, e.settle.Round(time.Millisecond))
}

func (r *run) settle() time.Duration {
	r.t.Helper()
	return r.c.awaitSettled(group, r.queues, slices.Collect(maps.Keys(r.members))...)
}

func (r *run) join(id string) {
	r.t.Helper()
	path := filepath.Join(r.c.dir, id+".trail")
	r.members[id] = start(r.t, id, "counter", "--nameservers", r.c.names.address, "--group", group, "--topic", topic,
		"--client-id", id, "--trail", path, "--work", "2ms")
	r.board.follow(id, path)
}

func (r *run) leave(id string, kill bool) {
	r.t.Helper()
	p := r.members[id]
	delete(r.members, id)
	if kill {
		p.kill()
		return
	}
	took := p.stop(stopLimit)
	r.t.Logf("%s left in %v", id, took.Round(time.Millisecond))
}

// end ends a server.
func (r *run) end(n *node) {
	r.t.Helper()
	if r.kills {
		n.proc.kill()
		return
	}
	r.t.Logf("%s stopped in %v", n.name, n.proc.stop(stopLimit).Round(time.Millisecond))
}

// finish waits for the end of the work and checks the result.
func (r *run) finish() {
	t := r.t
	t.Helper()
	r.feeder.end(time.Now(), flowLimit)
	r.board.awaitHandled(r.all)
	await(t, settleLimit, "all to be committed", func() (bool, string) {
		lag, state := r.c.lag(group, topic)
		return lag == 0, state
	})
	begun := time.Now()
	for _, p := range r.members {
		p.signal(syscall.SIGTERM)
	}
	for _, p := range r.members {
		p.end(begun, stopLimit)
	}
	if lag, state := r.c.lag(group, topic); lag != 0 {
		t.Errorf("after all have left: %s", state)
	}
	r.checkStored()
	r.c.stopAll()

	r.board.look()
	got := r.board.totals()
	for _, name := range slices.Sorted(maps.Keys(r.expect)) {
		if got[name] != r.expect[name] {
			t.Errorf("component %s: %+v, want %+v", name, got[name], r.expect[name])
		}
	}
	if len(got) != len(r.expect) {
		t.Errorf("%d components, want %d", len(got), len(r.expect))
	}
	if o := r.board.overlaps(); len(o) > 0 {
		t.Errorf("%d times two members handled one queue at once, for example\n%s", len(o), strings.Join(o[:min(5, len(o))], "\n"))
	}
	r.duplicates = r.board.duplicates()
	t.Logf("%d commits of %d components: all totals equal the file; handed out %d times, %d duplicates", len(r.board.hands), len(got), r.board.count, len(r.duplicates))
}

// checkStored checks that each commit is stored once, where it was acknowledged,
// and was handed out from there.
func (r *run) checkStored() {
	t := r.t
	t.Helper()
	entries, err := r.stored.Next()
	if err != nil {
		t.Fatal(err)
	}
	acked, repeats := make(map[string]trail.Entry), 0
	for _, e := range entries {
		if _, twice := acked[e.Commit.SHA]; twice {
			t.Errorf("%s was acknowledged twice", e.Commit.SHA)
		}
		acked[e.Commit.SHA] = e
		if e.Repeat {
			repeats++
		}
	}
	if len(acked) != r.all {
		t.Errorf("%d commits acknowledged, want %d", len(acked), r.all)
	}
	for sha, hs := range r.board.hands {
		if a := acked[sha]; hs[0].Queue != a.Queue || hs[0].Offset != a.Offset {
			t.Errorf("%s was acknowledged as %v/%d and handed out as %v/%d", sha, a.Queue, a.Offset, hs[0].Queue, hs[0].Offset)
		}
	}
	topics, failures, err := r.c.admin.Topics(t.Context(), topic)
	if err != nil || len(failures) > 0 || len(topics) != 1 {
		t.Fatalf("describe the topic: %v %v %v", topics, failures, err)
	}
	if topics[0].Messages != int64(r.all) {
		t.Errorf("%d messages are stored, want %d", topics[0].Messages, r.all)
	}
	t.Logf("%d commits acknowledged, %d of them were found stored when they were sent again", len(acked), repeats)
}
