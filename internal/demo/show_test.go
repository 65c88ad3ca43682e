package demo

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tacitmq/tacit/allocate"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if normal := strings.ReplaceAll(string(want), "\r\n", "\n"); got != normal {
		t.Errorf("got\n%s\nwant\n%s", got, normal)
	}
}

// sample is an event in which one queue moved, and some figures are bad.
func sample(queues int32) *EventResult {
	r := &EventResult{
		Event: "join", title: "c3 joins", SettledMS: 41.3, Moved: 1, Minimum: 1, PausedQueues: 1, MaxPauseMS: 9.1, settled: true,
		members: []string{"c1", "c2", "c3"}, before: make(allocate.Owners), owners: make(allocate.Owners),
	}
	for _, broker := range []string{"broker-a", "broker-b"} {
		for id := range queues {
			q := allocate.Queue{Topic: Topic, Broker: broker, ID: id}
			r.queues = append(r.queues, q)
			owner := []string{"c1", "c2", "c3"}[id%3]
			r.before[q], r.owners[q] = owner, owner
		}
	}
	r.before[r.queues[2]] = "c1"
	delete(r.before, r.queues[3])
	delete(r.owners, r.queues[4])
	return r
}

func TestTablesLookAsTheyShould(t *testing.T) {
	bad := sample(4)
	bad.settled, bad.why, bad.Moved, bad.Lost, bad.twice = false, "nobody holds broker-a/4", 3, 2, 1
	res := &Result{
		Events: []EventResult{*sample(4), *bad}, Produced: 1000, Consumed: 998, Lost: 2, Duplicates: 3,
	}
	for _, c := range []struct {
		name  string
		color bool
		width int
	}{{"plain80", false, 80}, {"color80", true, 80}, {"plain140", false, 140}, {"plain60", false, 60}} {
		t.Run(c.name, func(t *testing.T) {
			var b strings.Builder
			s := newShow(&b, c.color, c.width)
			s.event(2, sample(4))
			s.event(3, sample(20))
			s.event(4, bad)
			s.summary(res)
			s.json(res)
			golden(t, c.name+".golden", b.String())
			for l := range strings.SplitSeq(b.String(), "\n") {
				if n := len([]rune(l)); !c.color && n > c.width && !strings.HasPrefix(l, "{") {
					t.Errorf("%d columns: %s", n, l)
				}
			}
		})
	}
}
