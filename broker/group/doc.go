// Package group knows who is alive in the consumer groups with sessions at one
// broker, what each group's views are, and, through package lease, who may
// consume which of the broker's queues.
//
// It does no I/O, reads no clock and starts nothing: [Registry.Step] takes the
// time and an [Event] and returns what is to be done as [Effect] values, in
// order. Equal histories give equal effects. Frames in effects are shared between
// sessions and must not be changed.
//
// # Members
//
//	          hello
//	(nobody) -------> attached ---stream breaks---> detached
//	                   |   ^                          |  |
//	                   |   +--------- hello ----------+  |
//	                   | goodbye, close by the peer      | timeout
//	                   | (dynamic), timeout              |
//	                   v                                 v
//	                 ended: leases free, out of the views
//
// A life (client id and incarnation) whose client id another life has taken, and
// a stored holder that has not said hello since the broker started, is a ghost: in
// no view, but its leases stay its own until it comes back or its timeout is over.
// A session ends a timeout after its last frame. After a pause of the broker
// itself pending frames are read first.
//
// # Views
//
// The view of (group, topic) is made of the members that subscribe to the topic,
// are not leaving and are not left out by the reach rule.
//
//	forming -> ready   each member has reported, or was silent for a timeout since
//	                   the view is in use, and nobody that hellos name is missing
//	                   (warming, at most one session timeout)
//	ready -> forming   the broker stood still for long, a hello names unknown
//	                   members while the view is young, members came back from
//	                   another broker, or the topic is not hosted here
//
// Only a ready view is served. Changes open a notice window; when it closes they
// become the next version, one notice for each member and one list shared by all
// who fetch. A fetch of somebody whom the version in the making concerns waits for
// it. A joiner comes into a ready view with its first report.
//
// # Healing
//
// Four signals find a wrong state, whatever made it: heartbeat answers carry the
// digests of the views; an asker is made known to the holder (LeaseWanted); a queue
// of this broker with neither holder nor asker is an orphan, and the members are
// nudged; and when reports are still and nobody drains while expectations differ
// from the ownership, the members are told the ownership. Nudges and signals in
// vain come at doubling intervals.
//
// # Invariants
//
//   - Versions of a view grow, also over the ends of groups; a version's inputs
//     never change.
//   - The notice of a version, applied to the one it names, gives the version's
//     members and queues and its digest.
//   - The ownership of a view is what [session.Owners] says of its members.
//   - One live session for each member, one life for each client id.
//   - A session never ends before the time until which its member may rely on it,
//     also if a later hello agreed on a shorter timeout.
//   - All members of a group share its mode and a strategy, and for each topic the
//     filter.
//
// # Cost
//
// A heartbeat moves a deadline and is answered with a list that is shared until a
// view of the group changes. Deadlines are in a heap whose entries lag behind: an
// entry is looked at once per timeout, not once per heartbeat. n joins within a
// window make one version, n notices or views, and one list.
//
// # Memory
//
// All state hangs on sessions and on members that are remembered for a timeout.
// A view ends with its last member. A group without members is forgotten after
// ForgetAfter with the epochs of its free leases; what is in the store stays there.
package group
