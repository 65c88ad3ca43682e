package bench

import (
	"context"
	"testing"
)

// system is one thing that is measured.
type system struct {
	name string
	// durable: a message is on disk before it is acknowledged.
	durable bool
	// start starts a server with an empty directory.
	start func(tb testing.TB, dir string) *server
	// Which phases it takes part in, and which have been left out.
	produceOnly, noLatency bool
}

// server is a running one.
type server struct {
	*process
	// dial returns a client of a topic.
	dial func(topic string) (client, error)
}

// client produces and consumes.
type client interface {
	// flood sends bodies as fast as it can until ctx ends, tells of each that is
	// acknowledged, and waits for the rest.
	flood(ctx context.Context, body []byte, acked func(n int)) error
	// send sends one message at once, without waiting for others or for the answer.
	send(body []byte) error
	// consume hands the bodies of all messages, of which the group has seen none
	// yet, to each until ctx ends.
	consume(ctx context.Context, each func(body []byte)) error
	close()
}

func systems() []system {
	return []system{
		{name: "grpc-1", start: startGRPC(1), produceOnly: true},
		{name: "grpc-4", start: startGRPC(4), produceOnly: true},
		{name: "tacit", start: startTacit("none", newSDK)},
		{name: "tacit-push", start: startTacit("none", newPush), noLatency: true},
		{name: "tacit-fsync", start: startTacit("fsync", newSDK), durable: true},
		{name: "tacit-b64", start: startTacit("none", newFrames(64)), produceOnly: true},
		{name: "tacit-b64-fsync", start: startTacit("fsync", newFrames(64)), durable: true, produceOnly: true},
		{name: "tacit-b1", start: startTacit("none", newFrames(1)), produceOnly: true},
		{name: "nats", start: startNATS(false)},
		{name: "nats-fsync", start: startNATS(true), durable: true},
		{name: "nsq", start: startNSQ},
		{name: "redis", start: startRedis("everysec")},
		{name: "redis-fsync", start: startRedis("always"), durable: true},
	}
}
