package rawcodec

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto" // registers the codec for all else
	"google.golang.org/grpc/mem"
)

// Codec is the codec; see the package comment. Safe for concurrent use.
type Codec struct {
	plain encoding.CodecV2
	pool  mem.BufferPool
}

// New returns a codec with buffers of its own. Use one for all connections.
func New() *Codec {
	return &Codec{plain: encoding.GetCodecV2(protocodec.Name), pool: newPool()}
}

// Pool is where received batches lie, for others with the same need.
func (c *Codec) Pool() mem.BufferPool { return c.pool }

// Name is that of the protobuf codec, since the wire form is the same.
func (c *Codec) Name() string { return protocodec.Name }

// Marshal encodes a message of this package, or any protobuf message.
func (c *Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *ProduceRequest:
		head := mem.SliceBuffer(m.append(make([]byte, 0, 24)))
		if len(m.Batch) == 0 {
			return mem.BufferSlice{head}, nil
		}
		return mem.BufferSlice{head, mem.SliceBuffer(m.Batch)}, nil
	case *ProduceResponse:
		return mem.BufferSlice{mem.SliceBuffer(m.append(make([]byte, 0, answerSize*(1+len(m.More)))))}, nil
	case *FetchRequest:
		return mem.BufferSlice{mem.SliceBuffer(m.append(make([]byte, 0, 128)))}, nil
	case *FetchResponse:
		out := make(mem.BufferSlice, 0, 1+len(m.Data))
		out = append(out, mem.SliceBuffer(m.append(make([]byte, 0, 64), m.Data.Len())))
		out = append(out, m.Data...)
		m.Data = nil
		return out, nil
	case *Encoded:
		return m.Data, nil
	}
	return c.plain.Marshal(v)
}

// Unmarshal decodes into a message of this package, or into any protobuf message.
func (c *Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *ProduceRequest:
		buf := data.MaterializeToBuffer(c.pool)
		if err := m.parse(buf.ReadOnlyData()); err != nil {
			buf.Free()
			return fmt.Errorf("decode produce request: %w", err)
		}
		m.buf = buf
		return nil
	case *FetchResponse:
		buf := data.MaterializeToBuffer(c.pool)
		if err := m.parse(buf.ReadOnlyData()); err != nil {
			buf.Free()
			return fmt.Errorf("decode fetch response: %w", err)
		}
		m.buf = buf
		return nil
	case *ProduceResponse:
		return c.short(data, "produce response", m.parse)
	case *FetchRequest:
		return c.short(data, "fetch request", m.parse)
	}
	return c.plain.Unmarshal(data, v)
}

// short decodes a message that keeps nothing of data.
func (c *Codec) short(data mem.BufferSlice, what string, parse func([]byte) error) error {
	buf := data.MaterializeToBuffer(c.pool)
	defer buf.Free()
	if err := parse(buf.ReadOnlyData()); err != nil {
		return fmt.Errorf("decode %s: %w", what, err)
	}
	return nil
}
