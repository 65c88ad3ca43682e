package bench

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// BenchmarkPeers takes all systems through all phases and prints the tables and
// the targets T5 to T12. One operation is the whole comparison.
func BenchmarkPeers(b *testing.B) {
	size := envInt("BENCH_SIZE", 1024)
	pick := regexp.MustCompile(os.Getenv("BENCH_SYSTEMS"))
	var all []system
	for _, s := range systems() {
		switch {
		case !pick.MatchString(s.name):
		case strings.HasPrefix(s.name, "redis") && !redisInstalled():
			fmt.Println("redis-server is not installed: left out (apt-get install redis-server)")
		default:
			all = append(all, s)
		}
	}
	for range b.N {
		rounds := make(map[string][]round)
		for i := range envInt("BENCH_ROUNDS", 3) {
			for _, s := range all {
				r := s.run(b, size)
				rounds[s.name] = append(rounds[s.name], r)
				fmt.Printf("round %d %-15s produce %.0f consume %.0f both %.0f/%.0f latency %.2f/%.2f/%.2f foreign %.2f\n",
					i+1, s.name, r.produced, r.consumed, r.bothProduced, r.bothConsumed, r.p50, r.p99, r.p999, r.foreign)
			}
		}
		printTable(all, rounds, size)
		for _, t := range targets(rounds) {
			fmt.Println(t)
			b.ReportMetric(t.value, t.name+"-ratio")
		}
	}
}

func printTable(all []system, rounds map[string][]round, size int) {
	fmt.Printf("\n%d B messages, medians of %d rounds (range)\n\n", size, len(rounds[all[0].name]))
	fmt.Println("| system | produce msgs/s | CPU µs/msg server + client | consume backlog msgs/s | CPU µs/msg server + client | at once: produced / consumed msgs/s | latency at 5 000/s p50 / p99 / p99.9 ms | server CPU µs/msg at 5 000/s | bytes written per byte |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|")
	for _, s := range all {
		rs := rounds[s.name]
		med := func(f func(round) float64) float64 { return over(rs, f).median }
		cells := []string{
			s.name,
			rate(over(rs, func(r round) float64 { return r.produced })),
			fmt.Sprintf("%.2f + %.2f", med(func(r round) float64 { return r.produceServer }), med(func(r round) float64 { return r.produceSelf })),
			"–", "–", "–", "–", "–",
			fmt.Sprintf("%.2f", med(func(r round) float64 { return r.writeAmp })),
		}
		if !s.produceOnly {
			cells[3] = rate(over(rs, func(r round) float64 { return r.consumed }))
			cells[4] = fmt.Sprintf("%.2f + %.2f", med(func(r round) float64 { return r.consumeServer }), med(func(r round) float64 { return r.consumeSelf }))
			cells[5] = short(med(func(r round) float64 { return r.bothProduced })) + " / " + short(med(func(r round) float64 { return r.bothConsumed }))
		}
		if !s.produceOnly && !s.noLatency {
			cells[6] = fmt.Sprintf("%.2f / %.2f / %.1f", med(func(r round) float64 { return r.p50 }), med(func(r round) float64 { return r.p99 }), med(func(r round) float64 { return r.p999 }))
			if got := med(func(r round) float64 { return r.reached }); got < 0.95 {
				cells[6] += fmt.Sprintf(" (%.0f %% of the rate)", got*100)
			}
			cells[7] = fmt.Sprintf("%.0f", med(func(r round) float64 { return r.latencyServer }))
		}
		fmt.Println("| " + strings.Join(cells, " | ") + " |")
	}
	fmt.Println()
}

func short(v float64) string {
	switch {
	case v >= 999_500:
		return fmt.Sprintf("%.2fM", v/1e6)
	case v >= 10_000:
		return fmt.Sprintf("%.0fk", v/1000)
	case v >= 1000:
		return fmt.Sprintf("%.1fk", v/1000)
	}
	return fmt.Sprintf("%.0f", v)
}

func rate(s spread) string {
	return fmt.Sprintf("%s (%s–%s)", short(s.median), short(s.least), short(s.most))
}

// target is a ratio within this run and the floor or ceiling to hold.
type target struct {
	name, what string
	value      float64
	bound      float64
	most       bool // the bound is a ceiling
}

func (t target) String() string {
	sign, ok := "≥", t.value >= t.bound
	if t.most {
		sign, ok = "≤", t.value <= t.bound
	}
	verdict := "reached"
	if !ok {
		verdict = "NOT REACHED"
	}
	return fmt.Sprintf("| %s | %s | %s %.2f | %.2f | %s |", t.name, t.what, sign, t.bound, t.value, verdict)
}

