package allocate_test

import (
	"cmp"
	"crypto/md5"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"

	"github.com/tacitmq/tacit/allocate"
)

// The oracles below say the same as the strategies in the plainest way, one
// member at a time or by sorting all pairs, without a thought for cost.

// oracle returns what one member gets of a sorted input that may hold doubles.
type oracle func(in allocate.Input, clientID string) []allocate.Queue

func memberIDs(in allocate.Input) []string {
	ids := make([]string, len(in.Members))
	for i, m := range in.Members {
		ids[i] = m.ClientID
	}
	return ids
}

func averagelyOracle(in allocate.Input, id string) (out []allocate.Queue) {
	n, m, i := len(in.Queues), len(in.Members), slices.Index(memberIDs(in), id)
	mod, size := n%m, n/m
	if i < mod {
		size++
	}
	start := i * size
	if i >= mod {
		start += mod
	}
	for k := range size {
		out = append(out, in.Queues[start+k])
	}
	return out
}

func circleOracle(in allocate.Input, id string) (out []allocate.Queue) {
	i := slices.Index(memberIDs(in), id)
	for k, q := range in.Queues {
		if k%len(in.Members) == i {
			out = append(out, q)
		}
	}
	return out
}

func machineRoomOracle(rooms ...string) oracle {
	return func(in allocate.Input, id string) (out []allocate.Queue) {
		var kept []allocate.Queue
		for _, q := range in.Queues {
			parts := strings.Split(q.Broker, "@")
			for len(parts) > 0 && parts[len(parts)-1] == "" {
				parts = parts[:len(parts)-1]
			}
			if len(parts) == 2 && slices.Contains(rooms, parts[0]) {
				kept = append(kept, q)
			}
		}
		m, i := len(in.Members), slices.Index(memberIDs(in), id)
		each := len(kept) / m
		for k, q := range kept {
			if k/max(each, 1) == i && k < each*m || k == each*m+i && i < len(kept)%m {
				out = append(out, q)
			}
		}
		return out
	}
}

func consistentHashOracle(virtualNodes int) oracle {
	hash := func(s string) uint32 {
		sum := md5.Sum([]byte(s))
		return binary.BigEndian.Uint32(sum[:])
	}
	return func(in allocate.Input, id string) (out []allocate.Queue) {
		ring := map[uint32]string{}
		for _, m := range in.Members {
			already := 0
			for _, owner := range ring {
				if owner == m.ClientID {
					already++
				}
			}
			for v := range virtualNodes {
				ring[hash(fmt.Sprintf("%s-%d", m.ClientID, already+v))] = m.ClientID
			}
		}
		if len(ring) == 0 {
			return nil
		}
		points := slices.Sorted(maps.Keys(ring))
		for _, q := range in.Queues {
			key := hash(fmt.Sprintf("MessageQueue [topic=%s, brokerName=%s, queueId=%d]", q.Topic, q.Broker, q.ID))
			owner := ring[points[0]]
			for _, p := range points {
				if p >= key {
					owner = ring[p]
					break
				}
			}
			if owner == id {
				out = append(out, q)
			}
		}
		return out
	}
}

func nearbyOracle(inner oracle, zoneOf func(broker string) string) oracle {
	return func(in allocate.Input, id string) (out []allocate.Queue) {
		memberZone := func(m allocate.Member) string {
			zone, _, err := allocate.DecodeZone(m.Data)
			if err != nil {
				panic(err)
			}
			return zone
		}
		part := func(zone string, everybody bool) allocate.Input {
			var sub allocate.Input
			for _, q := range in.Queues {
				if zoneOf(q.Broker) == zone {
					sub.Queues = append(sub.Queues, q)
				}
			}
			for _, m := range in.Members {
				if everybody || memberZone(m) == zone {
					_, m.Data, _ = allocate.DecodeZone(m.Data)
					sub.Members = append(sub.Members, m)
				}
			}
			return sub
		}
		own := memberZone(in.Members[slices.Index(memberIDs(in), id)])
		if sub := part(own, false); len(sub.Queues) > 0 {
			out = append(out, inner(sub, id)...)
		}
		zones := map[string]bool{}
		for _, q := range in.Queues {
			zones[zoneOf(q.Broker)] = true
		}
		for _, zone := range slices.SortedFunc(maps.Keys(zones), compareUTF16) {
			if len(part(zone, false).Members) == 0 {
				out = append(out, inner(part(zone, true), id)...)
			}
		}
		return out
	}
}

