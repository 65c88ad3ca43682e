// Package bench puts Tacit beside other message queues and beside the bare
// transport, in one run on one machine, and measures what connected members cost
// a broker. It is a module of its own so that the SDK depends on none of the
// systems compared.
//
// There are only benchmarks here, for `make bench` in the parent directory:
//
//	go test -run '^$' -bench . -timeout 1h
//
// Every server is a process of its own: the test binary started again with a
// role, or redis-server if that is installed. The client, producers and consumers
// together, is the test's own process. Systems take turns and each round begins
// with fresh servers in an empty directory; what is printed are medians over
// BENCH_ROUNDS rounds (3) with the range beside them. BENCH_SECONDS sets how long a
// phase takes (2), BENCH_SIZE the bytes of a message (1024), and BENCH_SYSTEMS
// picks systems by a regular expression.
package bench
