package rocketmq

import (
	"strconv"

	"github.com/tacitmq/tacit/allocate"
)

// frameSize is what a frame takes on the wire with a JSON header, as Java clients and
// brokers send it by default: the length word, the word of the header's length, the header
// and the body. Names and ids count as they are in the simulation; a real client id, an
// address with a process and a time, takes some 30 bytes. Opaque counts five digits, as
// after some hours.
func frameSize(code, flag, ext, body int) int {
	const header = len(`{"code":,"flag":,"language":"JAVA","opaque":,"serializeTypeCurrentRPC":"JSON","version":473}`)
	const opaque = 5
	if ext > 0 {
		ext += len(`"extFields":,`)
	}
	return 8 + header + digits(int64(code)) + digits(int64(flag)) + opaque + ext + body
}

func digits(n int64) int { return len(strconv.FormatInt(n, 10)) }

// extSize is that of a JSON object of strings, given as names and values in turn.
func extSize(pairs ...string) int {
	n := len(`{}`)
	for i, s := range pairs {
		n += len(`"":`) + len(s)
		if i > 1 && i%2 == 0 {
			n++ // a comma
		}
		if i%2 == 1 {
			n-- // no colon after a value
		}
	}
	return n
}

func queueExt(group string, q allocate.Queue, more ...string) int {
	return extSize(append(more, "bname", q.Broker, "consumerGroup", group, "queueId", strconv.Itoa(int(q.ID)), "topic", q.Topic)...)
}

// Size implements [Request].
func (r Heartbeat) Size() int {
	const (
		data = len(`{"clientID":"","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY",` +
			`"groupName":"","messageModel":"CLUSTERING","subscriptionDataSet":[],"unitMode":false}],"heartbeatFingerprint":0,` +
			`"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}],"withoutSub":false}`)
		subscription = len(`{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1796058290989,"tagsSet":[],"topic":""}`)
	)
	body := data + len(r.ClientID) + len(r.Group) + max(0, len(r.Topics)-1)
	for _, t := range r.Topics {
		body += subscription + len(t)
	}
	return frameSize(34, 0, extSize(), body)
}

// Size implements [Request].
func (r Unregister) Size() int {
	if r.Producer {
		return frameSize(35, 0, extSize("clientID", r.ClientID, "producerGroup", "CLIENT_INNER_PRODUCER"), 0)
	}
	return frameSize(35, 0, extSize("clientID", r.ClientID, "consumerGroup", r.Group), 0)
}

// Size implements [Request].
func (r ConsumerList) Size() int { return frameSize(38, 0, extSize("consumerGroup", r.Group), 0) }

// Size implements [Request].
func (r QueryOffset) Size() int { return frameSize(14, 0, queueExt(r.Group, r.Queue), 0) }

// Size implements [Request].
func (r UpdateOffset) Size() int {
	return frameSize(15, 2, queueExt(r.Group, r.Queue, "commitOffset", strconv.FormatInt(r.Offset, 10)), 0)
}

// Size implements [Request].
func (r RouteQuery) Size() int { return frameSize(105, 0, extSize("topic", r.Topic), 0) }

// Size implements [Answer].
func (Done) Size() int { return frameSize(0, 1, 0, 0) }

// Size implements [Answer].
func (Refused) Size() int { return frameSize(1, 1, 0, len(`"remark":"no consumer for this group",`)) }

// Size implements [Answer].
func (a IDs) Size() int {
	body := len(`{"consumerIdList":[]}`) + max(0, len(a.IDs)-1)
	for _, id := range a.IDs {
		body += len(`""`) + len(id)
	}
	return frameSize(0, 1, 0, body)
}

// Size implements [Answer].
func (a Offset) Size() int {
	return frameSize(0, 1, extSize("offset", strconv.FormatInt(a.Offset, 10)), 0)
}

// Size implements [Answer].
func (a Routed) Size() int {
	const (
		data   = len(`{"brokerDatas":[],"filterServerTable":{},"queueDatas":[]}`)
		broker = len(`{"brokerAddrs":{"0":"192.168.100.100:10911"},"brokerName":"","cluster":"DefaultCluster"},`)
		queue  = len(`{"brokerName":"","perm":6,"readQueueNums":16,"topicSysFlag":0,"writeQueueNums":16},`)
	)
	body := data
	for _, b := range a.Route.Brokers {
		body += broker + queue + 2*len(b)
	}
	return frameSize(0, 1, 0, body)
}

// Size is that of the frame in bytes, see [frameSize].
func (n Notice) Size() int { return frameSize(40, 2, extSize("consumerGroup", n.Group), 0) }