func configOracle(in allocate.Input, id string) []allocate.Queue {
	queues, err := allocate.DecodeQueues(in.Members[slices.Index(memberIDs(in), id)].Data)
	if err != nil {
		panic(err)
	}
	return queues
}

func compareUTF16(a, b string) int {
	return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
}

type pair struct {
	score  uint64
	queue  allocate.Queue
	member string
}

func pairOf(q allocate.Queue, id string) pair {
	queue := allocate.NewHash().String(q.Topic).String(q.Broker).Uint64(uint64(q.ID)).Sum64()
	member := allocate.NewHash().String(id).Sum64()
	return pair{allocate.Hash(queue ^ member).Sum64(), q, id}
}

// greedy takes the best of all pairs, again and again.
func greedy(queues []allocate.Queue, ids []string, room map[string]int, extras int) allocate.Owners {
	var pairs []pair
	for _, q := range queues {
		for _, id := range ids {
			pairs = append(pairs, pairOf(q, id))
		}
	}
	slices.SortFunc(pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(b.score, a.score), a.queue.Compare(b.queue), compareUTF16(a.member, b.member))
	})
	out := allocate.Owners{}
	for _, p := range pairs {
		if _, taken := out[p.queue]; taken {
			continue
		}
		switch {
		case room[p.member] > 0:
		case room[p.member] == 0 && extras > 0:
			extras--
		default:
			continue
		}
		room[p.member]--
		out[p.queue] = p.member
	}
	return out
}

func rendezvousOracle(in allocate.Input) allocate.Owners {
	room := map[string]int{}
	for _, m := range in.Members {
		room[m.ClientID] = len(in.Queues) / len(in.Members)
	}
	return greedy(in.Queues, memberIDs(in), room, len(in.Queues)%len(in.Members))
}

func stickyOracle(in allocate.Input) allocate.Owners {
	ids := memberIDs(in)
	share := len(in.Queues) / len(in.Members)
	held := map[string][]pair{}
	for q, id := range in.Owners() {
		if slices.Contains(in.Queues, q) {
			held[id] = append(held[id], pairOf(q, id))
		}
	}
	extra := func(id string) uint64 { return allocate.NewHash().String(in.Topic).String(id).Sum64() }
	order := slices.SortedFunc(slices.Values(ids), func(a, b string) int {
		if overA, overB := len(held[a]) > share, len(held[b]) > share; overA != overB {
			if overA {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(extra(b), extra(a)), compareUTF16(a, b))
	})
	kept, room := allocate.Owners{}, map[string]int{}
	for i, id := range order {
		quota := share
		if i < len(in.Queues)%len(in.Members) {
			quota++
		}
		slices.SortFunc(held[id], func(a, b pair) int {
			return cmp.Or(cmp.Compare(b.score, a.score), a.queue.Compare(b.queue))
		})
		held[id] = held[id][:min(quota, len(held[id]))]
		for _, p := range held[id] {
			kept[p.queue] = id
		}
		room[id] = quota - len(held[id])
	}
	rest := slices.DeleteFunc(slices.Clone(in.Queues), func(q allocate.Queue) bool { return kept[q] != "" })
	maps.Copy(kept, greedy(rest, ids, room, 0))
	return kept
}

// Generators.

const topic = "orders"

var (
	roomBrokers = []string{"hz@b1", "sh@b1", "sh@b2", "😀@b", "\ue000@b"}
	allBrokers  = append([]string{"broker-a", "broker-10", "broker-2", "@x", "hz@", "hz@b@", "a@b@c", ""}, roomBrokers...)
	zoneNames   = []string{"hz", "sh", "bj", "😀", "\ue000"}
)

func drawQueues(t *rapid.T, brokers []string, least int) []allocate.Queue {
	return rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) allocate.Queue {
		return allocate.Queue{
			Topic:  topic,
			Broker: rapid.SampledFrom(brokers).Draw(t, "broker"),
			ID:     rapid.Int32Range(-1, 15).Draw(t, "id"),
		}
	}), least, 40, func(q allocate.Queue) allocate.Queue { return q }).Draw(t, "queues")
}

