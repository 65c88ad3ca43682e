package batch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
)

// Sizes and bounds of the format. Parse refuses what exceeds them.
const (
	// HeaderSize is the size of the fixed part, which every batch begins with.
	HeaderSize = 100
	// MaxTopic is the longest topic name, in bytes.
	MaxTopic = 255
	// MaxTagHashes and MaxKeyHashes bound the sets of hashes. A batch with more
	// different tags or keys carries none and says so in its flags.
	MaxTagHashes = 64
	MaxKeyHashes = 1024
	// MaxRaw is the largest body before compression, in bytes.
	MaxRaw = 64 << 20
	// MaxSize is the largest batch that the format allows, in bytes. Brokers
	// and clients set lower limits.
	MaxSize = MaxRaw + 64<<10
	// MaxCount is the largest number of messages in a batch.
	MaxCount = 1 << 16

	version = 1
)

// Flags of a batch.
const (
	// FlagManyTags says that the batch has more than MaxTagHashes different
	// tags: it lists none and matches every filter.
	FlagManyTags = 1 << 0
	// FlagManyKeys says the same of keys.
	FlagManyKeys = 1 << 1

	knownFlags = FlagManyTags | FlagManyKeys
)

// Compression of a batch's body.
type Compression uint8

// The numbers are part of the format.
const (
	None Compression = 0
	S2   Compression = 1 // S2 block format
	Zstd Compression = 2
)

func (c Compression) String() string {
	switch c {
	case None:
		return "none"
	case S2:
		return "s2"
	case Zstd:
		return "zstd"
	}
	return fmt.Sprintf("compression(%d)", uint8(c))
}

// Errors of this package; all returned errors wrap one of them.
var (
	// ErrShort: the bytes end before the batch does. More bytes may help.
	ErrShort = errors.New("batch is cut short")
	// ErrMalformed: not a batch, or a field is out of range.
	ErrMalformed = errors.New("malformed batch")
	// ErrChecksum: the bytes are not those that were written.
	ErrChecksum = errors.New("batch checksum does not match")
	// ErrTooLarge: a size exceeds the limit given.
	ErrTooLarge = errors.New("batch is too large")
)

// Header is a view of a batch. Slices share memory with the bytes it was parsed
// from.
type Header struct {
	// Length of the whole batch in bytes.
	Length int
	// Stamp is what the broker wrote; all zero before that.
	Stamp Stamp
	// Topic and Queue name the message queue. Topic shares memory.
	Topic []byte
	Queue int32
	// Count is the number of messages, at least 1. The offsets of the batch are
	// BaseOffset to BaseOffset+Count-1, its sequence numbers likewise.
	Count       int
	Flags       uint8
	Compression Compression
	// ProducerID is 0 for producers that do not want repeats detected.
	ProducerID    uint64
	ProducerEpoch uint32
	BaseSequence  uint64
	// DueTime in Unix milliseconds, 0 for at once.
	DueTime int64
	// RawSize is the size of the body before compression.
	RawSize int
	// BodyCRC as the producer computed it.
	BodyCRC uint32

	tags, keys, body []byte
}

// Stamp holds the fields that the broker fills in.
type Stamp struct {
	BaseOffset int64
	StoreTime  int64 // Unix milliseconds
	// Origin is the id under which the batch waited for its due time, or 0.
	Origin uint64
	// Segment and Position say where in the log the batch was written. A copy
	// found anywhere else is refused by recovery.
	Segment  uint32
	Position uint32
	// Group is the position at which the batches begin that were written, and
	// acknowledged, together with this one. What lies before it was acknowledged
	// earlier: recovery tells damage from an unfinished write by it.
	Group uint32
}

