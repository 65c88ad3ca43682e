package assignor

import (
	"maps"
	"slices"
	"testing"

	"github.com/tacitmq/tacit/allocate"
)

// owners says which member has each queue.
type owners map[allocate.Queue]string

func ownersOf(all map[string][]allocate.Queue) owners {
	out := owners{}
	for id, queues := range all {
		for _, q := range queues {
			out[q] = id
		}
	}
	return out
}

// TestSequencesOfChangesEqualThoseOfKafka plays every recorded script: each
// rebalance is exactly the recorded one, and moves what is recorded.
func TestSequencesOfChangesEqualThoseOfKafka(t *testing.T) {
	t.Parallel()
	file := readRecorded(t)
	for i := range file.Sequences {
		s := &file.Sequences[i]
		for name, run := range s.Runs {
			t.Run(s.Name+"/"+name, func(t *testing.T) {
				t.Parallel()
				in := Input{}
				counts := maps.Clone(s.Topics)
				for _, m := range s.Members {
					in.Members = append(in.Members, m.member(t))
				}
				before := owners{}
				for at, result := range run {
					if at > 0 {
						step := s.Steps[at-1]
						find := func() int {
							return slices.IndexFunc(in.Members, func(m Member) bool { return m.ID == step.Member })
						}
						switch step.Op {
						case "join":
							in.Members = append(in.Members, Member{ID: step.Member, Topics: step.Topics, Generation: NoGeneration})
						case "leave":
							in.Members = slices.Delete(in.Members, find(), find()+1)
						case "grow":
							counts[step.Topic] = step.Partitions
						case "subscribe":
							in.Members[find()].Topics = step.Topics
						default:
							t.Fatalf("step %q", step.Op)
						}
					}
					in.Topics = partitions(counts)
					var got map[string][]allocate.Queue
					for n, r := range result.Rebalances {
						got = assign(t, byName(t, name, r.IterationOrder), in)
						if !sameTexts(texts(got), r.Expected) {
							t.Fatalf("step %d, rebalance %d:\ngot  %v\nwant %v", at, n, texts(got), r.Expected)
						}
						for m := range in.Members {
							in.Members[m].Owned = got[in.Members[m].ID]
							in.Members[m].Generation = r.Generation
						}
					}
					after := ownersOf(got)
					c := count(before, after, in)
					c.min, c.max = extent(got)
					if want := (counted{result.Moved, result.Orphaned, result.Fresh, result.Min, result.Max}); c != want {
						t.Fatalf("step %d: %+v, want %+v", at, c, want)
					}
					before = after
				}
			})
		}
	}
}

type counted struct{ moved, orphaned, fresh, min, max int }

// count compares owners before and after a change as the recorded sequences do.
func count(before, after owners, in Input) (c counted) {
	for q, now := range after {
		old, had := before[q]
		stays := slices.ContainsFunc(in.Members, func(m Member) bool { return m.ID == old && slices.Contains(m.Topics, q.Topic) })
		switch {
		case !had:
			c.fresh++
		case !stays:
			c.orphaned++
		case old != now:
			c.moved++
		}
	}
	return c
}

func extent(all map[string][]allocate.Queue) (least, most int) {
	first := true
	for _, queues := range all {
		if first || len(queues) < least {
			least = len(queues)
		}
		most = max(most, len(queues))
		first = false
	}
	return least, most
}
