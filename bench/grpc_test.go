package bench

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"

	"github.com/tacitmq/tacit/internal/batch"
	tacit "github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/internal/rawcodec"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// bare answers batches after checking them as a broker does, and forgets them.
type bare struct {
	tacitv1.UnimplementedDataServiceServer
}

func (bare) Produce(s grpc.BidiStreamingServer[tacitv1.ProduceRequest, tacitv1.ProduceResponse]) error {
	var req rawcodec.ProduceRequest
	for {
		switch err := s.RecvMsg(&req); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		h, err := batch.Parse(req.Batch)
		if err == nil {
			err = batch.VerifyBody(req.Batch, &h)
		}
		if err != nil {
			return err
		}
		id := req.ID
		req.Free()
		if err := s.SendMsg(&rawcodec.ProduceResponse{ID: id, StoreMillis: 1}); err != nil {
			return err
		}
	}
}

// serveGRPC is the transport of a broker, with its settings, and nothing else.
func serveGRPC(string, string) error {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	codec := rawcodec.New()
	srv := grpc.NewServer(grpc.ForceServerCodecV2(codec), experimental.BufferPool(codec.Pool()),
		grpc.InitialWindowSize(4<<20), grpc.InitialConnWindowSize(16<<20), grpc.ReadBufferSize(256<<10), grpc.WriteBufferSize(256<<10),
		grpc.MaxRecvMsgSize(16<<20))
	tacitv1.RegisterDataServiceServer(srv, bare{})
	go func() { _ = srv.Serve(lis) }() // ends with Stop
	if err := say(lis.Addr().String()); err != nil {
		return err
	}
	untilTold()
	srv.Stop()
	return nil
}

func startGRPC(streams int) func(testing.TB, string) *server {
	return func(tb testing.TB, dir string) *server {
		var address string
		p := spawn(tb, "grpc", dir, "", &address)
		return &server{process: p, dial: func(topic string) (client, error) { return newFrameClient(address, topic, 64, streams) }}
	}
}

// frameClient keeps some batches under way on each of some streams, each on a
// connection of its own: 32, of one message each 1024, a quarter of what
// JetStream's client keeps.
type frameClient struct {
	topic   string
	size    int
	conns   []*grpc.ClientConn
	streams []grpc.ClientStream
	codec   *rawcodec.Codec
}

func (c *frameClient) inFlight() int { return max(32, 1024/c.size) }

func newFrameClient(address, topic string, size, streams int) (client, error) {
	c := &frameClient{topic: topic, size: size, codec: rawcodec.New()}
	for range streams {
		cc, err := grpc.NewClient(address, tacit.DialOptions(nil)...)
		if err != nil {
			return nil, err
		}
		c.conns = append(c.conns, cc)
		s, err := tacitv1.NewDataServiceClient(cc).Produce(context.Background(), grpc.ForceCodecV2(c.codec))
		if err != nil {
			c.close()
			return nil, err
		}
		c.streams = append(c.streams, s)
	}
	return c, nil
}

func (c *frameClient) flood(ctx context.Context, body []byte, acked func(int)) error {
	batches, err := encode(c.topic, body, c.size)
	if err != nil {
		return err
	}
	errs := make([]error, len(c.streams))
	var wg sync.WaitGroup
	for i, s := range c.streams {
		wg.Go(func() { errs[i] = c.floodOne(ctx, s, batches, i*benchQueues/len(c.streams), acked) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (c *frameClient) floodOne(ctx context.Context, s grpc.ClientStream, batches [][]byte, first int, acked func(int)) error {
	window := make(chan struct{}, c.inFlight())
	got := make(chan error, 1)
	go func() { // ends with the stream, which this function closes
		var r rawcodec.ProduceResponse
		for {
			if err := s.RecvMsg(&r); err != nil {
				if errors.Is(err, io.EOF) {
					err = nil
				}
				got <- err
				return
			}
			if r.Error != nil {
				got <- errors.New(r.Error.Message)
				return
			}
			acked(c.size * (1 + len(r.More)))
			for range 1 + len(r.More) {
				<-window
			}
		}
	}()
	for id := uint64(1); ctx.Err() == nil; id++ {
		select {
		case window <- struct{}{}:
		case err := <-got:
			return err
		}
		if err := s.SendMsg(&rawcodec.ProduceRequest{ID: id, Batch: batches[(first+int(id))%len(batches)]}); err != nil {
			return errors.Join(err, <-got) // the receiver knows why
		}
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	return <-got
}

func (c *frameClient) send([]byte) error { return errNotMeasured }

func (c *frameClient) consume(context.Context, func([]byte)) error { return errNotMeasured }

func (c *frameClient) close() {
	for _, cc := range c.conns {
		_ = cc.Close()
	}
}
