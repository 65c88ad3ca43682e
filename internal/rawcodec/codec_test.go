package rawcodec_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/tacitmq/tacit/internal/rawcodec"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// pieces cuts b as a transport would.
func pieces(b []byte, size int) mem.BufferSlice {
	var out mem.BufferSlice
	for len(b) > size {
		out = append(out, mem.SliceBuffer(b[:size]))
		b = b[size:]
	}
	return append(out, mem.SliceBuffer(b))
}

func encode(t testing.TB, c *rawcodec.Codec, m any) []byte {
	t.Helper()
	s, err := c.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return s.Materialize()
}

func TestOrdinaryProtobufReadsWhatTheCodecWrites(t *testing.T) {
	c := rawcodec.New()
	batch := bytes.Repeat([]byte("batch"), 5000)
	for _, tc := range []struct {
		name string
		raw  any
		into proto.Message
		want proto.Message
	}{
		{"produce", &rawcodec.ProduceRequest{ID: 7, Batch: batch}, &tacitv1.ProduceRequest{}, &tacitv1.ProduceRequest{Id: 7, Batch: batch}},
		{"empty produce", &rawcodec.ProduceRequest{}, &tacitv1.ProduceRequest{}, &tacitv1.ProduceRequest{}},
		{
			"produced", &rawcodec.ProduceResponse{ID: 1 << 40, BaseOffset: 5, StoreMillis: 6, Duplicate: true}, &tacitv1.ProduceResponse{},
			&tacitv1.ProduceResponse{Id: 1 << 40, BaseOffset: 5, StoreMillis: 6, Duplicate: true},
		},
		{
			"refused", &rawcodec.ProduceResponse{ID: 1, Error: &rawcodec.Error{Code: 3, Reason: "R", Message: "no \xff"}}, &tacitv1.ProduceResponse{},
			&tacitv1.ProduceResponse{Id: 1, Error: &tacitv1.DataError{Code: 3, Reason: "R", Message: "no ?"}},
		},
		{
			"produced together", &rawcodec.ProduceResponse{ID: 1, More: []rawcodec.ProduceResponse{
				{ID: 2, BaseOffset: 3}, {ID: 4, Error: &rawcodec.Error{Message: strings.Repeat("x", 300)}}, {},
			}},
			&tacitv1.ProduceResponse{},
			&tacitv1.ProduceResponse{Id: 1, More: []*tacitv1.ProduceResponse{
				{Id: 2, BaseOffset: 3}, {Id: 4, Error: &tacitv1.DataError{Message: strings.Repeat("x", 300)}}, {},
			}},
		},
		{
			"fetch", &rawcodec.FetchRequest{
				ID: 1, Group: "g", Topic: "t", Broker: "b", QueueID: 3, Offset: -1, MaxBytes: 1 << 20, WaitMillis: 15000,
				EpochBroker: 1 << 60, EpochCounter: 2, TagHashes: []uint64{1, 1 << 63}, Cancel: true, Follow: true,
			}, &tacitv1.FetchRequest{},
			&tacitv1.FetchRequest{
				Id: 1, Group: "g", Queue: &tacitv1.MessageQueue{Topic: "t", Broker: "b", QueueId: 3}, Offset: -1, MaxBytes: 1 << 20, WaitMillis: 15000,
				Epoch: &tacitv1.Epoch{Broker: 1 << 60, Counter: 2}, TagHashes: []uint64{1, 1 << 63}, Cancel: true, Follow: true,
			},
		},
		{"cancel", &rawcodec.FetchRequest{ID: 9, Cancel: true}, &tacitv1.FetchRequest{}, &tacitv1.FetchRequest{Id: 9, Cancel: true}},
		{"negative queue", &rawcodec.FetchRequest{QueueID: -4}, &tacitv1.FetchRequest{}, &tacitv1.FetchRequest{Queue: &tacitv1.MessageQueue{QueueId: -4}}},
		{
			"fetched", &rawcodec.FetchResponse{ID: 2, NextOffset: 10, MinOffset: 1, MaxOffset: 12, Following: true, Data: pieces(batch, 1000)}, &tacitv1.FetchResponse{},
			&tacitv1.FetchResponse{Id: 2, NextOffset: 10, MinOffset: 1, MaxOffset: 12, Following: true, Batches: batch},
		},
		{"other messages", &tacitv1.FindOffsetResponse{Offset: 4}, &tacitv1.FindOffsetResponse{}, &tacitv1.FindOffsetResponse{Offset: 4}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := proto.Unmarshal(encode(t, c, tc.raw), tc.into); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(tc.into, tc.want) {
				t.Errorf("got %v, want %v", tc.into, tc.want)
			}
		})
	}
}

