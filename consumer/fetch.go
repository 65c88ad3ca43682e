package consumer

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
)

const (
	// idleFetchBytes is asked for while a queue is empty: small, since such
	// fetches of all queues may be answered at the same moment.
	idleFetchBytes = 64 << 10
	// Failed fetches are repeated after retryBase, growing to retryMax.
	retryBase = 50 * time.Millisecond
	retryMax  = 2 * time.Second
)

// fetch prepares the next fetch of the queue if there is room for its answer.
// The caller starts what it returns once it has unlocked.
func (pq *processQueue) fetch() *client.FetchCall {
	m := pq.m
	if pq.phase >= draining || !pq.known || pq.fetching || pq.discard || pq.paused || m.ended {
		return nil
	}
	// Fetch again at half the limit, and not at all far past a stuck message.
	if 2*pq.unfinished > m.cfg.queueMessages || 2*pq.bytes > int64(m.cfg.queueBytes) || len(pq.slots) >= 2*m.cfg.queueMessages+1 {
		return nil
	}
	ask := min(max(pq.ask, minFetchBytes), m.cfg.fetchBytes)
	if pq.perMsg > 0 {
		ask = min(ask, max(minFetchBytes, pq.perMsg*(m.cfg.queueMessages-pq.unfinished)))
	}
	reserve := int64(ask)
	if pq.idle {
		ask, reserve = min(ask, idleFetchBytes), 0
	}
	if used := m.cached + m.reserved; used > 0 && used+reserve > int64(m.cfg.totalBytes) {
		if !pq.starved {
			pq.starved = true
			m.starved = append(m.starved, pq)
		}
		return nil
	}
	c := &pq.call
	if pq.following && pq.offset == pq.followAt && pq.asked == pq.filter && ask >= c.MaxBytes && ask < 2*c.MaxBytes {
		pq.following, pq.fetching = false, true
		pq.reserved = min(reserve, int64(c.MaxBytes))
		m.reserved += pq.reserved
		c.Offset = pq.offset
		m.cluster.Follow(c, true) // a failure is told
		return nil
	}
	if !pq.unfollow() {
		return nil
	}
	m.reserved += reserve
	pq.reserved, pq.fetching = reserve, true
	pq.asked = pq.filter
	c.Offset, c.MaxBytes, c.Wait, c.Tags, c.Follow = pq.offset, ask, m.cfg.fetchWait, pq.asked.hashes, true
	return c
}

// unfollow takes back what the broker goes on with by itself, if there is that. It
// reports false if that fails instead, which is still to be told.
func (pq *processQueue) unfollow() bool {
	if !pq.following {
		return true
	}
	pq.following = false
	pq.fetching = !pq.m.cluster.Follow(&pq.call, false)
	return !pq.fetching
}

// pump prepares the fetches of pq and of those that waited for room.
func (m *member) pump(pq *processQueue) []*client.FetchCall {
	var calls []*client.FetchCall
	if pq != nil {
		if c := pq.fetch(); c != nil {
			calls = append(calls, c)
		}
	}
	for len(m.starved) > 0 && m.cached+m.reserved < int64(m.cfg.totalBytes) {
		s := m.starved[0]
		m.starved = m.starved[1:]
		s.starved = false
		c := s.fetch()
		if s.starved { // put back at the end: no room after all
			break
		}
		if c != nil {
			calls = append(calls, c)
		}
	}
	return calls
}

func (m *member) start(calls []*client.FetchCall) {
	for _, c := range calls {
		m.cluster.Fetch(c)
	}
}

// fetched is called with the answer to a fetch.
func (pq *processQueue) fetched(r client.FetchResult, err error) {
	var got arrived
	if err == nil {
		got, err = pq.decode(&r)
	}
	m := pq.m
	m.mu.Lock()
	m.reserved -= pq.reserved
	pq.reserved, pq.fetching = 0, false
	pq.following, pq.followAt = r.Following, r.Next
	var calls []*client.FetchCall
	switch {
	case pq.phase >= draining:
		calls = m.pump(nil)
	case pq.discard:
		pq.discard = false
		calls = m.pump(pq)
	case err != nil:
		pq.fetchFailed(r, err)
		calls = m.pump(nil)
	default:
		pq.take(r, got)
		calls = m.pump(pq)
	}
	pq.unfollow()
	m.schedule()
	m.mu.Unlock()
	m.start(calls)
}

