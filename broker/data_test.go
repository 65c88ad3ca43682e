package broker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rawcodec"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

func TestProducedMessagesAreFetchedUnchanged(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 2)
	p, f := e.producer(), e.fetcher()
	big := string(make([]byte, 200_000))
	if r := p.send(batch.Info{Topic: "T", Queue: 1}, bodies("a", "b")...); r.BaseOffset != 0 || r.StoreMillis == 0 {
		t.Fatalf("first answer %+v", r)
	}
	if r := p.send(batch.Info{Topic: "T", Queue: 1}, bodies(big, "c")...); r.BaseOffset != 2 {
		t.Fatalf("second answer %+v", r)
	}
	resp := f.fetch(rawcodec.FetchRequest{Topic: "T", QueueID: 1})
	if resp.Error != nil || resp.NextOffset != 4 || resp.MinOffset != 0 || resp.MaxOffset != 4 {
		t.Fatalf("fetched %+v %v", resp, dataErr(resp.Error))
	}
	if got := texts(messages(t, resp.Batches, "T")); !slices.Equal(got, []string{"a", "b", big, "c"}) {
		t.Errorf("got %d messages", len(got))
	}
}

func TestOrdinaryProtobufClientProducesAndFetches(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	p, err := e.data.Produce(e.ctx())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Send(&tacitv1.ProduceRequest{Id: 5, Batch: encodeBatch(t, batch.Info{Topic: "T"}, bodies("x", "y")...)}); err != nil {
		t.Fatal(err)
	}
	if r, err := p.Recv(); err != nil || r.GetId() != 5 || r.GetError() != nil {
		t.Fatal(r, err)
	}
	f, err := e.data.Fetch(e.ctx())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Send(&tacitv1.FetchRequest{Id: 9, Queue: &tacitv1.MessageQueue{Topic: "T", Broker: "b1"}}); err != nil {
		t.Fatal(err)
	}
	r, err := f.Recv()
	if err != nil || r.GetId() != 9 || r.GetNextOffset() != 2 {
		t.Fatal(r, err)
	}
	if got := texts(messages(t, r.GetBatches(), "T")); !slices.Equal(got, []string{"x", "y"}) {
		t.Errorf("got %q", got)
	}
}

func TestBadBatchesAreRefusedByNameAndTheStreamGoesOn(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.MaxBatchBytes = 64 << 10
	e := start(t, cfg)
	e.topic("T", 1)
	if _, err := e.admin.PutTopic(e.ctx(), &tacitv1.PutTopicRequest{Config: &tacitv1.TopicConfig{
		Topic: "RO", ReadQueues: 1, WriteQueues: 1, Permission: &tacitv1.Permission{Readable: true},
	}}); err != nil {
		t.Fatal(err)
	}
	p := e.producer()
	good := encodeBatch(t, batch.Info{Topic: "T"}, bodies("a")...)
	flipped := slices.Clone(good)
	flipped[len(flipped)-1] ^= 1
	for _, tc := range []struct {
		name string
		b    []byte
		want error
	}{
		{"empty", nil, rpcerr.ErrBadBatch},
		{"garbage", []byte("GET / HTTP/1.1\r\n\r\n"), rpcerr.ErrBadBatch},
		{"cut", good[:len(good)-1], rpcerr.ErrBadBatch},
		{"with a tail", append(slices.Clone(good), 0), rpcerr.ErrBadBatch},
		{"wrong checksum", flipped, rpcerr.ErrBadBatch},
		{"too large", encodeBatch(t, batch.Info{Topic: "T"}, bodies(string(make([]byte, 65<<10)))...), rpcerr.ErrMessageTooLarge},
		{"unknown topic", encodeBatch(t, batch.Info{Topic: "U"}, bodies("a")...), rpcerr.ErrTopicNotFound},
		{"unknown queue", encodeBatch(t, batch.Info{Topic: "T", Queue: 1}, bodies("a")...), rpcerr.ErrQueueNotFound},
		{"read only", encodeBatch(t, batch.Info{Topic: "RO"}, bodies("a")...), rpcerr.ErrNotWritable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := p.try(tc.b); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if _, err := p.try(good); err != nil {
				t.Errorf("good batch afterwards: %v", err)
			}
		})
	}
}

