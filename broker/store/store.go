// Package store keeps the message queues of a broker on disk.
//
// Messages go to a segmented log that all queues share (type [Store]); small
// mutable state (committed offsets, leases, scheduled messages, topics) goes to
// Pebble (type [State]).
//
// # Promises
//
//   - With durability Fsync an acknowledged batch survives a power cut, and
//     readers are shown nothing that does not.
//   - Offsets of a queue are given out in the order of the log and never twice. With
//     durability Interval or None a crash of the machine may take the last messages.
//     Then, and when a start finds damage of which it does not know what it was, all
//     queues go on [SkippedOffsets] further on, so that no other message gets an
//     offset of those lost. Otherwise there are no gaps.
//   - A batch that a producer repeats is stored once, within a window of 64 batches
//     for each of the 65 536 pairs of producer and queue used last. A restart
//     shortens none, as long as they fit 4 MiB, which is some 10 000 pairs, and
//     those beyond to 4 batches.
//   - Damage, found by checksums or because the disk cannot read a place though it
//     works otherwise, is reported with file and position and skipped; an unfinished
//     write at the end of the log is cut off. A disk that fails as a whole makes
//     calls fail and nobody skip anything.
//   - A topic that is deleted is gone at once or, if the deletion failed, as it was.
//     One made later under its name has none of its messages and offsets, also
//     if the state that knew of the deletion is lost.
//   - Committed offsets never go back except by a reset or by starting from an
//     older copy of the state, which is reported. If acknowledged updates are
//     missing from a state that otherwise opens, Open refuses unless told to accept it.
//
// What it leaves to its caller: who may commit (epochs of leases), names, quotas.
//
// # Files
//
//	LOCK               held by the process that has the store open
//	log/N.log          segment N: batches one after another, each stamped with its
//	                   place; the one with the highest N is written
//	log/N.index        where the batches of each queue are in segment N; also
//	                   without N.log, for where idle queues go on
//	log/spare-N        a dropped segment's file, to be written again
//	log/unsynced-RUN   the log is written without syncs in this run of the machine
//	state/             Pebble
//	state-S/           copies of it, S counts its updates; the newest two are kept
//	state.damaged/     what was replaced by a copy
//	state.acked        number of the last update that was acknowledged
//
// A segment keeps two files open: 100 GB of messages need 3 200 of them with the
// default size of segments.
//
// # Writing
//
// Appenders push their batches onto a lock-free stack. One committer takes all
// that wait, up to 2 MiB, puts the batches of each queue side by side, stamps
// them, and writes and syncs them at once; then it shows them to readers and
// answers. It alone knows the end of the log, gives out offsets and detects
// repeats, so none of that needs a lock. When a segment is full the next one is
// begun; the keeper, another goroutine, writes the index of the full one.
//
// A write that fails is cut off; after a failed sync nobody knows what the file
// holds, so the segment is sealed where it was last known to be good and a new one
// begun before anything else is acknowledged.
package store

import (
	"errors"
	"time"

	pebblefs "github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tacitmq/tacit/internal/vfs"
)

// StateFS is the file system of the state: Pebble's.
type StateFS = pebblefs.FS

// Queue names a message queue of this broker.
type Queue struct {
	Topic string
	ID    int32
}

// Errors of the log and the state. Returned errors wrap them and name the queue,
// file or value.
var (
	// ErrClosed: the store is closed or closing.
	ErrClosed = errors.New("store is closed")
	// ErrInUse: another process has the directory open.
	ErrInUse = errors.New("store directory is in use by another process")
	// ErrNoQueue: the queue does not exist.
	ErrNoQueue = errors.New("no such queue")
	// ErrBadBatch: a batch is malformed, damaged or over the size limit.
	ErrBadBatch = errors.New("batch refused")
	// ErrOffsetRange: an offset is outside of what the queue holds.
	ErrOffsetRange = errors.New("offset out of range")
	// ErrNoSpace: the disk is full. Appends are refused, all else goes on;
	// appends work again once there is space.
	ErrNoSpace = errors.New("no space left for messages")
	// ErrFenced: the producer has a newer epoch.
	ErrFenced = errors.New("producer epoch is fenced")
	// ErrSequenceExpired: a sequence number is older than the window in which
	// repeats are detected, so whether the batch is stored is not known.
	ErrSequenceExpired = errors.New("producer sequence is older than the window")
	// ErrDamaged: stored data failed its checksum.
	ErrDamaged = errors.New("stored data is damaged")
	// ErrStateLost: no copy of the state opens, or acknowledged updates are missing.
	ErrStateLost = errors.New("state is lost")
)

// SkippedOffsets are left out by every queue when it is not known how many messages
// the log has lost. That many are never written to one queue without a sync between.
const SkippedOffsets = 1 << 32

// Durability says when an append is acknowledged.
type Durability uint8

const (
	// Fsync acknowledges what is on disk. Readers see only that.
	Fsync Durability = iota
	// Interval acknowledges what the operating system has; the log is synced
	// every SyncInterval. A crash of the machine may lose the last of it.
	Interval
	// None leaves syncing to the operating system.
	None
)

