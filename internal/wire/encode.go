package wire

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tacitmq/tacit/internal/protofield"
	"github.com/tacitmq/tacit/session"
)

// Field numbers of proto/tacit/v1/session.proto.
const (
	responseHeartbeatAck = 3
	responseViewAnswer   = 4

	heartbeatAckSeq   = 1
	heartbeatAckViews = 2

	viewStateTopic   = 1
	viewStateVersion = 2
	viewStateInputs  = 3
	viewStateOwners  = 4
	viewStateSettled = 5

	viewVersionBroker  = 1
	viewVersionEpoch   = 2
	viewVersionCounter = 3

	viewAnswerSeq     = 1
	viewAnswerWarming = 2
	viewAnswerView    = 3
)

// AppendResponse appends the wire form of [Response] of a frame to b. Answers to
// heartbeats, which are most of what a broker sends, take no detour over
// messages. The error is that of a text that is not UTF-8.
func AppendResponse(b []byte, frame session.ToMember) ([]byte, error) {
	if ack, ok := frame.(session.HeartbeatAck); ok {
		return appendHeartbeatAck(b, &ack), nil
	}
	b, err := proto.MarshalOptions{}.MarshalAppend(b, Response(frame))
	if err != nil {
		return nil, fmt.Errorf("encode frame %T: %w", frame, err)
	}
	return b, nil
}

// AppendView appends the wire form of a view, which many answers share.
func AppendView(b []byte, v session.View) ([]byte, error) {
	b, err := proto.MarshalOptions{}.MarshalAppend(b, View(v))
	if err != nil {
		return nil, fmt.Errorf("encode view of topic %q: %w", v.Topic, err)
	}
	return b, nil
}

// AppendViewAnswer appends the wire form of a [session.ViewAnswer] up to its view,
// whose wire form of the given size follows.
func AppendViewAnswer(b []byte, seq uint64, warming bool, size int) []byte {
	n := protofield.SizeUint(seq) + sizeBool(warming) + 1 + protowire.SizeBytes(size)
	b = protowire.AppendVarint(protowire.AppendTag(b, responseViewAnswer, protowire.BytesType), uint64(n)) //nolint:gosec // a size
	b = protofield.AppendUint(b, viewAnswerSeq, seq)
	b = protofield.AppendBool(b, viewAnswerWarming, warming)
	return protowire.AppendVarint(protowire.AppendTag(b, viewAnswerView, protowire.BytesType), uint64(size)) //nolint:gosec // a size
}

func appendHeartbeatAck(b []byte, f *session.HeartbeatAck) []byte {
	n := protofield.SizeUint(f.Seq)
	for i := range f.Views {
		n += 1 + protowire.SizeBytes(sizeViewState(&f.Views[i]))
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, responseHeartbeatAck, protowire.BytesType), uint64(n)) //nolint:gosec // a size
	b = protofield.AppendUint(b, heartbeatAckSeq, f.Seq)
	for i := range f.Views {
		s := &f.Views[i]
		b = protowire.AppendVarint(protowire.AppendTag(b, heartbeatAckViews, protowire.BytesType), uint64(sizeViewState(s))) //nolint:gosec // a size
		b = protofield.AppendString(b, viewStateTopic, s.Topic)
		if !s.Version.IsZero() {
			b = protowire.AppendVarint(protowire.AppendTag(b, viewStateVersion, protowire.BytesType), uint64(sizeVersion(&s.Version))) //nolint:gosec // a size
			b = protofield.AppendString(b, viewVersionBroker, s.Version.Broker)
			b = protofield.AppendUint(b, viewVersionEpoch, s.Version.Epoch)
			b = protofield.AppendUint(b, viewVersionCounter, s.Version.Counter)
		}
		b = appendDigest(b, viewStateInputs, s.Inputs)
		b = appendDigest(b, viewStateOwners, s.Owners)
		b = protofield.AppendBool(b, viewStateSettled, s.OwnersSettled)
	}
	return b
}

func sizeViewState(s *session.ViewState) int {
	n := protofield.SizeString(s.Topic) + sizeDigest(s.Inputs) + sizeDigest(s.Owners) + sizeBool(s.OwnersSettled)
	if !s.Version.IsZero() {
		n += 1 + protowire.SizeBytes(sizeVersion(&s.Version))
	}
	return n
}

func sizeVersion(v *session.Version) int {
	return protofield.SizeString(v.Broker) + protofield.SizeUint(v.Epoch) + protofield.SizeUint(v.Counter)
}

// Of proto3's scalars the zero value is absent. All field numbers here take one byte.

func sizeBool(v bool) int {
	if !v {
		return 0
	}
	return 2
}

func sizeDigest(d session.Digest) int {
	if d == 0 {
		return 0
	}
	return 9
}

func appendDigest(b []byte, field protowire.Number, d session.Digest) []byte {
	if d == 0 {
		return b
	}
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), uint64(d))
}