func drawID(t *rapid.T) string {
	return rapid.OneOf(
		rapid.StringMatching(`10\.0\.0\.[1-9]@[1-9]`),
		rapid.SampledFrom([]string{"a", "a-0", "a-0-1", "消费者", "😀", "\ue000", "\uffff", "A"}),
	).Draw(t, "client id")
}

// drawInput draws a sorted input of distinct queues; with doubles, client ids may
// come more than once.
func drawInput(t *rapid.T, brokers []string, doubles bool) allocate.Input {
	in := allocate.Input{Group: "group", Topic: topic, Queues: drawQueues(t, brokers, 1)}
	seen := map[string]bool{}
	for range rapid.IntRange(1, 12).Draw(t, "members") {
		if id := drawID(t); doubles || !seen[id] {
			seen[id] = true
			in.Members = append(in.Members, allocate.Member{ClientID: id})
		}
	}
	slices.SortStableFunc(in.Queues, allocate.Queue.Compare)
	slices.SortStableFunc(in.Members, func(a, b allocate.Member) int { return compareUTF16(a.ClientID, b.ClientID) })
	return in
}

// drawOwned gives the queues to owners, now and then to several or to nobody, and
// adds queues that are gone.
func drawOwned(t *rapid.T, in *allocate.Input) {
	for i := range in.Members {
		in.Members[i].Owned = nil
	}
	for _, q := range append(slices.Clone(in.Queues), allocate.Queue{Topic: topic, Broker: "gone", ID: 1}) {
		for range rapid.SampledFrom([]int{0, 1, 1, 1, 1, 2}).Draw(t, "owners") {
			m := &in.Members[rapid.IntRange(0, len(in.Members)-1).Draw(t, "owner")]
			m.Owned = append(m.Owned, q)
		}
	}
}

// Properties: one for each strategy, run by a test and by a fuzz target.

func agrees(t *rapid.T, s allocate.Strategy, in allocate.Input, want oracle) {
	got, err := s.Allocate(in)
	if err != nil {
		t.Fatalf("%s: %v", s.Name(), err)
	}
	for _, id := range memberIDs(in) {
		if w := want(in, id); !slices.Equal(got[id], w) {
			t.Fatalf("%s: %q got\n%v, want\n%v, of\n%v", s.Name(), id, got[id], w, in)
		}
	}
	for id := range got {
		if !slices.Contains(memberIDs(in), id) {
			t.Fatalf("%s: %q is no member", s.Name(), id)
		}
	}
}

func ownersAgree(t *rapid.T, s allocate.Strategy, in allocate.Input, want func(allocate.Input) allocate.Owners) {
	got, err := s.Allocate(in)
	if err != nil {
		t.Fatalf("%s: %v", s.Name(), err)
	}
	if g, w := got.Owners(), want(in.Normalize()); !maps.Equal(g, w) {
		t.Fatalf("%s: got\n%v, want\n%v, of\n%v", s.Name(), g, w, in)
	}
}

func must[S allocate.Strategy](s S, err error) S {
	if err != nil {
		panic(err)
	}
	return s
}

