// Package lease decides who may consume which queue of a broker: one lease per
// (group, queue), with an epoch that fences everything done under an older one.
//
// It does no I/O, reads no clock and starts nothing. [Table] is told what
// happened by its methods; what must be done is collected and taken with
// [Table.Flush]: records and offsets to store, frames' contents for sessions,
// answers. Equal histories give equal output, in equal order.
//
// # States of one (group, queue)
//
//	free      nobody holds it and nobody waits
//	granting  granted, the record is on its way to the disk
//	held      the record is on disk and the holder was told
//	taken     by an operator's reset or the end of the queue: the holder is told,
//	          nothing under its epoch counts any more, but until it answers with a
//	          release, or its session ends, it may go on handing out, and so nobody
//	          else is granted the queue
//
//	free --Acquire--> granting --Persisted--> held --Release--> free
//	held --Reset with force, SetQueues without it--> taken --Release--> free
//	granting --Reset with force--> granting (another epoch)
//	any --Drop of its holder--> free
//
// Where this says free and somebody waits, it is granting to the first in line.
// A holder is one life (incarnation) of a member. It may be detached: its
// stream broke, or it is known from the store only since the broker started. Its
// leases stay its own then, until it comes back and does not name them
// ([Table.Attach]) or the caller drops it after its timeout ([Table.Drop]). So a
// queue with a stored holder is granted to nobody else after a restart.
//
// # Invariants
//
//   - At most one holder per (group, queue), from the grant until the release.
//   - Epochs of all leases of a table are different, and each grant has a
//     greater one than every grant before, of this life of the broker and of all
//     that the stored records tell of.
//   - A grant, also one in a Welcome, leaves only after its record was stored.
//     The offset of a release is stored together with the record of the next holder.
//   - A release or commit counts only under the epoch of the present lease; the
//     release of a lease that was taken counts as the answer, its offset does not.
//   - The waiting line is in order of arrival. A request ends in a grant, in
//     Withdrawn, or with the session that made it. A free queue has no line.
//
// # Memory
//
// Free leases are remembered for the last epoch only, so that a member that
// comes back while nobody else was granted keeps its process queue. Forgetting
// them ([Table.Forget]) is always safe: the counter of epochs is the table's, not
// the queue's. Stored records without a holder are not loaded at all.
package lease