// take adds what arrived.
func (pq *processQueue) take(r client.FetchResult, got arrived) {
	m := pq.m
	if pq.stuck != "" {
		pq.stuck = ""
		m.log.Info("queue is read again", pq.fields()...)
	}
	pq.failures, pq.located, pq.sought = 0, true, false
	pq.min, pq.max = r.Min, r.Max
	pq.offset = max(pq.offset, got.next)
	pq.idle = len(r.Batches) == 0
	switch n := got.read; {
	case n == 0:
		pq.ask = idleFetchBytes
	case n < len(r.Batches): // no more fits once it is decompressed
		pq.ask = n
	case 2*n >= pq.call.MaxBytes:
		pq.ask = min(2*max(pq.ask, idleFetchBytes), m.cfg.fetchBytes)
	}
	if len(got.slots) == 0 {
		return
	}
	pq.perMsg = max(1, int(got.bytes)/len(got.slots))
	pq.slots = append(pq.slots, got.slots...)
	pq.unfinished += len(got.slots)
	pq.bytes += got.bytes
	m.cached += got.bytes
	m.waiting += len(got.slots)
	m.met.fetched(got.bytes)
	m.enqueue(pq)
}

// fetchFailed decides when to try again. A fetch is repeated for as long as the
// queue is ours, whatever the error: only the engine gives queues up.
func (pq *processQueue) fetchFailed(r client.FetchResult, err error) {
	m := pq.m
	switch {
	case errors.Is(err, rpcerr.ErrOffsetOutOfRange) && r.Max >= r.Min && (pq.offset < r.Min || pq.offset > r.Max):
		// A queue that ends before a place where the group was has been made anew,
		// and all of it is new. A user that asks for more than there is wants the end.
		to := r.Min
		if pq.sought && pq.offset > r.Max {
			to = r.Max
		}
		if pq.located || pq.offset > 0 {
			m.log.Warn("offset is out of range, going on at the nearest end or the oldest message",
				append(pq.fields(), zap.Int64("min", r.Min), zap.Int64("max", r.Max), zap.Int64("to", to))...)
		}
		pq.offset, pq.located, pq.sought = to, true, false
		pq.hasCommitted = false
	case errors.Is(err, rpcerr.ErrStaleEpoch):
		m.inbox.put(item{ev: rebalance.Refused{Queue: pq.queue, Epoch: pq.epoch}})
	case errors.Is(err, rpcerr.ErrTopicNotFound), errors.Is(err, rpcerr.ErrQueueNotFound):
		m.watch.Refresh()
	}
	pq.failures++
	m.met.fetchFailed()
	pq.warnStuck(err)
	delay := backoff(pq.failures, retryBase, retryMax)
	m.log.Debug("fetch failed, trying again", append(pq.fields(), zap.Error(err), zap.Duration("after", delay))...)
	m.after(delay, func() {
		m.mu.Lock()
		calls := m.pump(pq)
		m.mu.Unlock()
		m.start(calls)
	})
}

// backoff doubles from base to limit and takes up to a quarter off by chance.
func backoff(failures int, base, limit time.Duration) time.Duration {
	d := limit
	if failures < 16 {
		d = min(limit, base<<max(0, failures-1))
	}
	return d - time.Duration(rand.Int64N(int64(d)/4+1))
}

// arrived are the messages of an answer.
type arrived struct {
	slots []slot
	bytes int64 // in memory
	read  int   // bytes of the answer
	next  int64 // offset
}

// roomFor sets memory aside for an answer that takes n bytes decompressed, and
// tells whether there is as much, which must does not ask for.
func (pq *processQueue) roomFor(n int64, must bool) bool {
	m := pq.m
	m.mu.Lock()
	defer m.mu.Unlock()
	more := n - pq.reserved
	if !must && (pq.bytes+n > int64(m.cfg.queueBytes) || m.cached+m.reserved+more > int64(m.cfg.totalBytes)) {
		return false
	}
	if more > 0 {
		m.reserved += more
		pq.reserved = n
	}
	return true
}