// targets computes T5 to T12 as far as their systems took part: ratios of medians.
func targets(rounds map[string][]round) []target {
	produced := func(r round) float64 { return r.produced }
	consumed := func(r round) float64 { return r.consumed }
	bothConsumed := func(r round) float64 { return r.bothConsumed }
	p50 := func(r round) float64 { return r.p50 }
	var out []target
	add := func(name, what string, bound float64, most bool, a string, f func(round) float64, b string, g func(round) float64) {
		x, y := over(rounds[a], f).median, over(rounds[b], g).median
		if len(rounds[a]) > 0 && len(rounds[b]) > 0 && y > 0 {
			out = append(out, target{name, what, x / y, bound, most})
		}
	}
	add("T5a", "produce, SDK ÷ bare gRPC, one stream", 0.5, false, "tacit", produced, "grpc-1", produced)
	add("T5b", "produce, batches of 64 on two streams ÷ bare gRPC, one stream", 0.5, false, "tacit-b64", produced, "grpc-1", produced)
	add("T5c", "produce, batches of 64 on two streams ÷ bare gRPC, four streams", 0.5, false, "tacit-b64", produced, "grpc-4", produced)
	add("T6a", "produce, SDK ÷ JetStream", 4, false, "tacit", produced, "nats", produced)
	add("T6b", "produce, SDK ÷ NSQ", 4, false, "tacit", produced, "nsq", produced)
	add("T6c", "produce, SDK ÷ Redis everysec", 4, false, "tacit", produced, "redis", produced)
	add("T7a", "produce fsync'd, SDK ÷ JetStream not fsync'd", 2.5, false, "tacit-fsync", produced, "nats", produced)
	add("T7b", "produce fsync'd, SDK ÷ Redis always", 5, false, "tacit-fsync", produced, "redis-fsync", produced)
	add("T7c", "produce fsync'd, batches of 64 ÷ JetStream not fsync'd", 2.5, false, "tacit-b64-fsync", produced, "nats", produced)
	add("T7d", "produce fsync'd, batches of 64 ÷ Redis always", 5, false, "tacit-b64-fsync", produced, "redis-fsync", produced)
	add("T8", "produce, one message a frame ÷ JetStream", 1.7, false, "tacit-b1", produced, "nats", produced)
	best := "redis"
	for _, p := range []string{"nats", "nsq"} {
		if over(rounds[p], consumed).median > over(rounds[best], consumed).median {
			best = p
		}
	}
	add("T9a", "consume a backlog, poll ÷ best peer ("+best+")", 3, false, "tacit", consumed, best, consumed)
	add("T9b", "consume a backlog, poll ÷ JetStream", 4, false, "tacit", consumed, "nats", consumed)
	add("T9c", "consume a backlog, handlers ÷ best peer ("+best+")", 3, false, "tacit-push", consumed, best, consumed)
	add("T9d", "consume a backlog, handlers ÷ JetStream", 4, false, "tacit-push", consumed, "nats", consumed)
	best = "nsq"
	for _, p := range []string{"nats", "redis"} {
		if over(rounds[p], bothConsumed).median > over(rounds[best], bothConsumed).median {
			best = p
		}
	}
	add("T10a", "at once: consumed ÷ produced", 0.95, false, "tacit", bothConsumed, "tacit", func(r round) float64 { return r.bothProduced })
	add("T10b", "at once: consumed ÷ best peer ("+best+")", 3, false, "tacit", bothConsumed, best, bothConsumed)
	add("T10c", "at once, handlers: consumed ÷ produced", 0.95, false, "tacit-push", bothConsumed, "tacit-push", func(r round) float64 { return r.bothProduced })
	cpu := func(r round) float64 { return r.produceServer }
	add("T11a", "broker CPU for a message, SDK ÷ JetStream", 1./3, true, "tacit", cpu, "nats", cpu)
	add("T11b", "broker CPU for a message, batches of 64 ÷ JetStream", 1./3, true, "tacit-b64", cpu, "nats", cpu)
	add("T12a", "latency p50 ÷ JetStream", 1, true, "tacit", p50, "nats", p50)
	add("T12b", "latency p99 ÷ JetStream", 1, true, "tacit", func(r round) float64 { return r.p99 }, "nats", func(r round) float64 { return r.p99 })
	add("T12c", "latency p50 fsync'd ÷ Redis always", 0.6, true, "tacit-fsync", p50, "redis-fsync", p50)
	return out
}
