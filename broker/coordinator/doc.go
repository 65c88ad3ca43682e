// Package coordinator decides for the groups of the coordinated model, as Kafka's
// group coordinator does: the classic protocol (join barrier, leader, sync) and the
// consumer protocol (KIP-848: epochs, target, reconciliation).
//
// It does no I/O, reads no clock and starts nothing: [Coordinator.Step] takes an
// [Event] and returns [Effect] values. Equal histories give equal effects, in equal
// order. Words and requests are those of package coordination.
//
// # Classic
//
//	Empty --first join--> Preparing --all joined, or time--> Completing --plan stored--> Stable
//	Stable, Completing --join, leave, failure, changed subscription--> Preparing
//	Preparing --all gone--> Empty
//	any --another broker coordinates, nobody came for long--> forgotten
//
// A generation is written when its plan is there and before a sync is answered.
// A gathering is not written: a restarted coordinator has the last generation that
// was completed, and members whose join was lost join again.
//
// # Consumer protocol
//
// The group's epoch grows with every change, the target follows at most once in
// [Config.AssignmentInterval], each member follows the target on its own heartbeats.
// A queue belongs to a member from the answer that has it until the member reports
// that it is given up, or is removed. What an answer tells is stored before.
//
// # Losing the coordinator
//
// Nobody else has the records of a lost coordinator. A request that names a
// generation which the coordinator cannot know is answered LoadInProgress, and the
// member sends what it was told ([coordination.Resume]). The first such report opens
// a window of one session timeout, in which members of that generation are taken
// back and none of their queues is given away. When it ends the classic group is
// complete if its leader came and every queue of the subscribed topics is some
// member's; else it rebalances. (A queue that nobody owns is how a member that never
// came is known; while the queues of a topic are not known, only the leader counts.)
// In the consumer protocol the target is computed anew then, and if nothing differs
// no epoch changes.
//
// A group that begins here with a join, because the newcomer was faster than the
// old members, takes those back in the same way until its first generation.
//
// Offsets are no concern of the coordinator: the broker of each queue stores them and
// refuses what comes under a generation below the greatest that claimed the queue.
package coordinator
