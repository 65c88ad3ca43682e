package batch

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/message"
)

// Record is one message of a batch, sharing memory with the batch or, if that is
// compressed, with the decoder's output.
type Record struct {
	Offset         int64
	BornTime       int64 // Unix milliseconds
	ReconsumeTimes int32
	Tag            []byte
	Value          []byte

	nkeys, nprops int
	keys, props   []byte
}

// Keys calls yield for each key until it returns false.
func (r *Record) Keys(yield func(key []byte) bool) {
	b := r.keys
	for range r.nkeys {
		var k []byte
		if k, b = cut(b); !yield(k) {
			return
		}
	}
}

// Properties calls yield for each property until it returns false.
func (r *Record) Properties(yield func(name, value []byte) bool) {
	b := r.props
	for range r.nprops {
		var k, v []byte
		k, b = cut(b)
		if v, b = cut(b); !yield(k, v) {
			return
		}
	}
}

// Decoder opens batches. Its decompressor is reused. The zero value is ready to
// use. Not for concurrent use.
type Decoder struct {
	// MaxBytes bounds a body after decompression. Default (0): MaxRaw.
	MaxBytes int

	zstd *zstd.Decoder
}

// A message with more keys or properties than these is malformed: each costs
// memory beyond its bytes. Messages within the limits of package message never are.
const (
	maxKeys       = 1 << 10
	maxProperties = message.MaxPropertyBytes
)

// Open returns an iterator over the messages of a batch that Parse accepted. The
// messages alias the batch, or fresh memory if it is compressed; buf, if large
// enough, is used for that instead.
func (d *Decoder) Open(h *Header, buf []byte) (Iterator, error) {
	limit := d.MaxBytes
	if limit <= 0 {
		limit = MaxRaw
	}
	if h.RawSize > limit {
		return Iterator{}, fmt.Errorf("%w: body of %d bytes, allowed %d", ErrTooLarge, h.RawSize, limit)
	}
	body, err := d.body(h, buf)
	if err != nil {
		return Iterator{}, err
	}
	if len(body) != h.RawSize {
		return Iterator{}, fmt.Errorf("%w: body of %d bytes, the header says %d", ErrMalformed, len(body), h.RawSize)
	}
	return Iterator{rest: body, offset: h.Stamp.BaseOffset, left: h.Count}, nil
}

func (d *Decoder) body(h *Header, buf []byte) ([]byte, error) {
	switch h.Compression {
	case None:
		return h.body, nil
	case S2:
		n, err := s2.DecodedLen(h.body)
		if err != nil || n != h.RawSize {
			return nil, fmt.Errorf("%w: s2 body of %d bytes, the header says %d", ErrMalformed, n, h.RawSize)
		}
		out, err := s2.Decode(room(buf, h), h.body)
		if err != nil {
			return nil, fmt.Errorf("%w: s2: %w", ErrMalformed, err)
		}
		return out, nil
	case Zstd:
		if d.zstd == nil {
			z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
				zstd.WithDecodeAllCapLimit(true))
			if err != nil {
				return nil, fmt.Errorf("start zstd: %w", err)
			}
			d.zstd = z
		}
		// DecodeAll stops at the capacity it is given.
		out, err := d.zstd.DecodeAll(h.body, room(buf, h)[:0])
		if err != nil {
			return nil, fmt.Errorf("%w: zstd: %w", ErrMalformed, err)
		}
		return out, nil
	}
	return nil, fmt.Errorf("%w: unknown %v", ErrMalformed, h.Compression)
}

// room returns space for the decompressed body, buf's if that is enough.
func room(buf []byte, h *Header) []byte {
	if cap(buf) >= h.RawSize {
		return slices.Clip(buf[:h.RawSize:h.RawSize])
	}
	return make([]byte, h.RawSize)
}

// Iterator walks the messages of a batch.
type Iterator struct {
	rest   []byte
	offset int64
	left   int
}

// Next fills r with the next message. It reports false after the last one, and
// an error if the body is malformed; after an error there is no next.
func (it *Iterator) Next(r *Record) (bool, error) {
	if it.left == 0 {
		if len(it.rest) != 0 {
			n := len(it.rest)
			it.rest = nil
			return false, fmt.Errorf("%w: %d bytes after the last message", ErrMalformed, n)
		}
		return false, nil
	}
	it.left--
	b, rest, ok := take(it.rest)
	if ok {
		ok = r.parse(b)
	}
	if !ok {
		it.left, it.rest = 0, nil
		return false, fmt.Errorf("%w: message at offset %d", ErrMalformed, it.offset)
	}
	r.Offset = it.offset
	it.offset++
	it.rest = rest
	return true, nil
}

func (r *Record) parse(b []byte) bool {
	born, n := binary.Varint(b)
	if n <= 0 {
		return false
	}
	b = b[n:]
	times, n := binary.Uvarint(b)
	if n <= 0 || times > math.MaxInt32 {
		return false
	}
	b = b[n:]
	tag, b, ok := take(b)
	if !ok {
		return false
	}
	nkeys, keys, b, ok := takeMany(b, 1, maxKeys)
	if !ok {
		return false
	}
	nprops, props, b, ok := takeMany(b, 2, maxProperties)
	if !ok {
		return false
	}
	*r = Record{
		BornTime: born, ReconsumeTimes: int32(times), Tag: tag, Value: slices.Clip(b),
		nkeys: nkeys, keys: keys, nprops: nprops, props: props,
	}
	return true
}

// take cuts a length-prefixed string off b.
func take(b []byte) (s, rest []byte, ok bool) {
	n, w := binary.Uvarint(b)
	if w <= 0 || n > uint64(len(b)-w) {
		return nil, nil, false
	}
	end := w + int(n)
	return b[w:end:end], b[end:], true
}

// takeMany cuts a counted list of tuples of strings off b and checks each.
func takeMany(b []byte, tuple, most int) (count int, list, rest []byte, ok bool) {
	n, w := binary.Uvarint(b)
	if w <= 0 || n > uint64(most) {
		return 0, nil, nil, false
	}
	b = b[w:]
	rest = b
	for range int(n) * tuple {
		if _, rest, ok = take(rest); !ok {
			return 0, nil, nil, false
		}
	}
	end := len(b) - len(rest)
	return int(n), b[:end:end], rest, true
}

// cut is take for lists that takeMany has checked.
func cut(b []byte) (s, rest []byte) {
	s, rest, _ = take(b)
	return s, rest
}

// Fill sets m to the message r of the batch h, stored on the named broker. The
// body shares memory with r; strings are copies.
func (r *Record) Fill(m *message.Message, h *Header, topic, broker string) {
	*m = message.Message{
		Topic:          topic,
		Body:           r.Value,
		Tag:            string(r.Tag),
		BornTime:       unixMilli(r.BornTime),
		DeliverAt:      unixMilli(h.DueTime),
		Queue:          allocate.Queue{Topic: topic, Broker: broker, ID: h.Queue},
		Offset:         r.Offset,
		StoreTime:      unixMilli(h.Stamp.StoreTime),
		ReconsumeTimes: r.ReconsumeTimes,
	}
	if r.nkeys > 0 {
		m.Keys = make([]string, 0, r.nkeys)
		for k := range r.Keys {
			m.Keys = append(m.Keys, string(k))
		}
	}
	if r.nprops > 0 {
		m.Properties = make(map[string]string, r.nprops)
		for k, v := range r.Properties {
			m.Properties[string(k)] = string(v)
		}
	}
}

func unixMilli(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}
