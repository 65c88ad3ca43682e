package broker

import (
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rawcodec"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// benchEnv serves on loopback, as clients do in earnest.
func benchEnv(b *testing.B, d store.Durability, queues int32) (*env, *grpc.ClientConn, *rawcodec.Codec) {
	b.Helper()
	lis, err := (&net.ListenConfig{}).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	cfg := testConfig(b.TempDir())
	cfg.Durability, cfg.SegmentBytes, cfg.RetainBytes = d, 64<<20, 512<<20
	e := start(b, cfg)
	e.topic("T", queues)
	go func() { _ = e.srv.grpc.Serve(listener{lis}) }() // ends with the broker
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithReadBufferSize(readBuffer), grpc.WithWriteBufferSize(readBuffer),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return e, conn, rawcodec.New()
}

// benchBatch is n messages of 1 KiB for a queue.
func benchBatch(b *testing.B, queue int32, n int) []byte {
	ms := make([]message.Message, n)
	for i := range ms {
		ms[i].Body = make([]byte, 1024)
	}
	return encodeBatch(b, batch.Info{Topic: "T", Queue: queue}, ms...)
}

// BenchmarkProduce measures client and broker together: one stream, 32 batches
// under way. B/op and allocs/op are per batch, both sides.
func BenchmarkProduce(b *testing.B) {
	for _, d := range []store.Durability{store.None, store.Fsync} {
		for _, n := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/batch=%d", DurabilityName(d), n), func(b *testing.B) {
				_, conn, codec := benchEnv(b, d, 64)
				s, err := tacitv1.NewDataServiceClient(conn).Produce(b.Context(), grpc.ForceCodecV2(codec))
				if err != nil {
					b.Fatal(err)
				}
				var batches [64][]byte
				for q := range batches {
					batches[q] = benchBatch(b, int32(q), n)
				}
				window := make(chan struct{}, 32)
				done := make(chan error, 1)
				b.SetBytes(int64(len(batches[0])))
				b.ReportAllocs()
				b.ResetTimer()
				used := cpuTime()
				go func() { // ends with the last answer
					var r rawcodec.ProduceResponse
					for n := 0; n < b.N; n += 1 + len(r.More) {
						if err := s.RecvMsg(&r); err != nil {
							done <- err
							return
						}
						for range 1 + len(r.More) {
							<-window
						}
					}
					done <- nil
				}()
				for i := range b.N {
					window <- struct{}{}
					if err := s.SendMsg(&rawcodec.ProduceRequest{ID: uint64(i), Batch: batches[i%64]}); err != nil {
						b.Fatal(err)
					}
				}
				if err := <-done; err != nil {
					b.Fatal(err)
				}
				reportCPU(b, used, b.N)
				b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "msgs/s")
			})
		}
	}
}

// BenchmarkFetch measures reading what lies in the log, 64 queues on one stream.
// One op is an answer of up to 256 KiB.
func BenchmarkFetch(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("batch=%d", n), func(b *testing.B) {
			e, conn, codec := benchEnv(b, store.None, 64)
			const perQueue = 1024 // KiB
			p := e.producer()
			for range perQueue / n {
				for q := range int32(64) {
					p.n++
					if err := p.s.SendMsg(&rawcodec.ProduceRequest{ID: p.n, Batch: benchBatch(b, q, n)}); err != nil {
						b.Fatal(err)
					}
				}
				var r rawcodec.ProduceResponse
				for n := 0; n < 64; n += 1 + len(r.More) {
					if err := p.s.RecvMsg(&r); err != nil {
						b.Fatal(err)
					}
				}
			}
			s, err := tacitv1.NewDataServiceClient(conn).Fetch(b.Context(), grpc.ForceCodecV2(codec))
			if err != nil {
				b.Fatal(err)
			}
			var at [64]int64
			ask := func(q int) {
				if err := s.SendMsg(&rawcodec.FetchRequest{ID: uint64(q), Topic: "T", QueueID: int32(q), Offset: at[q], MaxBytes: 256 << 10}); err != nil {
					b.Fatal(err)
				}
			}
			for q := range 8 {
				ask(q)
			}
			var bytes atomic.Int64
			b.ReportAllocs()
			b.ResetTimer()
			used := cpuTime()
			next := 8
			var r rawcodec.FetchResponse
			for range b.N {
				if err := s.RecvMsg(&r); err != nil {
					b.Fatal(err)
				}
				bytes.Add(int64(len(r.Batches)))
				q := int(r.ID)
				if at[q] = r.NextOffset; r.NextOffset >= r.MaxOffset {
					at[q] = 0
				}
				r.Free()
				ask(next % 64)
				next++
			}
			b.StopTimer()
			reportCPU(b, used, b.N)
			b.SetBytes(bytes.Load() / int64(b.N))
			b.ReportMetric(float64(bytes.Load())/1024/b.Elapsed().Seconds(), "msgs/s")
		})
	}
}

// BenchmarkHeartbeat measures one heartbeat and its answer, both sides.
func BenchmarkHeartbeat(b *testing.B) {
	e := start(b, testConfig(b.TempDir()))
	e.topic("T", 4)
	m := e.idleMember(e.conn, "c1", 1)
	b.ReportAllocs()
	b.ResetTimer()
	used := cpuTime()
	for i := 0; b.Loop(); i++ {
		m.send(&tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Heartbeat{Heartbeat: &tacitv1.Heartbeat{Seq: uint64(i)}}})
		await(m, (*tacitv1.SessionResponse).GetHeartbeatAck)
	}
	reportCPU(b, used, b.N)
}

// idleMember joins group g and reports that it owns nothing.
func (e *env) idleMember(conn *grpc.ClientConn, id string, random uint64) *member {
	m := e.openSession(conn)
	m.hello(hello("g", id, random, "T"))
	await(m, (*tacitv1.SessionResponse).GetWelcome)
	m.send(&tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Report{Report: &tacitv1.Report{Topic: "T", Full: true}}})
	return m
}

// BenchmarkNotices measures how a notice becomes what goes to gRPC, in a group of
// 200 members. One op is one notice to one member.
func BenchmarkNotices(b *testing.B) {
	const members = 200
	for _, joined := range []int{1, 1000} {
		b.Run(fmt.Sprintf("joined=%d", joined), func(b *testing.B) {
			var a alike
			list := crowd(joined)
			b.ReportAllocs()
			used := cpuTime()
			for i := range b.N {
				o := a.outgoing(noticeOf(uint64(i/members)+1, list))
				if _, err := o.message(); err != nil {
					b.Fatal(err)
				}
			}
			reportCPU(b, used, b.N)
		})
	}
}
