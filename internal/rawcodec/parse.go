package rawcodec

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// A value is one field of a message: n for varint and fixed types, b for bytes.
type value struct {
	kind protowire.Type
	n    uint64
	b    []byte
}

// next cuts one field off b.
func next(b []byte) (field protowire.Number, v value, rest []byte, err error) {
	field, v.kind, b, err = tag(b)
	if err != nil {
		return 0, v, nil, err
	}
	var n int
	switch v.kind {
	case protowire.VarintType:
		v.n, n = protowire.ConsumeVarint(b)
	case protowire.Fixed64Type:
		v.n, n = protowire.ConsumeFixed64(b)
	case protowire.BytesType:
		v.b, n = protowire.ConsumeBytes(b)
	default:
		n = protowire.ConsumeFieldValue(field, v.kind, b)
	}
	if n < 0 {
		return 0, v, nil, fmt.Errorf("field %d: %w", field, protowire.ParseError(n))
	}
	return field, v, b[n:], nil
}

func tag(b []byte) (protowire.Number, protowire.Type, []byte, error) {
	field, kind, n := protowire.ConsumeTag(b)
	if n < 0 {
		return 0, 0, nil, fmt.Errorf("tag: %w", protowire.ParseError(n))
	}
	return field, kind, b[n:], nil
}

// fields calls set for each field of b. As protobuf wants it, what is not known
// is ignored, and so is a known field of another type than the schema's.
func fields(b []byte, set func(field protowire.Number, v value) error) error {
	for len(b) > 0 {
		field, v, rest, err := next(b)
		if err != nil {
			return err
		}
		if err := set(field, v); err != nil {
			return fmt.Errorf("field %d: %w", field, err)
		}
		b = rest
	}
	return nil
}

func (m *ProduceRequest) parse(b []byte) error {
	m.ID, m.Batch = 0, nil
	return fields(b, func(field protowire.Number, v value) (err error) {
		switch field {
		case produceRequestID:
			setUint(&m.ID, v)
		case produceRequestBatch:
			setBytes(&m.Batch, v)
		}
		return err
	})
}

func (m *ProduceResponse) parse(b []byte) error {
	more := m.More[:0]
	*m = ProduceResponse{}
	err := fields(b, func(field protowire.Number, v value) error {
		if field != produceResponseMore {
			return m.set(field, v)
		}
		if v.kind != protowire.BytesType {
			return nil
		}
		more = append(more, ProduceResponse{})
		return fields(v.b, more[len(more)-1].set)
	})
	m.More = more
	return err
}

// set sets a field of one answer.
func (m *ProduceResponse) set(field protowire.Number, v value) (err error) {
	switch field {
	case produceResponseID:
		setUint(&m.ID, v)
	case produceResponseBase:
		setInt(&m.BaseOffset, v)
	case produceResponseStored:
		setInt(&m.StoreMillis, v)
	case produceResponseDuplicate:
		setBool(&m.Duplicate, v)
	case produceResponseError:
		err = setError(&m.Error, v)
	}
	return err
}

func (m *FetchRequest) parse(b []byte) error {
	*m = FetchRequest{TagHashes: m.TagHashes[:0], names: m.names}
	return fields(b, func(field protowire.Number, v value) (err error) {
		switch field {
		case fetchRequestID:
			setUint(&m.ID, v)
		case fetchRequestGroup:
			m.setName(&m.Group, v)
		case fetchRequestQueue:
			err = m.parseQueue(v)
		case fetchRequestOffset:
			setInt(&m.Offset, v)
		case fetchRequestBytes:
			setInt(&m.MaxBytes, v)
		case fetchRequestWait:
			setInt(&m.WaitMillis, v)
		case fetchRequestEpoch:
			err = m.parseEpoch(v)
		case fetchRequestTags:
			err = m.parseTags(v)
		case fetchRequestCancel:
			setBool(&m.Cancel, v)
		case fetchRequestFollow:
			setBool(&m.Follow, v)
		}
		return err
	})
}

func (m *FetchRequest) parseQueue(v value) error {
	if v.kind != protowire.BytesType {
		return nil
	}
	b := v.b
	return fields(b, func(field protowire.Number, v value) (err error) {
		switch field {
		case queueTopic:
			m.setName(&m.Topic, v)
		case queueBroker:
			m.setName(&m.Broker, v)
		case queueID:
			setInt(&m.QueueID, v)
		}
		return err
	})
}

func (m *FetchRequest) parseEpoch(v value) error {
	if v.kind != protowire.BytesType {
		return nil
	}
	b := v.b
	return fields(b, func(field protowire.Number, v value) (err error) {
		switch field {
		case epochBroker:
			setUint(&m.EpochBroker, v)
		case epochCounter:
			setUint(&m.EpochCounter, v)
		}
		return err
	})
}

// parseTags reads a repeated fixed64, packed or not.
func (m *FetchRequest) parseTags(v value) error {
	if v.kind == protowire.Fixed64Type {
		m.TagHashes = append(m.TagHashes, v.n)
		return nil
	}
	if v.kind != protowire.BytesType {
		return nil
	}
	b := v.b
	for len(b) > 0 {
		h, n := protowire.ConsumeFixed64(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		m.TagHashes = append(m.TagHashes, h)
		b = b[n:]
	}
	return nil
}

// maxNames bounds what a FetchRequest remembers.
const maxNames = 4096

// setName sets s to the string v without allocating one it has seen before.
func (m *FetchRequest) setName(s *string, v value) {
	if v.kind != protowire.BytesType {
		return
	}
	b := v.b
	if known, ok := m.names[string(b)]; ok {
		*s = known
		return
	}
	name := string(b)
	*s = name
	const longest = 255 // a longer one is not a name and will be refused
	if len(name) <= longest {
		if m.names == nil || len(m.names) >= maxNames {
			m.names = make(map[string]string)
		}
		m.names[name] = name
	}
}

func (m *FetchResponse) parse(b []byte) error {
	*m = FetchResponse{}
	return fields(b, func(field protowire.Number, v value) (err error) {
		switch field {
		case fetchResponseID:
			setUint(&m.ID, v)
		case fetchResponseBatches:
			setBytes(&m.Batches, v)
		case fetchResponseNext:
			setInt(&m.NextOffset, v)
		case fetchResponseMin:
			setInt(&m.MinOffset, v)
		case fetchResponseMax:
			setInt(&m.MaxOffset, v)
		case fetchResponseError:
			err = setError(&m.Error, v)
		case fetchResponseFollowing:
			setBool(&m.Following, v)
		}
		return err
	})
}

func setUint(u *uint64, v value) {
	if v.kind == protowire.VarintType {
		*u = v.n
	}
}

func setInt[T int32 | int64](i *T, v value) {
	if v.kind == protowire.VarintType {
		*i = T(v.n)
	}
}

func setBool(b *bool, v value) {
	if v.kind == protowire.VarintType {
		*b = v.n != 0
	}
}

func setBytes(b *[]byte, v value) {
	if v.kind == protowire.BytesType {
		*b = v.b
	}
}

func setString(s *string, v value) {
	if v.kind == protowire.BytesType {
		*s = string(v.b)
	}
}

func setError(e **Error, v value) error {
	if v.kind != protowire.BytesType {
		return nil
	}
	if *e == nil {
		*e = new(Error)
	}
	return fields(v.b, func(field protowire.Number, v value) error {
		switch field {
		case errorCode:
			setInt(&(*e).Code, v)
		case errorReason:
			setString(&(*e).Reason, v)
		case errorMessage:
			setString(&(*e).Message, v)
		}
		return nil
	})
}
