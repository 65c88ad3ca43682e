// Package demo shows and measures what Tacit is for: a group of consumers that
// shares the queues of a topic while members, queues and brokers come and go.
//
// A name server and two brokers run in this process on real sockets, with a
// temporary data directory; a producer gives every queue messages at a steady
// rate; consumers are processes of their own, so that a kill is one. After each
// event the demo waits until the group has settled and goes on watching for a
// while.
//
// How the figures come about:
//
//   - Settled is the group once all of this holds: the brokers have sessions with
//     exactly the members that should be there, every queue's lease is held by one
//     of them, shares differ by at most one queue, the view broker says settled,
//     and what members say of themselves equals the leases. The time is that of
//     the last change of an owner; where none changes, as when a broker restarts,
//     it is when all of this was seen to hold, which is looked at every 5 ms. It
//     counts from the moment a member begins to join, is told to leave, is killed,
//     the topic is changed, the broker or the first member is told to stop.
//   - Moved counts changes of owner, by the word of the members' rebalance
//     listeners; a queue that goes back and forth counts each time. First owners
//     do not count. The minimum is computed from the owners before and the queues
//     and members after. A queue that nobody had before counts as its first
//     owner's: members that start at once are not seen at once, and what the first
//     ones took at first must move.
//   - A queue pauses while nobody owns it: from the moment its owner stops handing
//     out (or is killed) until the next one says that it begins. It also pauses
//     while a message waits for 100 ms or longer and nothing is handed out, whoever
//     owns it: a broker that is away is seen so.
//   - Lost is a message whose storage was acknowledged and that no handler was
//     given; a duplicate is every hand-out of a message after its first.
package demo