func TestCodecReadsWhatOrdinaryProtobufWrites(t *testing.T) {
	c := rawcodec.New()
	batch := bytes.Repeat([]byte("batch"), 5000)
	for _, size := range []int{1 << 20, 16 << 10, 7} {
		var pr rawcodec.ProduceRequest
		if err := c.Unmarshal(pieces(marshal(t, &tacitv1.ProduceRequest{Id: 7, Batch: batch}), size), &pr); err != nil {
			t.Fatal(err)
		}
		if pr.ID != 7 || !bytes.Equal(pr.Batch, batch) {
			t.Errorf("pieces of %d: produce request %d with %d bytes", size, pr.ID, len(pr.Batch))
		}
		pr.Free()
		pr.Free()

		var fr rawcodec.FetchResponse
		want := &tacitv1.FetchResponse{Id: 3, Batches: batch, NextOffset: 4, MinOffset: 5, MaxOffset: 6, Following: true, Error: &tacitv1.DataError{Code: 5, Reason: "r", Message: "m"}}
		if err := c.Unmarshal(pieces(marshal(t, want), size), &fr); err != nil {
			t.Fatal(err)
		}
		if fr.ID != 3 || !bytes.Equal(fr.Batches, batch) || fr.NextOffset != 4 || fr.MinOffset != 5 || fr.MaxOffset != 6 || !fr.Following || *fr.Error != (rawcodec.Error{Code: 5, Reason: "r", Message: "m"}) {
			t.Errorf("pieces of %d: fetch response %+v", size, fr)
		}
		fr.Free()
	}
}