// Options of Open. The zero value means the defaults.
type Options struct {
	// Durability of appends. Default: Fsync.
	Durability Durability
	// SyncInterval applies to Interval. Default: 200 ms.
	SyncInterval time.Duration
	// SegmentBytes is the size of a segment file. Default: 64 MiB; at least
	// MaxBatchBytes.
	SegmentBytes int64
	// RetainAge drops segments whose newest message is older. Default: 0, keep.
	RetainAge time.Duration
	// RetainBytes drops the oldest segments while the log is larger. Default: 0, keep.
	RetainBytes int64
	// MaxBatchBytes is the largest batch accepted. One that was scheduled may be
	// as large as a segment. Default: 5 MiB.
	MaxBatchBytes int
	// PendingBytes bounds the batches that wait for the disk; AppendAsync
	// blocks above it. Default: 64 MiB.
	PendingBytes int
	// CacheBytes of the newest messages are kept in memory for readers that
	// keep up. Default: 32 MiB.
	CacheBytes int
	// MinFreeBytes are left free on the disk for the state. Default: 32 MiB.
	MinFreeBytes int64
	// FS of the log. Default: the operating system's.
	FS vfs.FS
	// StateFS of the state. Default: the operating system's.
	StateFS StateFS
	// Now tells the time for store times and retention. Default: time.Now.
	Now func() time.Time
	// Report is told what an operator should know: damage, repairs, a full
	// disk. It must not block and must not call the store. Default: dropped.
	Report func(Event)
	// RetainInterval is the time between two looks at RetainAge and RetainBytes.
	// Default: 30 s.
	RetainInterval time.Duration
	// CheckpointInterval is the time between copies of the state. Default:
	// 30 s; at most a minute.
	CheckpointInterval time.Duration
	// UnreadableAfter is how long the disk must fail to read stored data, while it
	// works otherwise, until that counts as damaged and is skipped. Default: 10 s.
	UnreadableAfter time.Duration
	// Boot names the run of the machine: what was written without a sync is still
	// there after a crash within it. Default: the boot id of Linux; elsewhere "",
	// and every crash counts as a power cut.
	Boot string
	// AcceptStateLoss lets Open go on with what is left of the state if updates
	// that were acknowledged are missing from it, and with an empty state, so that
	// groups start over, if no copy of it opens. Default: Open fails with
	// ErrStateLost.
	AcceptStateLoss bool
}

// Kind says what an Event is about.
type Kind string

// Kinds of events.
const (
	// TornTail: the log ended in an unfinished write, which was cut.
	TornTail Kind = "torn-tail"
	// Damaged: a record failed its checksum and is skipped.
	Damaged Kind = "damaged"
	// IndexRebuilt: a segment's index was missing or damaged and was made again.
	IndexRebuilt Kind = "index-rebuilt"
	// StateRestored: the state was opened from an older copy.
	StateRestored Kind = "state-restored"
	// StateLost: acknowledged updates are missing from the state, which was
	// accepted.
	StateLost Kind = "state-lost"
	// StateTried: a copy of the state was not opened, for a reason that is worth
	// knowing only to who looks into it.
	StateTried Kind = "state-tried"
	// StateReopened: the state, which could not be written, works again.
	StateReopened Kind = "state-reopened"
	// StateEmpty: no copy opened and the loss was accepted.
	StateEmpty Kind = "state-empty"
	// OffsetsSkipped: it is not known which messages the log lost, so all queues go on above the offsets that may have been given out.
	OffsetsSkipped Kind = "offsets-skipped"
	// TopicFound: the log holds a topic that the state does not know; it is
	// made known again.
	TopicFound Kind = "topic-found"
	// SpaceLow and SpaceBack: appends are refused for want of space, or again
	// accepted.
	SpaceLow  Kind = "space-low"
	SpaceBack Kind = "space-back"
	// WriteFailed: the log could not be written or synced.
	WriteFailed Kind = "write-failed"
	// SegmentDropped: retention dropped a segment.
	SegmentDropped Kind = "segment-dropped"
)

// Event is something that an operator should know.
type Event struct {
	Kind     Kind
	File     string // "" if it is about no file
	Position int64  // in the file, bytes
	Bytes    int64  // concerned, if known
	Detail   string
	Err      error
}

// Appended is the result of an append.
type Appended struct {
	// Offset of the first message of the batch.
	Offset int64
	// StoreTime in Unix milliseconds.
	StoreTime int64
	// Duplicate: the batch was stored before; Offset and StoreTime are those of then.
	Duplicate bool
}

// Entry is a batch to append.
type Entry struct {
	// Batch as the producer encoded it; topic and queue are in its header. It
	// must not change until the append is answered.
	Batch []byte
	// Origin is the id of the scheduled message that is now due, or 0. An
	// origin is appended once, also across restarts.
	Origin uint64
}

// Topic is the stored configuration of a topic.
type Topic struct {
	Name string
	// Queues 0 to Queues-1 exist. Lowering it deletes queues with all their
	// messages and offsets; a broker that only stops writing to some keeps the
	// number and says so in Config.
	Queues int32
	// Config is the broker's own, opaque here.
	Config []byte
}

// QueueInfo describes a queue at one moment.
type QueueInfo struct {
	Queue Queue
	// Min is the offset of the oldest message, Max the one that the next will get.
	Min, Max int64
	// FirstTime and LastTime are the store times of the oldest and newest batch
	// in Unix milliseconds; 0 if the queue is empty.
	FirstTime, LastTime int64
}

// Location is where a message with a key may be: in the batch of Queue that
// begins at Offset.
type Location struct {
	Queue  Queue
	Offset int64
	Time   int64 // store time, Unix milliseconds
}
