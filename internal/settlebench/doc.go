// Package settlebench measures how fast a consumer group settles after a join, a
// graceful leave and a crash, how many queues move and for how long they have no
// owner: the figures behind rule L1 of docs/DESIGN.md. And what members cost:
// messages and bytes on the wire of a settled group, and of a thousand joins at
// once.
//
// A name server and two brokers serve on loopback; the members are consumers of
// this process with connections of their own. There are only benchmarks here:
//
//	go test ./internal/settlebench -run '^$' -bench . -timeout 1h
//
// prints the whole tables. SETTLE_CYCLES sets how often each event is repeated (20).
package settlebench
