// Package rebalance is the decentralized engine of a consumer group member: it
// decides which queues the member asks for, takes, drains and gives back. It
// does no I/O, starts no goroutine, reads no clock and keeps no order of a map:
// equal histories of [Engine.Step] give equal effects.
//
// # States
//
// A broker of a subscribed topic is connecting (the shell is at it), greeting
// (hello sent) or welcomed. A queue is, for an Exclusive member:
//
//	free -> waiting     the pass gives it to us, its broker has no session yet
//	     -> asked       Acquire is out; answered by a grant or Withdrawn
//	     -> owned       the lease is ours: Assign
//	     -> draining    Revoke; answered by Drained
//	     -> drained     only while the broker cannot be told of the release
//	     -> free
//	asked -> withdrawing -> free (Withdrawn) or owned (the grant was under way)
//	free  -> claimed    a static member's predecessor reported it as owned and
//	                    its broker has not yet said so
//
// Immediate and Broadcasting members know only owned and draining.
//
// # Invariants
//
//   - One request for a queue is outstanding at most.
//   - Every Assign of a queue is followed by one Lose, or by one Revoke (itself
//     answered by Drained or overtaken by Lose), before the queue's next Assign. A
//     Lose may cross with a Drained under way.
//   - No queue of a broker is dispatched after the time of the last Extend: one
//     session timeout after the last answered heartbeat was sent, or the end of the
//     stream. What has run out is lost before an event is looked at; what only waits
//     for the next welcome is kept, process queue and all.
//   - "Not owned" is reported before the lease is released.
//   - A pass is a pure function of a view; its own part is what the member wants
//     until the next pass. An error or panic of a strategy leaves it as it is.
//
// # What the shell must keep
//
// Frames and ends of a stream that was closed by Disconnect, or followed by a
// newer Connected, must not be handed to the engine any more. Every Revoke is
// answered by Drained within the drain limit. An Assign with the zero Epoch (not
// an Exclusive group) carries no offset: the shell asks the broker for it. Extend
// is sent in Exclusive groups only; the others have no lease to run out. It sets
// the time, also to an earlier one. Connections are closed by Disconnect alone: to
// a broker a close by the peer frees leases at once, so a shell that closes one
// by itself, as a client's keepalive would, must first stop dispatching.
package rebalance
