package batch

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"github.com/tacitmq/tacit/message"
)

// MinMessage is the size of the smallest message in a body.
const MinMessage = 6

const (
	// minCompress is the body size in bytes below which compression is not tried.
	minCompress = 512
	// headroom is kept free before a body, for the header, topic and hashes of
	// most batches.
	headroom = 1 << 10
)

// Info holds the fields of a batch that its messages do not determine.
type Info struct {
	Topic         string
	Queue         int32
	ProducerID    uint64
	ProducerEpoch uint32
	BaseSequence  uint64
	DueTime       int64 // Unix milliseconds, 0 = at once; the same for all messages
}

// Encoder gathers messages into a batch. Its buffers are reused from batch to
// batch. The zero value writes uncompressed batches. Not for concurrent use.
type Encoder struct {
	// Compression to try; a body that does not get smaller is left as it is.
	Compression Compression

	buf        []byte // headroom and the body so far
	packed     []byte // likewise, compressed
	count      int
	tags, keys []uint64
	flags      uint8
	lastTag    string
	names      []string
	zstd       *zstd.Encoder
}

// Reset drops the messages gathered so far.
func (e *Encoder) Reset() {
	e.buf = e.buf[:min(len(e.buf), headroom)]
	e.count, e.flags = 0, 0
	e.tags, e.keys = e.tags[:0], e.keys[:0]
	e.lastTag = ""
}

// Count returns the number of messages gathered.
func (e *Encoder) Count() int { return e.count }

// Size returns about how many bytes the batch would take uncompressed.
func (e *Encoder) Size() int {
	return HeaderSize + message.MaxTopicLength + 8*len(e.tags) + 8*len(e.keys) + len(e.body())
}

func (e *Encoder) body() []byte { return e.buf[min(len(e.buf), headroom):] }

// Use has the encoder write into buf, which it may keep until [Encoder.Seal] gives
// it back, and makes room for size bytes of messages, see [MessageSize].
func (e *Encoder) Use(buf []byte, size int) {
	if e.buf == nil {
		e.buf = buf[:0]
	} else {
		e.packed = buf[:0] // Seal gave away what was compressed
	}
	e.grow(size)
}

// grow makes room for headroom and size bytes more.
func (e *Encoder) grow(size int) {
	if len(e.buf) == 0 {
		e.buf = slices.Grow(e.buf, headroom+size)[:headroom]
	} else {
		e.buf = slices.Grow(e.buf, size)
	}
}

// MessageSize returns the most bytes that m adds to a batch.
func MessageSize(m *message.Message) int {
	n := 4*binary.MaxVarintLen32 + binary.MaxVarintLen64 + len(m.Tag) + 8 + len(m.Body)
	for _, k := range m.Keys {
		n += binary.MaxVarintLen32 + len(k) + 8
	}
	if len(m.Properties) == 0 { // sparing what ranging over nothing costs
		return n
	}
	for k, v := range m.Properties {
		n += 2*binary.MaxVarintLen32 + len(k) + len(v)
	}
	return n
}

// Append adds m: its tag, keys, properties, body, born time and reconsume times.
// All messages of a batch share topic, queue and due time, which Finish is told.
// It does not check limits; see [message.Message.Check].
func (e *Encoder) Append(m *message.Message) {
	// The size goes in front of what it counts: leave room for the longest
	// form and move the message back over what was not needed.
	if len(e.buf) == 0 {
		e.grow(0)
	}
	start := len(e.buf)
	b := append(e.buf, make([]byte, binary.MaxVarintLen32)...)
	at := len(b)
	born := int64(0)
	if !m.BornTime.IsZero() {
		born = m.BornTime.UnixMilli()
	}
	b = binary.AppendVarint(b, born)
	b = binary.AppendUvarint(b, uint64(uint32(m.ReconsumeTimes)))
	b = appendString(b, m.Tag)
	b = binary.AppendUvarint(b, uint64(len(m.Keys)))
	for _, k := range m.Keys {
		b = appendString(b, k)
	}
	b = binary.AppendUvarint(b, uint64(len(m.Properties)))
	if len(m.Properties) > 0 {
		e.names = e.names[:0]
		for k := range m.Properties {
			e.names = append(e.names, k)
		}
		slices.Sort(e.names) // equal messages give equal bytes
		for _, k := range e.names {
			b = appendString(b, k)
			b = appendString(b, m.Properties[k])
		}
	}
	rest := len(b) - at + len(m.Body)
	n := binary.PutUvarint(b[start:at], uint64(rest))
	if n < at-start {
		copy(b[start+n:], b[at:])
		b = b[:len(b)-(at-start-n)]
	}
	e.buf = append(b, m.Body...)
	e.count++
	e.note(m)
}

// note adds the hashes of tag and keys to the sets.
func (e *Encoder) note(m *message.Message) {
	if m.Tag != "" && m.Tag != e.lastTag && e.flags&FlagManyTags == 0 {
		e.lastTag = m.Tag
		if h := Hash(m.Tag); !slices.Contains(e.tags, h) {
			if len(e.tags) == MaxTagHashes {
				e.flags |= FlagManyTags
				e.tags = e.tags[:0]
			} else {
				e.tags = append(e.tags, h)
			}
		}
	}
	if e.flags&FlagManyKeys != 0 {
		return
	}
	for _, k := range m.Keys {
		if len(e.keys) == MaxKeyHashes {
			e.keys = dedup(e.keys)
			if len(e.keys) == MaxKeyHashes {
				e.flags |= FlagManyKeys
				e.keys = e.keys[:0]
				return
			}
		}
		e.keys = append(e.keys, Hash(k))
	}
}