// Parse reads the header of the batch that b begins with. Bytes after the batch
// are ignored. It checks every bound but no checksum, and does not allocate
// unless it fails.
func Parse(b []byte) (Header, error) {
	var h Header
	if len(b) < HeaderSize {
		if len(b) >= 4 && string(b[:4]) != magic {
			return h, fmt.Errorf("%w: begins with %x", ErrMalformed, b[:4])
		}
		return h, ErrShort
	}
	if string(b[:4]) != magic {
		if string(b[:3]) == magic[:3] {
			return h, fmt.Errorf("%w: format version %d, this side knows %d", ErrMalformed, b[3], version)
		}
		return h, fmt.Errorf("%w: begins with %x", ErrMalformed, b[:4])
	}
	le := binary.LittleEndian
	length := le.Uint32(b[offLength:])
	if length < HeaderSize || length > MaxSize {
		return h, fmt.Errorf("%w: length %d, allowed %d to %d", ErrMalformed, length, HeaderSize, MaxSize)
	}
	h.Length = int(length)
	h.Stamp = Stamp{
		BaseOffset: int64(le.Uint64(b[offBaseOffset:])),
		StoreTime:  int64(le.Uint64(b[offStoreTime:])),
		Origin:     le.Uint64(b[offOrigin:]),
		Segment:    le.Uint32(b[offSegment:]),
		Position:   le.Uint32(b[offPosition:]),
		Group:      le.Uint32(b[offGroup:]),
	}
	h.BodyCRC = le.Uint32(b[offBodyCRC:])
	h.Flags = b[offFlags]
	h.Compression = Compression(b[offCompression])
	topicLen := int(b[offTopicLen])
	tags := int(b[offTagCount])
	queue := le.Uint32(b[offQueue:])
	count := le.Uint32(b[offCount:])
	h.ProducerID = le.Uint64(b[offProducerID:])
	h.BaseSequence = le.Uint64(b[offBaseSequence:])
	h.DueTime = int64(le.Uint64(b[offDueTime:]))
	h.ProducerEpoch = le.Uint32(b[offProducerEpoch:])
	raw := le.Uint32(b[offRawSize:])
	keys := int(le.Uint16(b[offKeyCount:]))

	if b[offReserved] != 0 || b[offReserved+1] != 0 || h.Flags&^knownFlags != 0 {
		return h, fmt.Errorf("%w: unknown flags %#x or reserved bytes set", ErrMalformed, h.Flags)
	}
	if h.Compression > Zstd {
		return h, fmt.Errorf("%w: unknown %v", ErrMalformed, h.Compression)
	}
	if topicLen == 0 {
		return h, fmt.Errorf("%w: empty topic", ErrMalformed)
	}
	if tags > MaxTagHashes || keys > MaxKeyHashes {
		return h, fmt.Errorf("%w: %d tag hashes and %d key hashes, allowed %d and %d", ErrMalformed, tags, keys, MaxTagHashes, MaxKeyHashes)
	}
	if queue > 1<<31-1 {
		return h, fmt.Errorf("%w: queue id %d", ErrMalformed, queue)
	}
	// A message takes at least MinMessage bytes before compression.
	if raw > MaxRaw || count == 0 || count > MaxCount || count*MinMessage > raw {
		return h, fmt.Errorf("%w: %d messages in %d bytes before compression, allowed are 1 to %d in up to %d", ErrMalformed, count, raw, MaxCount, MaxRaw)
	}
	if h.Stamp.BaseOffset < 0 || h.Stamp.BaseOffset > 1<<62 || h.BaseSequence > 1<<62 || h.DueTime < 0 {
		return h, fmt.Errorf("%w: base offset %d, base sequence %d or due time %d out of range", ErrMalformed, h.Stamp.BaseOffset, h.BaseSequence, h.DueTime)
	}
	bodyAt := HeaderSize + 8*tags + 8*keys + topicLen
	if bodyAt > h.Length {
		return h, fmt.Errorf("%w: length %d, but the header alone takes %d", ErrMalformed, h.Length, bodyAt)
	}
	if h.Compression == None && h.Length-bodyAt != int(raw) {
		return h, fmt.Errorf("%w: body of %d bytes, the header says %d", ErrMalformed, h.Length-bodyAt, raw)
	}
	if len(b) < h.Length {
		return h, ErrShort
	}
	h.Queue, h.Count, h.RawSize = int32(queue), int(count), int(raw)
	at := HeaderSize
	h.tags, at = b[at:at+8*tags:at+8*tags], at+8*tags
	h.keys, at = b[at:at+8*keys:at+8*keys], at+8*keys
	h.Topic, at = b[at:at+topicLen:at+topicLen], at+topicLen
	h.body = b[at:h.Length:h.Length]
	return h, nil
}

// Length returns the size of the batch that b begins with, which may exceed
// len(b). It needs the first 8 bytes.
func Length(b []byte) (int, error) {
	if len(b) < 8 {
		return 0, ErrShort
	}
	if string(b[:4]) != magic {
		return 0, fmt.Errorf("%w: begins with %x", ErrMalformed, b[:4])
	}
	n := binary.LittleEndian.Uint32(b[offLength:])
	if n < HeaderSize || n > MaxSize {
		return 0, fmt.Errorf("%w: length %d, allowed %d to %d", ErrMalformed, n, HeaderSize, MaxSize)
	}
	return int(n), nil
}

