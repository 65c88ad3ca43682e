package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/wire"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/session"
)

const (
	idleTopic     = "idle"
	idleBroker    = "broker-a"
	heartbeatTime = 3 * time.Second
)

// idleOwners is the settled ownership of the idle topic, which has one queue.
func idleOwners() session.Digest {
	return session.OwnersDigest(idleTopic, []session.Holding{{Queue: idleQueue(), ClientID: crowdID(0)}})
}

func idleQueue() allocate.Queue { return allocate.Queue{Topic: idleTopic, Broker: idleBroker} }

func crowdID(n int) string { return fmt.Sprintf("10.0.0.1@4711#%027d", n) } // as long as real ones

// crowd says what a process of members is to do.
type crowd struct {
	Broker, Group string
	First, Count  int
}

// tally is what the members of a process were told since the last mark.
type tally struct {
	First, Last    int64 // Unix nanoseconds of notices
	Notices, Bytes int64
	Frames         int64 // of any kind
}

// runMembers connects members, each on a connection of its own, that heartbeat
// and do no more. They speak the session protocol without the SDK, so that what
// they cost is the broker's and the transport's. On "mark" they begin to count
// anew; on "tell" they say what they counted.
func runMembers(_, arg string) error {
	var c crowd
	if err := json.Unmarshal([]byte(arg), &c); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var t counter
	members := make([]*idleMember, c.Count)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(32)
	for i := range members {
		if c.First+i == 0 { // it takes the queue
			m, err := connect(ctx, &c, i, &t)
			if err != nil {
				return err
			}
			members[i] = m
			continue
		}
		g.Go(func() (err error) {
			if gctx.Err() == nil {
				members[i], err = connect(ctx, &c, i, &t)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := say(c.Count); err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		switch in.Text() {
		case "mark":
			t.reset()
			if err := say(0); err != nil {
				return err
			}
		case "tell":
			if failed := t.failed.Load(); failed != nil {
				return *failed
			}
			if err := say(t.now()); err != nil {
				return err
			}
		}
	}
	return in.Err()
}

type counter struct {
	mu     sync.Mutex
	t      tally
	failed atomic.Pointer[error]
}

func (c *counter) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = tally{}
}

func (c *counter) now() tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *counter) frame(notice bool, size int) {
	now := time.Now().UnixNano()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t.Frames++
	c.t.Bytes += int64(size)
	if !notice {
		return
	}
	if c.t.Notices++; c.t.First == 0 {
		c.t.First = now
	}
	c.t.Last = now
}

// idleMember is one member.
type idleMember struct {
	cc      *grpc.ClientConn
	s       grpc.ClientStream
	leaving atomic.Bool
}

func connect(ctx context.Context, c *crowd, i int, t *counter) (*idleMember, error) {
	cc, err := grpc.NewClient(c.Broker, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10), grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return nil, err
	}
	s, err := cc.NewStream(ctx, &tacitv1.SessionService_ServiceDesc.Streams[0], tacitv1.SessionService_Session_FullMethodName, grpc.ForceCodecV2(peek{}))
	if err != nil {
		return nil, errors.Join(err, cc.Close())
	}
	m := &idleMember{cc: cc, s: s}
	id := crowdID(c.First + i)
	err = m.send(session.Hello{
		Group: c.Group, ClientID: id, Incarnation: session.Incarnation{Counter: 1, Random: uint64(c.First+i) + 1},
		Offers: []session.Offer{{Strategy: "sticky"}}, Subscriptions: []session.Subscription{{Topic: idleTopic, Filter: "*"}},
	})
	if err != nil {
		return nil, err
	}
	report := session.Report{Topic: idleTopic, Full: true, Expected: idleOwners()}
	if c.First+i == 0 {
		epoch, err := m.acquire()
		if err != nil {
			return nil, fmt.Errorf("take the queue: %w", err)
		}
		report.Owned = []session.Owned{{Queue: idleQueue(), Epoch: epoch}}
	}
	if err := m.send(report); err != nil {
		return nil, err
	}
	go m.read(t)                                                         // both end with the process
	go m.beat(ctx, heartbeatTime*time.Duration(i%perProcess)/perProcess) // not all at once
	return m, nil
}

// acquire takes the queue and returns the epoch of the grant.
func (m *idleMember) acquire() (session.Epoch, error) {
	if err := m.send(session.Acquire{Queues: []allocate.Queue{idleQueue()}, ViewBroker: idleBroker}); err != nil {
		return session.Epoch{}, err
	}
	for {
		f := frame{keep: true}
		if err := m.s.RecvMsg(&f); err != nil {
			return session.Epoch{}, err
		}
		var r tacitv1.SessionResponse
		if err := proto.Unmarshal(f.all, &r); err != nil {
			return session.Epoch{}, err
		}
		for _, g := range r.GetGranted().GetGrants() {
			return session.Epoch{Broker: g.GetEpoch().GetBroker(), Counter: g.GetEpoch().GetCounter()}, nil
		}
	}
}

func (m *idleMember) send(f session.ToBroker) error { return m.s.SendMsg(wire.Request(f)) }

func (m *idleMember) read(t *counter) {
	f, verdict := frame{}, ""
	for {
		if err := m.s.RecvMsg(&f); err != nil {
			if !m.leaving.Load() {
				err = fmt.Errorf("a session ended: %s %w", verdict, err)
				t.failed.CompareAndSwap(nil, &err)
			}
			return
		}
		if f.field == refusedField {
			verdict = string(f.all)
		}
		t.frame(f.field == groupChangedField, f.size)
	}
}

func (m *idleMember) beat(ctx context.Context, first time.Duration) {
	timer := time.NewTimer(first)
	defer timer.Stop()
	for seq := uint64(1); ; seq++ {
		select {
		case <-timer.C:
			timer.Reset(heartbeatTime)
		case <-ctx.Done():
			return
		}
		if m.send(session.Heartbeat{Seq: seq}) != nil {
			return // the reader tells why
		}
	}
}

// leave says goodbye and closes the connection.
func (m *idleMember) leave() error {
	m.leaving.Store(true)
	return errors.Join(m.send(session.Goodbye{}), m.s.CloseSend(), m.cc.Close())
}

// Numbers of frames in SessionResponse.
const (
	refusedField      = 2
	groupChangedField = 6
)

// frame is what a member looks at of a frame: which one it is, and its size.
type frame struct {
	field protowire.Number
	size  int
	keep  bool
	all   []byte
}

// peek reads of received messages only the first field's number, so that what a
// thousand receivers decode does not count.
type peek struct{}

func (peek) Name() string { return "proto" }

func (peek) Marshal(v any) (mem.BufferSlice, error) {
	b, err := proto.Marshal(v.(proto.Message))
	return mem.BufferSlice{mem.SliceBuffer(b)}, err
}

func (peek) Unmarshal(data mem.BufferSlice, v any) error {
	f := v.(*frame)
	f.size = data.Len()
	f.field = 0
	if f.size > 0 {
		f.field, _, _ = protowire.ConsumeTag(data[0].ReadOnlyData())
	}
	if f.keep || f.field == refusedField {
		f.all = data.Materialize()
	}
	return nil
}

var _ encoding.CodecV2 = peek{}