func TestRepeatedSequenceIsStoredOnce(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	p := e.producer()
	info := batch.Info{Topic: "T", ProducerID: 7, ProducerEpoch: 1, BaseSequence: 10}
	first := p.send(info, bodies("a", "b")...)
	again := p.send(info, bodies("a", "b")...)
	if !again.Duplicate || again.BaseOffset != first.BaseOffset {
		t.Errorf("repeat %+v of %+v", again, first)
	}
}

func TestFetchRequestsOutOfRangeAreRefusedByName(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	e.producer().send(batch.Info{Topic: "T"}, bodies("a")...)
	f := e.fetcher()
	for _, tc := range []struct {
		name string
		req  rawcodec.FetchRequest
		want error
	}{
		{"unknown topic", rawcodec.FetchRequest{Topic: "U"}, rpcerr.ErrTopicNotFound},
		{"unknown queue", rawcodec.FetchRequest{Topic: "T", QueueID: 1}, rpcerr.ErrQueueNotFound},
		{"negative queue", rawcodec.FetchRequest{Topic: "T", QueueID: -1}, rpcerr.ErrQueueNotFound},
		{"other broker", rawcodec.FetchRequest{Topic: "T", Broker: "b2"}, rpcerr.ErrQueueNotFound},
		{"negative offset", rawcodec.FetchRequest{Topic: "T", Offset: -1}, rpcerr.ErrInvalidArgument},
		{"beyond the end", rawcodec.FetchRequest{Topic: "T", Offset: 2, WaitMillis: 1000}, rpcerr.ErrOffsetOutOfRange},
		{"negative wait", rawcodec.FetchRequest{Topic: "T", WaitMillis: -1}, rpcerr.ErrInvalidArgument},
		{"endless wait", rawcodec.FetchRequest{Topic: "T", WaitMillis: 1 << 30}, rpcerr.ErrInvalidArgument},
		{"negative bytes", rawcodec.FetchRequest{Topic: "T", MaxBytes: -1}, rpcerr.ErrInvalidArgument},
		{"bad group", rawcodec.FetchRequest{Topic: "T", Group: "no blanks"}, rpcerr.ErrInvalidArgument},
		{"lease nobody has", rawcodec.FetchRequest{Topic: "T", Group: "g", EpochBroker: 1, EpochCounter: 1}, rpcerr.ErrNotMember},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := f.fetch(tc.req)
			if err := dataErr(r.Error); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if tc.want == rpcerr.ErrOffsetOutOfRange && r.MaxOffset != 1 { //nolint:errorlint // a table's value
				t.Errorf("bounds %d to %d", r.MinOffset, r.MaxOffset)
			}
		})
	}
}

func TestLongPollWaitsForAMessageOrItsTime(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 2)
	p, f := e.producer(), e.fetcher()
	if r := f.fetch(rawcodec.FetchRequest{Topic: "T"}); r.Error != nil || len(r.Batches) > 0 || r.NextOffset != 0 {
		t.Fatalf("without wait %+v", r)
	}
	begun := time.Now()
	if r := f.fetch(rawcodec.FetchRequest{Topic: "T", WaitMillis: 100}); r.Error != nil || len(r.Batches) > 0 {
		t.Fatalf("in vain %+v", r)
	}
	if took := time.Since(begun); took < 100*time.Millisecond {
		t.Errorf("poll of 100 ms took %v", took)
	}
	// One queue's poll holds up no other's.
	parked := f.ask(rawcodec.FetchRequest{Topic: "T", WaitMillis: 20_000})
	other := f.ask(rawcodec.FetchRequest{Topic: "T", QueueID: 1, WaitMillis: 20_000})
	p.send(batch.Info{Topic: "T", Queue: 1}, bodies("a")...)
	if r := f.next(); r.ID != other || len(messages(t, r.Batches, "T")) != 1 {
		t.Fatalf("got %+v, want the answer to %d", r, other)
	}
	p.send(batch.Info{Topic: "T"}, bodies("b")...)
	if r := f.next(); r.ID != parked || !slices.Equal(texts(messages(t, r.Batches, "T")), []string{"b"}) {
		t.Fatalf("got %+v, want the answer to %d", r, parked)
	}
}