// decode turns batches into messages: those from the offset asked for on whose
// tags are wanted. Of batches that grow much when they are decompressed it takes no
// more than there is room for, and at least one; the others are fetched again. So is
// one that cannot be decoded, with those after it: the error is that of the first.
func (pq *processQueue) decode(r *client.FetchResult) (arrived, error) {
	out := arrived{next: r.Next}
	room := int64(len(r.Batches)) // what was set aside is for that
	grown := int64(0)
	if len(r.Batches) == 0 {
		return out, nil
	}
	d, _ := pq.m.decoders.Get().(*batch.Decoder) // the pool holds nothing else
	defer pq.m.decoders.Put(d)
	at := pq.call.Offset
	tag := ""
	for b := r.Batches; len(b) > 0; {
		h, err := batch.Parse(b)
		if err == nil {
			err = batch.VerifyBody(b, &h)
		}
		if err == nil {
			held := max(h.Length, h.RawSize)
			if grown += int64(held); grown > room && !pq.roomFor(grown, out.read == 0) {
				out.next = h.Stamp.BaseOffset
				return out, nil
			}
			err = pq.decodeBatch(d, &h, int32(held/h.Count), &out, &tag)
		}
		if err != nil {
			out.next = at
			if out.read == 0 {
				return out, &badBatch{at, err}
			}
			return out, nil
		}
		b = b[h.Length:]
		at = h.NextOffset()
		out.read += h.Length
	}
	return out, nil
}

// decodeBatch adds the messages of one batch, or none. tag is the one before, so
// that equal ones share their memory.
func (pq *processQueue) decodeBatch(d *batch.Decoder, h *batch.Header, share int32, out *arrived, tag *string) error {
	it, err := d.Open(h, nil)
	if err != nil {
		return err
	}
	retry := pq.queue.Topic == pq.m.retryTopic
	msgs := make([]message.Message, 0, h.Count)
	slots := out.slots
	if slots == nil {
		slots = make([]slot, 0, h.Count)
	}
	var rec batch.Record
	for {
		more, err := it.Next(&rec)
		if err != nil {
			return err
		}
		if !more {
			break
		}
		if rec.Offset < pq.call.Offset || !pq.asked.wants(rec.Tag) {
			continue
		}
		if string(rec.Tag) != *tag {
			*tag = string(rec.Tag)
		}
		msgs = append(msgs, message.Message{})
		msg := &msgs[len(msgs)-1]
		pq.fill(msg, h, &rec, *tag)
		if retry {
			restore(msg)
		}
		slots = append(slots, slot{msg: msg, offset: rec.Offset, size: share})
	}
	out.slots = slots
	out.bytes += int64(share) * int64(len(msgs))
	return nil
}

// fill is batch.Record.Fill without making the same strings again and again.
func (pq *processQueue) fill(m *message.Message, h *batch.Header, r *batch.Record, tag string) {
	m.Topic, m.Tag, m.Body = pq.queue.Topic, tag, r.Value
	m.Queue, m.Offset, m.ReconsumeTimes = pq.queue, r.Offset, r.ReconsumeTimes
	m.StoreTime = time.UnixMilli(h.Stamp.StoreTime)
	if r.BornTime != 0 {
		m.BornTime = time.UnixMilli(r.BornTime)
	}
	if h.DueTime != 0 {
		m.DeliverAt = time.UnixMilli(h.DueTime)
	}
	for k := range r.Keys {
		m.Keys = append(m.Keys, string(k))
	}
	for k, v := range r.Properties {
		if m.Properties == nil {
			m.Properties = make(map[string]string, 2)
		}
		m.Properties[string(k)] = string(v)
	}
}

// restore makes a message of the retry topic look as it did where it was stored
// first. Where it lies now is its slot's business.
func restore(m *message.Message) {
	topic, queue := m.Properties[message.PropertyOriginTopic], m.Properties[message.PropertyOriginQueue]
	slash := strings.LastIndexByte(queue, '/')
	if topic == "" || slash < 1 {
		return
	}
	n, err := strconv.ParseInt(queue[slash+1:], 10, 32)
	offset, err2 := strconv.ParseInt(m.Properties[message.PropertyOriginOffset], 10, 64)
	if err != nil || err2 != nil || n < 0 || offset < 0 {
		return // somebody else's message
	}
	m.Topic, m.Offset = topic, offset
	m.Queue = allocate.Queue{Topic: topic, Broker: queue[:slash], ID: int32(n)}
}
