package broker

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rawcodec"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

func (e *env) put(name string, read, write int32, force bool) error {
	_, err := e.admin.PutTopic(e.ctx(), &tacitv1.PutTopicRequest{
		Config: &tacitv1.TopicConfig{Topic: name, ReadQueues: read, WriteQueues: write}, Force: force,
	})
	return err
}

// Queues are removed only when nothing in them is left unread, unless forced.
func TestF_RTE_07_QueuesGoOnlyWhenTheyAreDrained(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 8)
	for id := range int32(8) {
		e.fill(id, 3)
		if err := e.commit(mq("T", id), nil, 2); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.put("T", 4, 4, false); !errors.Is(err, rpcerr.ErrUnreadBacklog) {
		t.Fatalf("while they are written: %v", err)
	}
	if err := e.put("T", 8, 4, false); err != nil { // first step: stop writing
		t.Fatal(err)
	}
	p := e.producer()
	if _, err := p.try(encodeBatch(t, batch.Info{Topic: "T", Queue: 5}, bodies("late")...)); !errors.Is(err, rpcerr.ErrNotWritable) {
		t.Errorf("write to a queue that goes: %v", err)
	}
	if err := e.put("T", 4, 4, false); !errors.Is(err, rpcerr.ErrUnreadBacklog) {
		t.Fatalf("with backlog: %v", err)
	}
	for id := int32(4); id < 8; id++ {
		r := e.fetcher().fetch(rawcodec.FetchRequest{Topic: "T", QueueID: id, Offset: 2})
		if r.Error != nil || len(messages(t, r.Batches, "T")) != 1 {
			t.Errorf("draining queue %d: %v", id, dataErr(r.Error))
		}
		if err := e.commit(mq("T", id), nil, 3); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.put("T", 4, 4, false); err != nil { // second step
		t.Fatal(err)
	}
	resp, err := e.admin.ListTopics(e.ctx(), &tacitv1.ListTopicsRequest{Topic: "T"})
	if err != nil || len(resp.GetTopics()[0].GetQueues()) != 4 {
		t.Errorf("after it: %v %v", resp, err)
	}
	if at, has := e.committed(mq("T", 0)); at != 2 || !has {
		t.Errorf("progress of the rest: %d %v", at, has)
	}
	if err := e.put("T", 2, 2, true); err != nil {
		t.Errorf("forced: %v", err)
	}
}

// A topic taken off a broker waits for what is written, unread or not yet due.
func TestTopicGoesOnlyWhenItIsDrainedIfAskedSo(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	remove := func() error {
		_, err := e.admin.DeleteTopic(e.ctx(), &tacitv1.DeleteTopicRequest{Topic: "T", DrainedOnly: true})
		return err
	}
	due := time.Now().Add(time.Hour).UnixMilli()
	if _, err := e.producer().try(encodeBatch(t, batch.Info{Topic: "T", DueTime: due}, bodies("later")...)); err != nil {
		t.Fatal(err)
	}
	e.fill(0, 3)
	if err := remove(); !errors.Is(err, rpcerr.ErrUnreadBacklog) || !strings.Contains(err.Error(), "may still be written") {
		t.Errorf("while it is written: %v", err)
	}
	if err := e.put("T", 1, 0, false); err != nil {
		t.Fatal(err)
	}
	if err := remove(); !errors.Is(err, rpcerr.ErrUnreadBacklog) || !strings.Contains(err.Error(), "no group has read") {
		t.Errorf("unread: %v", err)
	}
	if err := e.commit(mq("T", 0), nil, 3); err != nil {
		t.Fatal(err)
	}
	if err := remove(); !errors.Is(err, rpcerr.ErrUnreadBacklog) || !strings.Contains(err.Error(), "due") {
		t.Errorf("with a message that is not due: %v", err)
	}
	if _, err := e.admin.DeleteTopic(e.ctx(), &tacitv1.DeleteTopicRequest{Topic: "T"}); err != nil {
		t.Errorf("by force: %v", err)
	}
}

// More writable than readable queues are refused: nobody could read what lands there.
func TestF_RTE_08_MoreWritableThanReadableIsRefused(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 4)
	for _, force := range []bool{false, true} {
		if err := e.put("T", 4, 8, force); !errors.Is(err, rpcerr.ErrInvalidArgument) {
			t.Errorf("force %v: %v", force, err)
		}
		if err := e.put("N", 4, 8, force); !errors.Is(err, rpcerr.ErrInvalidArgument) {
			t.Errorf("new, force %v: %v", force, err)
		}
	}
}

