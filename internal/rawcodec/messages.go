package rawcodec

import (
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Error mirrors tacit.v1.DataError.
type Error struct {
	Code    int32 // google.rpc.Code
	Reason  string
	Message string
}

// Encoded is any message in its wire form, to be sent. The bytes reach the
// transport as they are, so many messages may share them; they must not change.
type Encoded struct{ Data mem.BufferSlice }

// ProduceRequest mirrors tacit.v1.ProduceRequest.
type ProduceRequest struct {
	ID    uint64
	Batch []byte

	buf mem.Buffer
}

// Free gives the memory of a received Batch back. It may be called more than once.
func (m *ProduceRequest) Free() {
	if m.buf != nil {
		m.buf.Free()
		m.buf, m.Batch = nil, nil
	}
}

// ProduceResponse mirrors tacit.v1.ProduceResponse.
type ProduceResponse struct {
	ID          uint64
	BaseOffset  int64
	StoreMillis int64
	Duplicate   bool
	Error       *Error
	More        []ProduceResponse // without More; reused by the next receive
}

// FetchRequest mirrors tacit.v1.FetchRequest. A struct that is received into
// again and again keeps the names it has seen, so that decoding need not
// allocate them.
type FetchRequest struct {
	ID           uint64
	Group        string
	Topic        string
	Broker       string
	QueueID      int32
	Offset       int64
	MaxBytes     int32
	WaitMillis   int32
	EpochBroker  uint64
	EpochCounter uint64
	TagHashes    []uint64 // reused by the next receive
	Cancel       bool

	names map[string]string
}

// FetchResponse mirrors tacit.v1.FetchResponse.
type FetchResponse struct {
	ID         uint64
	NextOffset int64
	MinOffset  int64
	MaxOffset  int64
	Error      *Error

	// Data is what the sender sends as batches. Sending passes it to gRPC, which
	// frees it, and leaves nil here.
	Data mem.BufferSlice
	// Batches are the batches received, one after another.
	Batches []byte

	buf mem.Buffer
}

// Free gives the memory of received Batches back, and that of Data which was not
// sent. It may be called more than once.
func (m *FetchResponse) Free() {
	if m.buf != nil {
		m.buf.Free()
		m.buf, m.Batches = nil, nil
	}
	m.Data.Free()
	m.Data = nil
}

// Field numbers of proto/tacit/v1/data.proto and common.proto.
const (
	produceRequestID    = 1
	produceRequestBatch = 2

	produceResponseID        = 1
	produceResponseBase      = 2
	produceResponseStored    = 3
	produceResponseDuplicate = 4
	produceResponseError     = 5
	produceResponseMore      = 6

	fetchRequestID     = 1
	fetchRequestGroup  = 2
	fetchRequestQueue  = 3
	fetchRequestOffset = 4
	fetchRequestBytes  = 5
	fetchRequestWait   = 6
	fetchRequestEpoch  = 7
	fetchRequestTags   = 8
	fetchRequestCancel = 9

	fetchResponseID      = 1
	fetchResponseBatches = 2
	fetchResponseNext    = 3
	fetchResponseMin     = 4
	fetchResponseMax     = 5
	fetchResponseError   = 6

	errorCode    = 1
	errorReason  = 2
	errorMessage = 3

	queueTopic  = 1
	queueBroker = 2
	queueID     = 3

	epochBroker  = 1
	epochCounter = 2
)

func appendVarint(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

func appendBool(b []byte, field protowire.Number, v bool) []byte {
	if !v {
		return b
	}
	return appendVarint(b, field, 1)
}

func appendString(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

func appendError(b []byte, field protowire.Number, e *Error) []byte {
	if e == nil {
		return b
	}
	// A protobuf string is UTF-8, or the peer refuses the whole message.
	in := appendVarint(nil, errorCode, uint64(int64(e.Code)))
	in = appendString(in, errorReason, strings.ToValidUTF8(e.Reason, "?"))
	in = appendString(in, errorMessage, strings.ToValidUTF8(e.Message, "?"))
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), in)
}

func (m *ProduceRequest) append(b []byte) []byte {
	b = appendVarint(b, produceRequestID, m.ID)
	if len(m.Batch) == 0 {
		return b
	}
	b = protowire.AppendTag(b, produceRequestBatch, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(len(m.Batch))) // the bytes follow uncopied
}

// answerSize is about the size of one answer without an error.
const answerSize = 40

func (m *ProduceResponse) append(b []byte) []byte {
	b = m.appendOne(b)
	for i := range m.More {
		b = protowire.AppendTag(b, produceResponseMore, protowire.BytesType)
		// The length comes first and is mostly less than 128: one byte is kept for it.
		at := len(b)
		b = m.More[i].appendOne(append(b, 0))
		if n := len(b) - at - 1; n < 1<<7 {
			b[at] = byte(n)
		} else {
			one := append([]byte(nil), b[at+1:]...)
			b = protowire.AppendBytes(b[:at], one)
		}
	}
	return b
}

func (m *ProduceResponse) appendOne(b []byte) []byte {
	b = appendVarint(b, produceResponseID, m.ID)
	b = appendVarint(b, produceResponseBase, uint64(m.BaseOffset))
	b = appendVarint(b, produceResponseStored, uint64(m.StoreMillis))
	b = appendBool(b, produceResponseDuplicate, m.Duplicate)
	return appendError(b, produceResponseError, m.Error)
}

func (m *FetchRequest) append(b []byte) []byte {
	b = appendVarint(b, fetchRequestID, m.ID)
	b = appendString(b, fetchRequestGroup, m.Group)
	if m.Topic != "" || m.Broker != "" || m.QueueID != 0 {
		n := sizeString(m.Topic) + sizeString(m.Broker)
		if m.QueueID != 0 {
			n += 1 + protowire.SizeVarint(uint64(int64(m.QueueID)))
		}
		b = protowire.AppendVarint(protowire.AppendTag(b, fetchRequestQueue, protowire.BytesType), uint64(n))
		b = appendString(b, queueTopic, m.Topic)
		b = appendString(b, queueBroker, m.Broker)
		b = appendVarint(b, queueID, uint64(int64(m.QueueID)))
	}
	b = appendVarint(b, fetchRequestOffset, uint64(m.Offset))
	b = appendVarint(b, fetchRequestBytes, uint64(int64(m.MaxBytes)))
	b = appendVarint(b, fetchRequestWait, uint64(int64(m.WaitMillis)))
	if m.EpochBroker != 0 || m.EpochCounter != 0 {
		n := 0
		if m.EpochBroker != 0 {
			n += 1 + protowire.SizeVarint(m.EpochBroker)
		}
		if m.EpochCounter != 0 {
			n += 1 + protowire.SizeVarint(m.EpochCounter)
		}
		b = protowire.AppendVarint(protowire.AppendTag(b, fetchRequestEpoch, protowire.BytesType), uint64(n))
		b = appendVarint(b, epochBroker, m.EpochBroker)
		b = appendVarint(b, epochCounter, m.EpochCounter)
	}
	if len(m.TagHashes) > 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, fetchRequestTags, protowire.BytesType), uint64(8*len(m.TagHashes)))
		for _, h := range m.TagHashes {
			b = protowire.AppendFixed64(b, h)
		}
	}
	return appendBool(b, fetchRequestCancel, m.Cancel)
}

func sizeString(s string) int {
	if s == "" {
		return 0
	}
	return 1 + protowire.SizeBytes(len(s))
}

func (m *FetchResponse) append(b []byte, size int) []byte {
	b = appendVarint(b, fetchResponseID, m.ID)
	b = appendVarint(b, fetchResponseNext, uint64(m.NextOffset))
	b = appendVarint(b, fetchResponseMin, uint64(m.MinOffset))
	b = appendVarint(b, fetchResponseMax, uint64(m.MaxOffset))
	b = appendError(b, fetchResponseError, m.Error)
	if size == 0 {
		return b
	}
	b = protowire.AppendTag(b, fetchResponseBatches, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(size))
}
