package client

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/tacitmq/tacit/internal/rawcodec"
	"github.com/tacitmq/tacit/internal/rpcerr"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// produceCall is a ProduceCall on its pipe, with the batch as it was handed over: a
// call that failed may be used again while its request is being written.
type produceCall struct {
	*ProduceCall
	batch []byte
	limit time.Duration
}

func (c *produceCall) send(s grpc.ClientStream, id uint64) error {
	return s.SendMsg(&rawcodec.ProduceRequest{ID: id, Batch: c.batch})
}

func (c *produceCall) size() int { return len(c.batch) + noticeSize }

func (c *produceCall) numbered(uint64) {}

func (c *produceCall) timeout() time.Duration { return c.limit }

func (c *produceCall) fail(err error) {
	c.Done(ProduceResult{}, fmt.Errorf("produce to broker %s: %w", c.Broker, err))
}

func receiveProduced(s grpc.ClientStream, on *pipe) error {
	var m rawcodec.ProduceResponse
	if err := s.RecvMsg(&m); err != nil {
		return err
	}
	// What came with it for consumers goes first: somebody waits for a message, few
	// for an acknowledgement.
	runtime.Gosched()
	one := &m
	finish := func(p pending) {
		c, ok := p.(*produceCall)
		switch {
		case !ok:
		case one.Error != nil:
			c.fail(dataError(one.Error))
		default:
			c.Done(ProduceResult{Offset: one.BaseOffset, StoreTime: time.UnixMilli(one.StoreMillis), Duplicate: one.Duplicate}, nil)
		}
	}
	on.end(m.ID, finish)
	for i := range m.More {
		one = &m.More[i]
		on.end(one.ID, finish)
	}
	return nil
}

// fetchCall is a FetchCall on its pipe, with the request as it was made: a call
// that was taken back may be used again while its request is being written.
type fetchCall struct {
	call  *FetchCall
	req   rawcodec.FetchRequest
	limit time.Duration
}

func newFetchCall(c *FetchCall, limit time.Duration) *fetchCall {
	return &fetchCall{call: c, limit: limit, req: rawcodec.FetchRequest{
		Group: c.Group, Topic: c.Queue.Topic, Broker: c.Queue.Broker, QueueID: c.Queue.ID,
		Offset: c.Offset, MaxBytes: int32(c.MaxBytes), WaitMillis: int32(c.Wait.Milliseconds()),
		EpochBroker: c.Epoch.Broker, EpochCounter: c.Epoch.Counter, TagHashes: c.Tags, Follow: c.Follow,
	}}
}

func (c *fetchCall) send(s grpc.ClientStream, id uint64) error {
	c.req.ID = id
	return s.SendMsg(&c.req)
}

func (c *fetchCall) size() int {
	return 64 + len(c.req.Group) + len(c.req.Topic) + len(c.req.Broker) + 10*len(c.req.TagHashes)
}

func (c *fetchCall) numbered(id uint64) { c.call.id.Store(id) }

func (c *fetchCall) timeout() time.Duration { return c.limit }

func (c *fetchCall) fail(err error) { c.failWith(FetchResult{}, err) }

func (c *fetchCall) failWith(r FetchResult, err error) {
	c.call.Done(r, fmt.Errorf("fetch %s/%s/%d at %d: %w", c.req.Topic, c.req.Broker, c.req.QueueID, c.req.Offset, err))
}

func receiveFetched(s grpc.ClientStream, on *pipe) error {
	m := new(rawcodec.FetchResponse)
	if err := s.RecvMsg(m); err != nil {
		return err
	}
	following := m.Following && m.Error == nil
	finish := func(p pending) {
		c, ok := p.(*fetchCall)
		if !ok {
			m.Free() // nobody waits for it any more
			return
		}
		r := FetchResult{Next: m.NextOffset, Following: following, Bounds: Bounds{Min: m.MinOffset, Max: m.MaxOffset}}
		if m.Error != nil {
			m.Free()
			c.failWith(r, dataError(m.Error))
			return
		}
		r.Batches, r.resp = m.Batches, m
		c.call.Done(r, nil)
	}
	if following {
		on.again(m.ID, finish, cancelFetch)
	} else {
		on.end(m.ID, finish)
	}
	return nil
}

func cancelFetch(s grpc.ClientStream, id uint64) error {
	return s.SendMsg(&rawcodec.FetchRequest{ID: id, Cancel: true})
}

func dataError(e *rawcodec.Error) error {
	if e.Code == int32(codes.OK) {
		return rpcerr.ErrInternal // an error that says it is none
	}
	return rpcerr.FromParts(codes.Code(e.Code), e.Reason, e.Message)
}

// openStream opens one of the streams of DataService on a connection. The codec
// reads and writes batches without copying.
func openStream(cc *grpc.ClientConn, codec *rawcodec.Codec, index int, method string) func(context.Context) (grpc.ClientStream, error) {
	return func(ctx context.Context) (grpc.ClientStream, error) {
		return cc.NewStream(ctx, &tacitv1.DataService_ServiceDesc.Streams[index], method, grpc.ForceCodecV2(codec))
	}
}

func newProducePipe(cc *grpc.ClientConn, codec *rawcodec.Codec) *pipe {
	return newPipe(openStream(cc, codec, 0, tacitv1.DataService_Produce_FullMethodName), receiveProduced)
}

func newFetchPipe(cc *grpc.ClientConn, codec *rawcodec.Codec) *pipe {
	return newPipe(openStream(cc, codec, 1, tacitv1.DataService_Fetch_FullMethodName), receiveFetched)
}