func dedup(s []uint64) []uint64 {
	slices.Sort(s)
	return slices.Compact(s)
}

// Finish appends the batch to dst, resets the encoder and returns the extended
// dst. There must be 1 to MaxCount messages.
func (e *Encoder) Finish(dst []byte, info Info) ([]byte, error) {
	defer e.Reset()
	if err := e.check(&info); err != nil {
		return dst, err
	}
	buf, how := e.compress()
	front := e.front(&info)
	start := len(dst)
	dst = slices.Grow(dst, front+len(buf)-headroom)[:start+front]
	dst = append(dst, buf[headroom:]...)
	e.head(dst[start:], how, &info)
	return dst, nil
}

// Seal is [Encoder.Finish] without copying the messages: the batch takes the
// encoder's buffer with it. buf is all of that buffer, to be given to
// [Encoder.Use] once the batch is not needed any more.
func (e *Encoder) Seal(info Info) (batch, buf []byte, err error) {
	defer e.Reset()
	if err := e.check(&info); err != nil {
		return nil, nil, err
	}
	buf, how := e.compress()
	front := e.front(&info)
	if front > headroom {
		batch = append(make([]byte, front, front+len(buf)-headroom), buf[headroom:]...)
		e.head(batch, how, &info)
		return batch, batch, nil
	}
	batch = buf[headroom-front:]
	e.head(batch, how, &info)
	if how == None {
		e.buf = nil
	} else {
		e.packed = nil
	}
	return batch, buf, nil
}

// check looks at what is to become a batch.
func (e *Encoder) check(info *Info) error {
	switch {
	case e.count == 0 || e.count > MaxCount:
		return fmt.Errorf("%w: %d messages, allowed are 1 to %d", ErrMalformed, e.count, MaxCount)
	case info.Topic == "" || len(info.Topic) > MaxTopic:
		return fmt.Errorf("%w: topic name of %d bytes, allowed 1 to %d", ErrMalformed, len(info.Topic), MaxTopic)
	case info.Queue < 0:
		return fmt.Errorf("%w: queue id %d", ErrMalformed, info.Queue)
	case info.DueTime < 0 || info.BaseSequence > 1<<62:
		return fmt.Errorf("%w: due time %d or base sequence %d out of range", ErrMalformed, info.DueTime, info.BaseSequence)
	case len(e.body()) > MaxRaw:
		return fmt.Errorf("%w: %d bytes before compression, allowed %d", ErrTooLarge, len(e.body()), MaxRaw)
	}
	e.keys = dedup(e.keys)
	return nil
}

// front is the size of all that comes before the body.
func (e *Encoder) front(info *Info) int {
	return HeaderSize + 8*len(e.tags) + 8*len(e.keys) + len(info.Topic)
}

// head writes all that comes before the body. b is the whole batch.
func (e *Encoder) head(b []byte, how Compression, info *Info) {
	clear(b[:HeaderSize])
	le := binary.LittleEndian
	copy(b, magic)
	le.PutUint32(b[offLength:], uint32(len(b)))
	b[offFlags] = e.flags
	b[offCompression] = byte(how)
	b[offTopicLen] = byte(len(info.Topic))
	b[offTagCount] = byte(len(e.tags))
	le.PutUint32(b[offQueue:], uint32(info.Queue))
	le.PutUint32(b[offCount:], uint32(e.count))
	le.PutUint64(b[offProducerID:], info.ProducerID)
	le.PutUint64(b[offBaseSequence:], info.BaseSequence)
	le.PutUint64(b[offDueTime:], uint64(info.DueTime))
	le.PutUint32(b[offProducerEpoch:], info.ProducerEpoch)
	le.PutUint32(b[offRawSize:], uint32(len(e.body())))
	le.PutUint16(b[offKeyCount:], uint16(len(e.keys)))
	at := HeaderSize
	for _, hashes := range [][]uint64{e.tags, e.keys} {
		for _, h := range hashes {
			le.PutUint64(b[at:], h)
			at += 8
		}
	}
	copy(b[at:], info.Topic)
	le.PutUint32(b[offBodyCRC:], bodySum(b))
}

// compress returns the body as it shall travel, behind headroom.
func (e *Encoder) compress() ([]byte, Compression) {
	body := e.body()
	if e.Compression == None || len(body) < minCompress {
		return e.buf, None
	}
	switch e.Compression {
	case S2:
		n := s2.MaxEncodedLen(len(body))
		if n < 0 {
			return e.buf, None
		}
		e.packed = slices.Grow(e.packed[:0], headroom+n)[:headroom+n]
		e.packed = e.packed[:headroom+len(s2.Encode(e.packed[headroom:], body))]
	case Zstd:
		if e.zstd == nil {
			// Options are constant; NewWriter cannot fail on them.
			z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderCRC(false))
			if err != nil {
				return e.buf, None
			}
			e.zstd = z
		}
		e.packed = e.zstd.EncodeAll(body, slices.Grow(e.packed[:0], headroom)[:headroom])
	default:
		return e.buf, None
	}
	if len(e.packed) >= len(e.buf) {
		return e.buf, None
	}
	return e.packed, e.Compression
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}
