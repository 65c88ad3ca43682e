// Package broker is the broker: it keeps message queues, serves Produce and
// Fetch streams, and is where members of consumer groups hold their sessions,
// views and leases.
//
// It is a shell. Who is alive, what a view holds and who has a lease is decided
// by the pure core in broker/group, which one mutex owns (see driver); messages
// and state rest in broker/store. The shell turns streams into events, carries
// effects out, and watches the limits of everything that comes in.
//
// Files: server.go (New, Run), topics.go (topics of this broker), driver.go (the
// core and its effects), session.go (session streams), produce.go and fetch.go
// (data streams), offsets.go, sendback.go, schedule.go, admin.go, register.go
// (name servers), conn.go (how a connection ended), metrics.go and
// collector.go.
package broker
