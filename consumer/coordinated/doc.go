// Package coordinated is the member side of the coordinated model, for those who
// prefer it and for comparison: the group protocols of Kafka's clients, classic (eager
// or cooperative) and consumer (KIP-848).
//
// It takes the events and gives the effects of package rebalance, so that one shell
// drives both models: what is assigned, revoked and lost is dispatched, drained and
// dropped in the same way. It does no I/O and reads no clock.
//
//	classic    join --parked--> joined --sync--> assignment; heartbeats tell of the next
//	eager      gives everything up before it joins
//	cooperative  keeps all while it joins, gives up what the assignment lacks, joins again
//	consumer   heartbeats alone: what the answer lacks is given up and reported, what it
//	           has is taken
//
// Nothing here is fenced by a clock: a member that hears nobody keeps its queues, as
// Kafka's clients do. The broker of each queue fences fetches and commits: by the
// generation under which a queue was assigned, which its new owner claims there first.
package coordinated
