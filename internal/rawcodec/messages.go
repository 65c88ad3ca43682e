package rawcodec

import (
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tacitmq/tacit/internal/protofield"
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
	Follow       bool

	names map[string]string
}

// FetchResponse mirrors tacit.v1.FetchResponse.
type FetchResponse struct {
	ID         uint64
	NextOffset int64
	MinOffset  int64
	MaxOffset  int64
	Error      *Error
	Following  bool

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
	fetchRequestFollow = 10

	fetchResponseID        = 1
	fetchResponseBatches   = 2
	fetchResponseNext      = 3
	fetchResponseMin       = 4
	fetchResponseMax       = 5
	fetchResponseError     = 6
	fetchResponseFollowing = 7

	errorCode    = 1
	errorReason  = 2
	errorMessage = 3

	queueTopic  = 1
	queueBroker = 2
	queueID     = 3

	epochBroker  = 1
	epochCounter = 2
)

func appendError(b []byte, field protowire.Number, e *Error) []byte {
	if e == nil {
		return b
	}
	// A protobuf string is UTF-8, or the peer refuses the whole message.
	in := protofield.AppendUint(nil, errorCode, uint64(int64(e.Code)))
	in = protofield.AppendString(in, errorReason, strings.ToValidUTF8(e.Reason, "?"))
	in = protofield.AppendString(in, errorMessage, strings.ToValidUTF8(e.Message, "?"))
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), in)
}

func (m *ProduceRequest) append(b []byte) []byte {
	b = protofield.AppendUint(b, produceRequestID, m.ID)
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
	b = protofield.AppendUint(b, produceResponseID, m.ID)
	b = protofield.AppendUint(b, produceResponseBase, uint64(m.BaseOffset))
	b = protofield.AppendUint(b, produceResponseStored, uint64(m.StoreMillis))
	b = protofield.AppendBool(b, produceResponseDuplicate, m.Duplicate)
	return appendError(b, produceResponseError, m.Error)
}

func (m *FetchRequest) append(b []byte) []byte {
	b = protofield.AppendUint(b, fetchRequestID, m.ID)
	b = protofield.AppendString(b, fetchRequestGroup, m.Group)
	if m.Topic != "" || m.Broker != "" || m.QueueID != 0 {
		n := protofield.SizeString(m.Topic) + protofield.SizeString(m.Broker) + protofield.SizeUint(uint64(int64(m.QueueID)))
		b = protowire.AppendVarint(protowire.AppendTag(b, fetchRequestQueue, protowire.BytesType), uint64(n))
		b = protofield.AppendString(b, queueTopic, m.Topic)
		b = protofield.AppendString(b, queueBroker, m.Broker)
		b = protofield.AppendUint(b, queueID, uint64(int64(m.QueueID)))
	}
	b = protofield.AppendUint(b, fetchRequestOffset, uint64(m.Offset))
	b = protofield.AppendUint(b, fetchRequestBytes, uint64(int64(m.MaxBytes)))
	b = protofield.AppendUint(b, fetchRequestWait, uint64(int64(m.WaitMillis)))
	if m.EpochBroker != 0 || m.EpochCounter != 0 {
		n := protofield.SizeUint(m.EpochBroker) + protofield.SizeUint(m.EpochCounter)
		b = protowire.AppendVarint(protowire.AppendTag(b, fetchRequestEpoch, protowire.BytesType), uint64(n))
		b = protofield.AppendUint(b, epochBroker, m.EpochBroker)
		b = protofield.AppendUint(b, epochCounter, m.EpochCounter)
	}
	if len(m.TagHashes) > 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, fetchRequestTags, protowire.BytesType), uint64(8*len(m.TagHashes)))
		for _, h := range m.TagHashes {
			b = protowire.AppendFixed64(b, h)
		}
	}
	b = protofield.AppendBool(b, fetchRequestCancel, m.Cancel)
	return protofield.AppendBool(b, fetchRequestFollow, m.Follow)
}

func (m *FetchResponse) append(b []byte, size int) []byte {
	b = protofield.AppendUint(b, fetchResponseID, m.ID)
	b = protofield.AppendUint(b, fetchResponseNext, uint64(m.NextOffset))
	b = protofield.AppendUint(b, fetchResponseMin, uint64(m.MinOffset))
	b = protofield.AppendUint(b, fetchResponseMax, uint64(m.MaxOffset))
	b = appendError(b, fetchResponseError, m.Error)
	b = protofield.AppendBool(b, fetchResponseFollowing, m.Following)
	if size == 0 {
		return b
	}
	b = protowire.AppendTag(b, fetchResponseBatches, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(size))
}