// Every queue of a subscribed topic is shown with its backlog, whether somebody
// owns it or not.
func TestF_RTE_06_BacklogOfUnownedQueuesIsShown(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	_, g := e.hold(mq("T", 0))
	if err := e.put("T", 6, 6, false); err != nil {
		t.Fatal(err)
	}
	for id := range int32(6) {
		e.fill(id, int(id)+1)
	}
	d, err := e.admin.DescribeGroup(e.ctx(), &tacitv1.DescribeGroupRequest{Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	if len(d.GetLeases()) != 6 || len(d.GetSessions()) != 1 || d.GetSessions()[0].GetClientId() != "c1" || d.GetSessions()[0].GetHost() == "" {
		t.Fatalf("described %v", d)
	}
	for i, l := range d.GetLeases() {
		if l.GetQueue().GetQueueId() != int32(i) || l.GetMaxOffset() != int64(i)+1 || (l.GetHolder() == "c1") != (i == 0) {
			t.Errorf("queue %d: %v", i, l)
		}
	}
	if l := d.GetLeases()[0]; l.GetEpoch().GetCounter() != g.GetEpoch().GetCounter() || l.GetHeldFor().AsDuration() <= 0 {
		t.Errorf("held queue %v", l)
	}
	groups, err := e.admin.ListGroups(e.ctx(), &tacitv1.ListGroupsRequest{})
	if err != nil || len(groups.GetGroups()) != 1 || groups.GetGroups()[0].GetMembers() != 1 {
		t.Errorf("listed %v %v", groups, err)
	}
}

// A topic deleted and made again starts afresh: no offset, lease or send-back of
// the old one is left.
func TestF_OFF_07_DeletedTopicLeavesNothingBehind(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 2)
	e.fill(0, 3)
	m, g := e.hold(mq("T", 0))
	if err := e.commit(mq("T", 0), g.GetEpoch(), 3); err != nil {
		t.Fatal(err)
	}
	if _, err := e.offset.SendBack(e.ctx(), &tacitv1.SendBackRequest{Group: "g", Queue: mq("T", 0), Epoch: g.GetEpoch()}); err != nil {
		t.Fatal(err)
	}
	f := e.fetcher()
	f.ask(rawcodec.FetchRequest{Topic: "T", QueueID: 1, WaitMillis: 20_000})
	if _, err := e.admin.DeleteTopic(e.ctx(), &tacitv1.DeleteTopicRequest{Topic: "T"}); err != nil {
		t.Fatal(err)
	}
	if r := f.next(); !errors.Is(dataErr(r.Error), rpcerr.ErrTopicNotFound) && !errors.Is(dataErr(r.Error), rpcerr.ErrQueueNotFound) {
		t.Errorf("parked poll: %v", dataErr(r.Error))
	}
	await(m, (*tacitv1.SessionResponse).GetLeaseLost)
	if _, err := e.admin.DeleteTopic(e.ctx(), &tacitv1.DeleteTopicRequest{Topic: "T"}); !errors.Is(err, rpcerr.ErrTopicNotFound) {
		t.Errorf("deleted again: %v", err)
	}
	e.topic("T", 2)
	if _, has := e.committed(mq("T", 0)); has {
		t.Error("an offset of the old topic is left")
	}
	e.fill(0, 1)
	if resp, err := e.offset.SendBack(e.ctx(), &tacitv1.SendBackRequest{Group: "g", Queue: mq("T", 0)}); err != nil || resp.GetDuplicate() {
		t.Errorf("send-back from the new topic: %v %v", resp, err)
	}
}

func TestTopicsOutOfRangeAreRefusedByName(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.MaxQueues, cfg.MaxTopics = 16, 2
	e := start(t, cfg)
	e.topic("T", 1)
	for name, tc := range map[string]struct {
		cfg  *tacitv1.TopicConfig
		want error
	}{
		"nothing":     {nil, rpcerr.ErrInvalidArgument},
		"blank name":  {&tacitv1.TopicConfig{Topic: "a b", ReadQueues: 1}, rpcerr.ErrInvalidArgument},
		"reserved":    {&tacitv1.TopicConfig{Topic: "%SYS%x", ReadQueues: 1}, rpcerr.ErrInvalidArgument},
		"no queues":   {&tacitv1.TopicConfig{Topic: "U"}, rpcerr.ErrInvalidArgument},
		"negative":    {&tacitv1.TopicConfig{Topic: "U", ReadQueues: 1, WriteQueues: -1}, rpcerr.ErrInvalidArgument},
		"many queues": {&tacitv1.TopicConfig{Topic: "U", ReadQueues: 17}, rpcerr.ErrInvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := e.admin.PutTopic(e.ctx(), &tacitv1.PutTopicRequest{Config: tc.cfg}); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
	if _, err := e.admin.PutTopic(e.ctx(), &tacitv1.PutTopicRequest{Config: &tacitv1.TopicConfig{Topic: "T", ReadQueues: 2, WriteQueues: 2}, CreateOnly: true}); !errors.Is(err, rpcerr.ErrTopicExists) {
		t.Errorf("created again: %v", err)
	}
	if _, err := e.srv.topics.ensure("%RETRY%g", 1); err != nil {
		t.Fatal(err)
	}
	if err := e.put("V", 1, 1, false); !errors.Is(err, rpcerr.ErrLimitReached) {
		t.Errorf("one too many: %v", err)
	}
}

func TestTopicIsMadeAtItsFirstMessageIfAllowed(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.AutoCreateTopics, cfg.DefaultQueues = true, 3
	e := start(t, cfg)
	p := e.producer()
	p.send(batch.Info{Topic: "new", Queue: 2}, bodies("a")...)
	resp, err := e.admin.ListTopics(e.ctx(), &tacitv1.ListTopicsRequest{})
	if err != nil || len(resp.GetTopics()) != 1 || resp.GetTopics()[0].GetConfig().GetReadQueues() != 3 {
		t.Errorf("got %v %v", resp, err)
	}
	if _, err := p.try(encodeBatch(t, batch.Info{Topic: "%x"}, bodies("a")...)); !errors.Is(err, rpcerr.ErrInvalidArgument) {
		t.Errorf("reserved name: %v", err)
	}
}

func TestMessagesAreFoundByKeyAndTime(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 2)
	p := e.producer()
	for i := range 4 {
		p.send(batch.Info{Topic: "T", Queue: int32(i % 2)}, message.Message{Keys: []string{fmt.Sprintf("k%d", i%2)}, Body: []byte{byte('0' + i)}})
	}
	resp, err := e.data.QueryMessages(e.ctx(), &tacitv1.QueryMessagesRequest{Topic: "T", Key: "k1"})
	if err != nil || len(resp.GetBatches()) != 2 {
		t.Fatal(resp, err)
	}
	for _, b := range resp.GetBatches() {
		if m := messages(t, b, "T")[0]; m.Key() != "k1" {
			t.Errorf("found %+v", m)
		}
	}
	if resp, err = e.data.QueryMessages(e.ctx(), &tacitv1.QueryMessagesRequest{Topic: "T", Key: "k1", Max: 1}); err != nil || len(resp.GetBatches()) != 1 {
		t.Errorf("one at most: %v %v", resp, err)
	}
	for name, req := range map[string]*tacitv1.QueryMessagesRequest{
		"no key": {Topic: "T"}, "max": {Topic: "T", Key: "k", Max: 65}, "topic": {Topic: "", Key: "k"},
	} {
		if _, err := e.data.QueryMessages(e.ctx(), req); !errors.Is(err, rpcerr.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	first := e.poll("T", 0, 1)[0].StoreTime
	for at, want := range map[time.Time]int64{first.Add(-time.Hour): 0, first.Add(time.Hour): 2} {
		found, err := e.data.FindOffset(e.ctx(), &tacitv1.FindOffsetRequest{Queue: mq("T", 0), Time: timestampOf(at)})
		if err != nil || found.GetOffset() != want || found.GetMaxOffset() != 2 {
			t.Errorf("at %v: %v %v, want %d", at, found, err, want)
		}
	}
}

func TestBrokerDescribesItself(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 3)
	d, err := e.admin.DescribeBroker(e.ctx(), &tacitv1.DescribeBrokerRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if d.GetEntry().GetBroker() != "b1" || d.GetEntry().GetBrokerEpoch() == 0 || d.GetTopics() != 1 || d.GetQueues() != 3 ||
		!d.GetWritable() || d.GetDurability() != "fsync" || d.GetFreeBytes() == 0 || d.GetStoredBytes() == 0 {
		t.Errorf("got %v", d)
	}
}

func TestGroupIsDeletedOnlyWithoutMembers(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	e.fill(0, 1)
	m, g := e.hold(mq("T", 0))
	if err := e.commit(mq("T", 0), g.GetEpoch(), 1); err != nil {
		t.Fatal(err)
	}
	del := func() error {
		_, err := e.admin.DeleteGroup(e.ctx(), &tacitv1.DeleteGroupRequest{Group: "g"})
		return err
	}
	if err := del(); !errors.Is(err, rpcerr.ErrGroupActive) {
		t.Errorf("with a member: %v", err)
	}
	m.send(&tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Goodbye{Goodbye: &tacitv1.Goodbye{}}})
	for {
		if _, err := m.s.Recv(); err != nil {
			break
		}
	}
	if err := del(); err != nil {
		t.Errorf("without: %v", err)
	}
	if err := del(); !errors.Is(err, rpcerr.ErrGroupNotFound) {
		t.Errorf("again: %v", err)
	}
	if _, err := e.admin.DescribeGroup(e.ctx(), &tacitv1.DescribeGroupRequest{Group: "g"}); !errors.Is(err, rpcerr.ErrGroupNotFound) {
		t.Errorf("described: %v", err)
	}
}

// What somebody else wrote into the topics of a group would be handed to it as its
// own; one made by hand might have other queues than brokers make.
func TestTopicsOfGroupsAreMadeAndWrittenByBrokersAlone(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.AutoCreateTopics = true
	e := start(t, cfg)
	defer e.stop()
	for _, name := range []string{"%RETRY%g", "%DLQ%g"} {
		for _, there := range []bool{false, true} {
			if there {
				if _, err := e.srv.topics.ensure(name, 1); err != nil {
					t.Fatal(err)
				}
			} else if err := e.put(name, 1, 1, false); !errors.Is(err, rpcerr.ErrInvalidArgument) || !contains(err, "brokers make it") {
				t.Errorf("created %s: %v", name, err)
			}
			b := encodeBatch(t, batch.Info{Topic: name}, message.Message{Body: []byte("x")})
			if _, err := e.producer().try(b); !errors.Is(err, rpcerr.ErrInvalidArgument) || !contains(err, "brokers make it") {
				t.Errorf("produced to %s, there %v: %v", name, there, err)
			}
		}
		if err := e.put(name, 2, 2, false); err != nil { // an operator may give it more queues
			t.Errorf("altered %s: %v", name, err)
		}
	}
}