// VerifyBody checks what the producer sent: fixed fields and body against the
// body checksum. b must have passed Parse.
func VerifyBody(b []byte, h *Header) error {
	if sum := bodySum(b[:h.Length]); sum != h.BodyCRC {
		return fmt.Errorf("%w: body %08x, should be %08x", ErrChecksum, sum, h.BodyCRC)
	}
	return nil
}

// VerifyStamp checks the broker's fields against the header checksum.
func VerifyStamp(b []byte) error {
	if len(b) < HeaderSize {
		return ErrShort
	}
	if sum, want := stampSum(b), binary.LittleEndian.Uint32(b[offHeaderCRC:]); sum != want {
		return fmt.Errorf("%w: header %08x, should be %08x", ErrChecksum, sum, want)
	}
	return nil
}

// Verify checks both checksums of a stamped batch. b must have passed Parse.
func Verify(b []byte, h *Header) error {
	if err := VerifyStamp(b); err != nil {
		return err
	}
	return VerifyBody(b, h)
}

// PutStamp writes the broker's fields and the header checksum into b, which must
// have passed Parse. Nothing else of b changes.
func PutStamp(b []byte, s Stamp) {
	le := binary.LittleEndian
	le.PutUint64(b[offBaseOffset:], uint64(s.BaseOffset))
	le.PutUint64(b[offStoreTime:], uint64(s.StoreTime))
	le.PutUint64(b[offOrigin:], s.Origin)
	le.PutUint32(b[offSegment:], s.Segment)
	le.PutUint32(b[offPosition:], s.Position)
	le.PutUint32(b[offGroup:], s.Group)
	le.PutUint32(b[offHeaderCRC:], stampSum(b))
}

// NextOffset returns the offset that follows the batch.
func (h *Header) NextOffset() int64 { return h.Stamp.BaseOffset + int64(h.Count) }

// Body returns the body as it travels, compressed if Compression says so.
func (h *Header) Body() []byte { return h.body }

// Tags returns the number of tag hashes and Tag the i-th of them.
func (h *Header) Tags() int { return len(h.tags) / 8 }

// Tag returns the i-th tag hash.
func (h *Header) Tag(i int) uint64 { return binary.LittleEndian.Uint64(h.tags[8*i:]) }

// Keys returns the number of key hashes and Key the i-th of them.
func (h *Header) Keys() int { return len(h.keys) / 8 }

// Key returns the i-th key hash.
func (h *Header) Key(i int) uint64 { return binary.LittleEndian.Uint64(h.keys[8*i:]) }

// MayMatch reports whether the batch may hold a message with one of the tags
// whose hashes are given. An empty filter matches everything.
func (h *Header) MayMatch(filter []uint64) bool {
	if len(filter) == 0 || h.Flags&FlagManyTags != 0 {
		return true
	}
	for i := range h.Tags() {
		if slices.Contains(filter, h.Tag(i)) {
			return true
		}
	}
	return false
}

// IsFor reports whether the batch belongs to the given queue.
func (h *Header) IsFor(topic string, queue int32) bool {
	return h.Queue == queue && string(h.Topic) == topic
}

// Find returns the index of the next place in b that looks like the beginning
// of a batch, or -1. Recovery uses it to get past damage.
func Find(b []byte) int { return bytes.Index(b, []byte(magic)) }

func bodySum(b []byte) uint32 {
	t := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Update(0, t, b[:offBaseOffset]), t, b[offFlags:])
}

func stampSum(b []byte) uint32 {
	t := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Update(0, t, b[offBaseOffset:offHeaderCRC]), t, b[offBodyCRC:offFlags])
}

const magic = "TCB\x01"

// Places of the fixed fields; see the package comment.
const (
	offLength        = 4
	offBaseOffset    = 8
	offStoreTime     = 16
	offOrigin        = 24
	offSegment       = 32
	offPosition      = 36
	offGroup         = 40
	offHeaderCRC     = 44
	offBodyCRC       = 48
	offFlags         = 52
	offCompression   = 53
	offTopicLen      = 54
	offTagCount      = 55
	offQueue         = 56
	offCount         = 60
	offProducerID    = 64
	offBaseSequence  = 72
	offDueTime       = 80
	offProducerEpoch = 88
	offRawSize       = 92
	offKeyCount      = 96
	offReserved      = 98
)
