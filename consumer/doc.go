// Package consumer is the consumer side of the SDK.
//
// A [PushConsumer] calls a handler with messages; a [LitePullConsumer] hands them
// to a loop of the user's own. Both are members of a consumer group: the members
// share the queues of the topics they subscribe to, without a coordinator, and
// share them anew when members, queues or brokers come and go. Package
// consumer/rebalance decides; this package fetches, hands out, stores progress
// and carries those decisions out.
//
// # What is promised
//
// Every message is handed out at least once, and again if its handler fails. In
// the default mode, [Exclusive], a queue is one member's at a time, and nothing is
// handed out twice as long as nothing breaks and handlers end within the drain
// limit: a queue moves when its running handlers have ended and its progress is
// stored. A message that was begun under an ownership that was lost meanwhile
// counts for nothing: it is neither committed nor sent back.
//
// Progress is the lowest message that is not finished, so that nothing before it
// is lost. It is stored every five seconds and whenever a queue is released.
//
// # Memory
//
// What is fetched ahead is bounded by count and bytes for each queue and by bytes
// over all queues. The bodies of one batch share memory: a handler that keeps a
// body keeps the batch, unless it copies.
package consumer
