// Package compare is the laboratory: it runs models of rebalancing side by side
// through the same scenarios, with the same workload, faults, seeds and
// instruments, and shows what each did.
//
// A model is a way for a consumer group to share queues: without a coordinator, as
// Tacit and RocketMQ do, or with one, as Kafka does. A scenario is a list of things
// that happen to a group that has settled. A run is one model in one scenario at one
// size, either simulated (the cores in virtual time) or live (brokers and clients on
// sockets of this machine). What is measured, and how, is said at [Measures].
package compare
