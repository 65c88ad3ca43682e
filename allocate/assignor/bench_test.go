package assignor

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// bigGroup has so many queues in 10 topics and members that all read all of them,
// or each every second one or so.
func bigGroup(queues, members int, equal bool) Input {
	rng := rand.New(rand.NewPCG(1, 2))
	const topics = 10
	counts := map[string]int{}
	for i := range topics {
		counts[fmt.Sprintf("topic-%d", i)] = queues / topics
	}
	in := Input{Topics: partitions(counts)}
	for i := range members {
		m := Member{ID: fmt.Sprintf("member-%d-%016x", i, rng.Uint64()), Generation: NoGeneration}
		for t := range topics {
			if equal || rng.IntN(2) == 0 {
				m.Topics = append(m.Topics, fmt.Sprintf("topic-%d", t))
			}
		}
		in.Members = append(in.Members, m)
	}
	return in
}

// joined is a settled group with a new member that reads everything.
func joined(b *testing.B, a Assignor, in Input) Input {
	b.Helper()
	in = settle(in, assign(b, a, in), 1)
	m := Member{ID: "new", Generation: NoGeneration}
	for topic := range in.Topics {
		m.Topics = append(m.Topics, topic)
	}
	in.Members = append(in.Members, m)
	return in
}

func benchmark(b *testing.B, a Assignor, in Input) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.Assign(in); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEqual shares 10 000 queues among 1 000 members from nothing and when
// one more joins.
func BenchmarkEqual(b *testing.B) {
	for _, a := range []Assignor{Range(), RoundRobin(), Sticky(), CooperativeSticky(), Uniform()} {
		in := bigGroup(10_000, 1_000, true)
		b.Run(a.Name()+"/first", func(b *testing.B) { benchmark(b, a, in) })
		b.Run(a.Name()+"/join", func(b *testing.B) { benchmark(b, a, joined(b, a, in)) })
	}
}

// BenchmarkDiffering does so where subscriptions differ.
func BenchmarkDiffering(b *testing.B) {
	for _, size := range []struct{ queues, members int }{{1_000, 100}, {10_000, 1_000}} {
		in := bigGroup(size.queues, size.members, false)
		for _, a := range []Assignor{Sticky(), Uniform()} {
			name := fmt.Sprintf("%dx%d/%s", size.queues, size.members, a.Name())
			b.Run(name+"/first", func(b *testing.B) { benchmark(b, a, in) })
			b.Run(name+"/join", func(b *testing.B) { benchmark(b, a, joined(b, a, in)) })
		}
	}
}
