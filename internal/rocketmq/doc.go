// Package rocketmq is how Apache RocketMQ 5.3 shares the queues of a clustering,
// concurrent push consumer group, as pure cores for the simulation: the client's three
// threads that matter ([Client]), the broker's table of consumers and its offsets
// ([Broker]) and the name server's routes ([NameServer]). Nothing here is meant to talk to
// a real RocketMQ.
//
// No coordinator, no fencing: each client computes the whole assignment alone, from the
// queues of a route that it polls and from the ids that one random broker knows, and
// starts and stops its own pulls. Two owners and none last as long as two such lists
// differ.
//
// Left out, since the simulation has no use for it: ordered and broadcasting consumers,
// lite pull and pop, several groups in a client, subscribe and unsubscribe while running,
// suspend, reset of offsets, replicas, answers that an offset is illegal.
package rocketmq
