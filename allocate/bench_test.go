package allocate_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tacitmq/tacit/allocate"
)

// bigInput is 10 000 queues on 16 brokers and 1 000 members, normalized.
func bigInput() allocate.Input {
	return sizedInput(10_000, 1_000, 16, rand.New(rand.NewPCG(1, 2)))
}

func sizedInput(queues, members, brokers int, rng *rand.Rand) allocate.Input {
	in := allocate.Input{Group: "group", Topic: topic}
	for i := range queues {
		broker := fmt.Sprintf("broker-%d", i%brokers)
		in.Queues = append(in.Queues, allocate.Queue{Topic: topic, Broker: broker, ID: int32(i / brokers)})
	}
	for range members {
		in.Members = append(in.Members, allocate.Member{ClientID: randomID(rng)})
	}
	return in.Normalize()
}

func randomID(rng *rand.Rand) string {
	return fmt.Sprintf("10.0.%d.%d@%d#%016x", rng.IntN(256), rng.IntN(256), 1+rng.IntN(99_999), rng.Uint64())
}

// settle makes the members own what s gives them.
func settle(s allocate.Strategy, in allocate.Input) allocate.Input {
	all, err := s.Allocate(in)
	if err != nil {
		panic(err)
	}
	members := make([]allocate.Member, len(in.Members))
	for i, m := range in.Members {
		m.Owned = all[m.ClientID]
		members[i] = m
	}
	in.Members = members
	return in
}

func benchmark(b *testing.B, s allocate.Strategy, in allocate.Input) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Allocate(in); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAveragely(b *testing.B)         { benchmark(b, allocate.Averagely{}, bigInput()) }
func BenchmarkCircle(b *testing.B)            { benchmark(b, allocate.AveragelyByCircle{}, bigInput()) }
func BenchmarkRendezvous(b *testing.B)        { benchmark(b, allocate.Rendezvous{}, bigInput()) }
func BenchmarkStickyFromNothing(b *testing.B) { benchmark(b, allocate.Sticky{}, bigInput()) }

func BenchmarkConsistentHash(b *testing.B) {
	benchmark(b, must(allocate.NewConsistentHash(allocate.DefaultVirtualNodes)), bigInput())
}

func BenchmarkStickySettled(b *testing.B) {
	benchmark(b, allocate.Sticky{}, settle(allocate.Sticky{}, bigInput()))
}

func BenchmarkStickyJoin(b *testing.B) {
	in := settle(allocate.Sticky{}, bigInput())
	in.Members = append(in.Members, allocate.Member{ClientID: "10.0.0.1@1#new"})
	benchmark(b, allocate.Sticky{}, in.Normalize())
}

// BenchmarkShareSticky is a whole pass from unsorted lists of a settled group.
func BenchmarkShareSticky(b *testing.B) {
	in := shuffled(settle(allocate.Sticky{}, bigInput()), rand.New(rand.NewPCG(3, 4)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := allocate.Share(allocate.Sticky{}, in); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSnapshot sorts what came unsorted: once for each change.
func BenchmarkSnapshot(b *testing.B) {
	in := shuffled(bigInput(), rand.New(rand.NewPCG(3, 4)))
	b.ReportAllocs()
	for b.Loop() {
		in.Normalize()
	}
}

// BenchmarkAveragelyOfOne finds the part of one member in a kept snapshot.
func BenchmarkAveragelyOfOne(b *testing.B) {
	in := bigInput()
	id := in.Members[700].ClientID
	b.ReportAllocs()
	for b.Loop() {
		i, _ := in.Member(id)
		from, to := allocate.AveragelyRange(len(in.Queues), len(in.Members), i)
		if len(in.Queues[from:to]) != 10 {
			b.Fatal("not 10 queues")
		}
	}
}

// BenchmarkCircleOfOne does so for AveragelyByCircle, into a reused slice.
func BenchmarkCircleOfOne(b *testing.B) {
	in := bigInput()
	id := in.Members[700].ClientID
	var part []allocate.Queue
	b.ReportAllocs()
	for b.Loop() {
		i, _ := in.Member(id)
		if part = allocate.AppendCircle(part[:0], in.Queues, len(in.Members), i); len(part) != 10 {
			b.Fatal("not 10 queues")
		}
	}
}

func BenchmarkHash(b *testing.B) {
	id := randomID(rand.New(rand.NewPCG(1, 2)))
	b.ReportAllocs()
	for b.Loop() {
		allocate.NewHash().String("orders").String(id).Sum64()
	}
}

func shuffled(in allocate.Input, rng *rand.Rand) allocate.Input {
	queues := make([]allocate.Queue, len(in.Queues))
	for i, j := range rng.Perm(len(in.Queues)) {
		queues[i] = in.Queues[j]
	}
	members := make([]allocate.Member, len(in.Members))
	for i, j := range rng.Perm(len(in.Members)) {
		members[i] = in.Members[j]
	}
	in.Queues, in.Members = queues, members
	return in
}