// Without the bound a client could make a broker remember names without end.
func TestNamesOfFetchRequestsAreDecodedWithoutAllocating(t *testing.T) {
	c := rawcodec.New()
	in := mem.BufferSlice{mem.SliceBuffer(marshal(t, &tacitv1.FetchRequest{
		Id: 1, Group: "group", Queue: &tacitv1.MessageQueue{Topic: "topic", Broker: "broker", QueueId: 3}, Offset: 7,
		Epoch: &tacitv1.Epoch{Broker: 1, Counter: 2}, TagHashes: []uint64{1, 2},
	}))}
	var m rawcodec.FetchRequest
	if n := testing.AllocsPerRun(100, func() {
		if err := c.Unmarshal(in, &m); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if m.Group != "group" || m.Topic != "topic" || m.Broker != "broker" || m.QueueID != 3 || m.EpochBroker != 1 || m.EpochCounter != 2 || len(m.TagHashes) != 2 {
		t.Errorf("got %+v", m)
	}
}

// echo answers each request by its batch, through the codec on this side only.
type echo struct {
	tacitv1.UnimplementedDataServiceServer
}

func (echo) Produce(s grpc.BidiStreamingServer[tacitv1.ProduceRequest, tacitv1.ProduceResponse]) error {
	for {
		var m rawcodec.ProduceRequest
		if err := s.RecvMsg(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		err := s.SendMsg(&rawcodec.ProduceResponse{ID: m.ID, BaseOffset: int64(len(m.Batch))})
		m.Free()
		if err != nil {
			return err
		}
	}
}

func TestRawAndOrdinaryClientsShareOneServer(t *testing.T) {
	codec := rawcodec.New()
	lis := bufconn.Listen(1 << 20)
	srv := grpc.NewServer(grpc.ForceServerCodecV2(codec))
	tacitv1.RegisterDataServiceServer(srv, echo{})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(lis) }() // ends with srv.Stop below
	t.Cleanup(func() {
		srv.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient("passthrough:///b", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := tacitv1.NewDataServiceClient(conn)
	batch := make([]byte, 200_000)

	plain, err := client.Produce(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := plain.Send(&tacitv1.ProduceRequest{Id: 1, Batch: batch}); err != nil {
		t.Fatal(err)
	}
	if got, err := plain.Recv(); err != nil || got.GetId() != 1 || got.GetBaseOffset() != 200_000 {
		t.Fatal(got, err)
	}

	raw, err := client.Produce(t.Context(), grpc.ForceCodecV2(codec))
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.SendMsg(&rawcodec.ProduceRequest{ID: 2, Batch: batch}); err != nil {
		t.Fatal(err)
	}
	var got rawcodec.ProduceResponse
	if err := raw.RecvMsg(&got); err != nil || got.ID != 2 || got.BaseOffset != 200_000 {
		t.Fatal(got, err)
	}
}

// The generated code is the oracle: what it accepts must read the same, and
// nothing may panic.
func FuzzFetchRequest(f *testing.F) {
	f.Add(marshal(f, &tacitv1.FetchRequest{Id: 1, Group: "g", Queue: &tacitv1.MessageQueue{Topic: "t", QueueId: 1}, TagHashes: []uint64{3}, Epoch: &tacitv1.Epoch{Broker: 1}}))
	f.Add([]byte{0x42, 0xff, 0xff, 0xff, 0xff, 0x0f})
	c := rawcodec.New()
	f.Fuzz(func(t *testing.T, b []byte) {
		var m rawcodec.FetchRequest
		err := c.Unmarshal(pieces(b, 5), &m)
		var p tacitv1.FetchRequest
		if proto.Unmarshal(b, &p) != nil {
			return
		}
		if err != nil {
			t.Fatalf("protobuf reads %v, the codec: %v", &p, err)
		}
		if m.ID != p.GetId() || m.Group != p.GetGroup() || m.Topic != p.GetQueue().GetTopic() || m.QueueID != p.GetQueue().GetQueueId() ||
			m.Offset != p.GetOffset() || m.EpochBroker != p.GetEpoch().GetBroker() || len(m.TagHashes) != len(p.GetTagHashes()) || m.Cancel != p.GetCancel() || m.Follow != p.GetFollow() {
			t.Fatalf("protobuf reads %v, the codec %+v", &p, m)
		}
	})
}

func FuzzResponses(f *testing.F) {
	f.Add(marshal(f, &tacitv1.FetchResponse{Id: 1, Batches: []byte("abc"), NextOffset: 2, Error: &tacitv1.DataError{Code: 1}}))
	f.Add(marshal(f, &tacitv1.ProduceResponse{Id: 1, BaseOffset: -2, Duplicate: true}))
	f.Add(marshal(f, &tacitv1.ProduceResponse{Id: 1, More: []*tacitv1.ProduceResponse{{Id: 2, BaseOffset: 9}, {Id: 3, Error: &tacitv1.DataError{Code: 1}}}}))
	c := rawcodec.New()
	f.Fuzz(func(t *testing.T, b []byte) {
		var fr rawcodec.FetchResponse
		err := c.Unmarshal(pieces(b, 5), &fr)
		var p tacitv1.FetchResponse
		if proto.Unmarshal(b, &p) == nil && (err != nil || fr.ID != p.GetId() || !bytes.Equal(fr.Batches, p.GetBatches()) || fr.NextOffset != p.GetNextOffset() || (fr.Error == nil) != (p.GetError() == nil)) {
			t.Fatalf("protobuf reads %v, the codec %+v, %v", &p, fr, err)
		}
		var pr rawcodec.ProduceResponse
		err = c.Unmarshal(pieces(b, 5), &pr)
		var q tacitv1.ProduceResponse
		if proto.Unmarshal(b, &q) == nil && (err != nil || pr.ID != q.GetId() || pr.BaseOffset != q.GetBaseOffset() || pr.Duplicate != q.GetDuplicate() || len(pr.More) != len(q.GetMore())) {
			t.Fatalf("protobuf reads %v, the codec %+v, %v", &q, pr, err)
		}
		for i := range min(len(pr.More), len(q.GetMore())) {
			if pr.More[i].ID != q.GetMore()[i].GetId() || pr.More[i].BaseOffset != q.GetMore()[i].GetBaseOffset() {
				t.Fatalf("protobuf reads %v, the codec %+v", &q, pr)
			}
		}
		var req rawcodec.ProduceRequest
		err = c.Unmarshal(pieces(b, 5), &req)
		var r tacitv1.ProduceRequest
		if proto.Unmarshal(b, &r) == nil && (err != nil || req.ID != r.GetId() || !bytes.Equal(req.Batch, r.GetBatch())) {
			t.Fatalf("protobuf reads %v, the codec %+v, %v", &r, req, err)
		}
	})
}

func BenchmarkProduceRequestDecode64KiB(b *testing.B) {
	c := rawcodec.New()
	in := pieces(marshal(b, &tacitv1.ProduceRequest{Id: 1, Batch: make([]byte, 64<<10)}), 16<<10)
	b.SetBytes(64 << 10)
	b.ReportAllocs()
	var m rawcodec.ProduceRequest
	for b.Loop() {
		if err := c.Unmarshal(in, &m); err != nil {
			b.Fatal(err)
		}
		m.Free()
	}
}