func TestPollThatFollowsIsAnsweredAsMessagesCome(t *testing.T) {
	for _, d := range []store.Durability{store.None, store.Fsync} {
		cfg := testConfig(t.TempDir())
		cfg.Durability = d
		e := start(t, cfg)
		e.topic("T", 1)
		p, f := e.producer(), e.fetcher()
		p.send(batch.Info{Topic: "T"}, bodies("a", "b")...)
		id := f.ask(rawcodec.FetchRequest{Topic: "T", WaitMillis: 20_000, Follow: true})
		next := func(following bool, offset int64, want ...string) {
			t.Helper()
			r := f.next()
			defer r.Free()
			if got := texts(messages(t, r.Batches, "T")); r.ID != id || r.Error != nil || r.Following != following || r.NextOffset != offset || !slices.Equal(got, want) {
				t.Fatalf("%v: got %+v with %q, want request %d to go on (%v) at %d with %q", d, r, got, id, following, offset, want)
			}
		}
		next(true, 2, "a", "b")
		for i := range 20 {
			body := fmt.Sprint(i)
			p.send(batch.Info{Topic: "T"}, bodies(body)...)
			next(true, int64(i+3), body)
		}
		if err := f.s.SendMsg(&rawcodec.FetchRequest{ID: id, Cancel: true}); err != nil {
			t.Fatal(err)
		}
		next(false, 22)
		// Without all there is, it does not go on; nor without a wait.
		big := strings.Repeat("x", 1000)
		p.send(batch.Info{Topic: "T"}, bodies(big)...)
		p.send(batch.Info{Topic: "T"}, bodies("last")...)
		id = f.ask(rawcodec.FetchRequest{Topic: "T", Offset: 22, MaxBytes: 500, WaitMillis: 20_000, Follow: true})
		next(false, 23, big)
		id = f.ask(rawcodec.FetchRequest{Topic: "T", Offset: 23, Follow: true})
		next(false, 24, "last")
		// In vain it ends when its time is up, counted from the last answer.
		id = f.ask(rawcodec.FetchRequest{Topic: "T", Offset: 23, WaitMillis: 50, Follow: true})
		next(true, 24, "last")
		next(false, 24)
		e.stop()
	}
}

func TestCancelledPollIsAnsweredWithoutBatches(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	f := e.fetcher()
	id := f.ask(rawcodec.FetchRequest{Topic: "T", WaitMillis: 20_000})
	if err := f.s.SendMsg(&rawcodec.FetchRequest{ID: id, Cancel: true}); err != nil {
		t.Fatal(err)
	}
	if r := f.next(); r.ID != id || len(r.Batches) > 0 || r.Error != nil {
		t.Errorf("got %+v", r)
	}
	// The id is free again; an unknown one is no matter.
	if err := f.s.SendMsg(&rawcodec.FetchRequest{ID: 999, Cancel: true}); err != nil {
		t.Fatal(err)
	}
	e.producer().send(batch.Info{Topic: "T"}, bodies("a")...)
	if r := f.fetch(rawcodec.FetchRequest{Topic: "T", WaitMillis: 20_000}); len(messages(t, r.Batches, "T")) != 1 {
		t.Errorf("got %+v", r)
	}
}

func TestTagsLeaveBatchesOut(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	p, f := e.producer(), e.fetcher()
	for _, tag := range []string{"x", "y", "x"} {
		p.send(batch.Info{Topic: "T"}, message.Message{Tag: tag, Body: []byte(tag)})
	}
	r := f.fetch(rawcodec.FetchRequest{Topic: "T", TagHashes: []uint64{batch.Hash("y")}})
	if got := texts(messages(t, r.Batches, "T")); !slices.Equal(got, []string{"y"}) {
		t.Errorf("got %q", got)
	}
	// Nothing that matches is behind, but the end is told.
	r = f.fetch(rawcodec.FetchRequest{Topic: "T", Offset: r.NextOffset, TagHashes: []uint64{batch.Hash("z")}, WaitMillis: 50})
	if len(r.Batches) > 0 || r.NextOffset != 3 {
		t.Errorf("got %+v", r)
	}
}

// An answer holds at most the bytes asked for, but at least one batch.
func TestF_SCL_06_AnswerIsBoundedInBytes(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	p, f := e.producer(), e.fetcher()
	for range 4 {
		p.send(batch.Info{Topic: "T"}, bodies(string(make([]byte, 30_000)))...)
	}
	if r := f.fetch(rawcodec.FetchRequest{Topic: "T", MaxBytes: 1}); len(messages(t, r.Batches, "T")) != 1 {
		t.Errorf("got %d bytes", len(r.Batches))
	}
	if r := f.fetch(rawcodec.FetchRequest{Topic: "T", MaxBytes: 70_000}); len(messages(t, r.Batches, "T")) != 2 {
		t.Errorf("got %d bytes", len(r.Batches))
	}
}