var strategyProperties = map[string]func(*rapid.T){
	"averagely": func(t *rapid.T) {
		agrees(t, allocate.Averagely{}, drawInput(t, allBrokers, true), averagelyOracle)
	},
	"averagely-by-circle": func(t *rapid.T) {
		agrees(t, allocate.AveragelyByCircle{}, drawInput(t, allBrokers, true), circleOracle)
	},
	"machine-room": func(t *rapid.T) {
		rooms := rapid.SliceOfN(rapid.SampledFrom(append(zoneNames, "", "@")), 1, 4).Draw(t, "rooms")
		s := must(allocate.NewMachineRoom(rooms...))
		agrees(t, s, drawInput(t, allBrokers, true), machineRoomOracle(rooms...))
	},
	"consistent-hash": func(t *rapid.T) {
		nodes := rapid.IntRange(0, 12).Draw(t, "virtual nodes")
		agrees(t, must(allocate.NewConsistentHash(nodes)), drawInput(t, allBrokers, true), consistentHashOracle(nodes))
	},
	"config": func(t *rapid.T) {
		in := drawInput(t, allBrokers, false)
		for i := range in.Members {
			in.Members[i].Data = allocate.EncodeQueues(drawQueues(t, allBrokers, 0))
		}
		agrees(t, allocate.Config{}, in, configOracle)
	},
	"machine-room-nearby": func(t *rapid.T) {
		in := drawInput(t, roomBrokers, false)
		// The inner strategies, and what each wants as data.
		zone := func() string { return rapid.SampledFrom(zoneNames).Draw(t, "zone") }
		zones := map[string]string{}
		for _, broker := range roomBrokers {
			zones[broker] = zone()
		}
		byName := func(broker string) string { zone, _, _ := strings.Cut(broker, "@"); return zone }
		byMap := func(broker string) string { return zones[broker] }
		inner := rapid.SampledFrom([]struct {
			strategy allocate.Strategy
			oracle   oracle
			data     func() []byte
		}{
			{allocate.Averagely{}, averagelyOracle, func() []byte { return nil }},
			{allocate.AveragelyByCircle{}, circleOracle, func() []byte { return nil }},
			{must(allocate.NewMachineRoom("sh", "😀")), machineRoomOracle("sh", "😀"), func() []byte { return nil }},
			{allocate.Config{}, configOracle, func() []byte { return allocate.EncodeQueues(drawQueues(t, allBrokers, 0)) }},
			{
				must(allocate.NewMachineRoomNearby(allocate.AveragelyByCircle{}, zones)), nearbyOracle(circleOracle, byMap),
				func() []byte { return allocate.EncodeZone(zone(), nil) },
			},
		}).Draw(t, "inner")
		for i := range in.Members {
			in.Members[i].Data = allocate.EncodeZone(zone(), inner.data())
		}
		agrees(t, must(allocate.NewMachineRoomNearby(inner.strategy, nil)), in, nearbyOracle(inner.oracle, byName))
		agrees(t, must(allocate.NewMachineRoomNearby(inner.strategy, zones)), in, nearbyOracle(inner.oracle, byMap))
	},
	"rendezvous": func(t *rapid.T) {
		ownersAgree(t, allocate.Rendezvous{}, drawInput(t, allBrokers, true), rendezvousOracle)
	},
	"sticky": func(t *rapid.T) {
		in := drawInput(t, allBrokers, true)
		drawOwned(t, &in)
		ownersAgree(t, allocate.Sticky{}, in, stickyOracle)
	},
}

func TestStrategiesAgreeWithTheirOracles(t *testing.T) {
	t.Parallel()
	if got, want := slices.Sorted(maps.Keys(strategyProperties)), allocate.Names(); !slices.Equal(got, want) {
		t.Fatalf("oracles for %v, strategies %v", got, want)
	}
	for name, property := range strategyProperties {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, property)
		})
	}
}

// TestConsistentHashCountsTheRingPointsOfAnIDListedTwice takes an id whose points
// 24 and 719 fall on one place, so that it goes on with 999 when it comes again;
// besides g that decides over some queues.
func TestConsistentHashCountsTheRingPointsOfAnIDListedTwice(t *testing.T) {
	t.Parallel()
	in := sizedInput(10_000, 1, 4, rand.New(rand.NewPCG(8, 8)))
	in.Members = []allocate.Member{{ClientID: "c5629"}, {ClientID: "c5629"}, {ClientID: "g"}}
	got, err := must(allocate.NewConsistentHash(1_000)).Allocate(in)
	if err != nil {
		t.Fatal(err)
	}
	want := consistentHashOracle(1_000)
	for _, id := range []string{"c5629", "g"} {
		if w := want(in, id); !slices.Equal(got[id], w) {
			t.Errorf("%q gets %d queues, want other %d", id, len(got[id]), len(w))
		}
	}
}

func FuzzAveragely(f *testing.F) { f.Fuzz(rapid.MakeFuzz(strategyProperties["averagely"])) }
func FuzzAveragelyByCircle(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(strategyProperties["averagely-by-circle"]))
}
func FuzzConfig(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(strategyProperties["config"])) }
func FuzzMachineRoom(f *testing.F)    { f.Fuzz(rapid.MakeFuzz(strategyProperties["machine-room"])) }
func FuzzConsistentHash(f *testing.F) { f.Fuzz(rapid.MakeFuzz(strategyProperties["consistent-hash"])) }

func FuzzMachineRoomNearby(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(strategyProperties["machine-room-nearby"]))
}
func FuzzRendezvous(f *testing.F) { f.Fuzz(rapid.MakeFuzz(strategyProperties["rendezvous"])) }
func FuzzSticky(f *testing.F)     { f.Fuzz(rapid.MakeFuzz(strategyProperties["sticky"])) }
