package group

import (
	"slices"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/session"
)

// hub is a broker with a fast disk whose sessions keep what they were sent.
type hub struct {
	t       testing.TB
	r       *Registry
	now     time.Time
	wake    time.Time
	got     map[SessionID][]session.ToMember
	closed  map[SessionID]bool
	answers map[uint64]error
	offsets map[lease.Key]int64
	req     uint64
}

func newHub(t testing.TB, queues int) *hub {
	h := &hub{
		t: t, now: time.Unix(1_000_000, 0), got: map[SessionID][]session.ToMember{}, closed: map[SessionID]bool{},
		answers: map[uint64]error{}, offsets: map[lease.Key]int64{},
	}
	h.r = New(Config{Broker: "b1", BrokerEpoch: 1}, nil, h.now)
	h.host(queues)
	return h
}

// host gives the broker so many queues of the topics a and b.
func (h *hub) host(queues int) {
	var local []allocate.Queue
	var topics []Topic
	for _, name := range []string{"a", "b"} {
		t := Topic{Name: name, Brokers: []string{"b1"}}
		for id := range queues {
			t.Queues = append(t.Queues, allocate.Queue{Topic: name, Broker: "b1", ID: int32(id)})
		}
		topics = append(topics, t)
		local = append(local, t.Queues...)
	}
	h.step(LocalQueues{local})
	h.step(Routes{Topics: topics})
}

func (h *hub) step(ev Event) {
	for _, eff := range h.r.Step(h.now, ev) {
		switch eff := eff.(type) {
		case WakeAt:
			h.wake = eff.At
		case Send:
			h.got[eff.Session] = append(h.got[eff.Session], eff.Frame)
		case CloseSession:
			h.closed[eff.Session] = true
		case Persist:
			for _, o := range eff.Offsets {
				h.offsets[o.Key] = max(h.offsets[o.Key], o.Offset)
			}
			for _, o := range eff.Resets {
				h.offsets[o.Key] = o.Offset
			}
			h.step(Persisted{eff.ID})
		case Answer:
			h.answers[eff.Req] = eff.Err
		}
	}
}

func (h *hub) send(s SessionID, f session.ToBroker) { h.step(Received{s, f}) }

func (h *hub) hello(s SessionID, id string, topics ...string) {
	f := session.Hello{Group: "g", ClientID: id, Incarnation: session.Incarnation{Counter: 1, Random: uint64(s)}, Offers: []session.Offer{{Strategy: "sticky"}}}
	for _, t := range topics {
		f.Subscriptions = append(f.Subscriptions, session.Subscription{Topic: t, Filter: "*"})
	}
	h.send(s, f)
	for _, t := range topics {
		h.send(s, session.Report{Topic: t, Full: true})
	}
}

// wait lets time pass, waking the broker as it asks.
func (h *hub) wait(d time.Duration) {
	end := h.now.Add(d)
	for !h.wake.IsZero() && !h.wake.After(end) {
		h.now, h.wake = h.wake, time.Time{}
		h.step(Wake{})
	}
	h.now = end
}

// last returns the last frame of a kind that a session got.
func last[F session.ToMember](h *hub, s SessionID) (f F, ok bool) {
	for _, x := range slices.Backward(h.got[s]) {
		if f, ok := x.(F); ok {
			return f, true
		}
	}
	return f, false
}

func (h *hub) members(s SessionID, topic string) []string {
	h.send(s, session.FetchView{Topic: topic})
	h.wait(time.Second)
	a, _ := last[session.ViewAnswer](h, s)
	if a.Warming || a.View.Topic != topic {
		h.t.Fatalf("no view of %s: %+v", topic, a)
	}
	var ids []string
	for _, m := range a.View.Members {
		ids = append(ids, m.ClientID)
	}
	return ids
}

func (h *hub) commit(k lease.Key, e session.Epoch, offset int64) error {
	h.req++
	h.step(Commit{h.req, k, e, offset})
	err, answered := h.answers[h.req]
	if !answered {
		h.t.Fatalf("commit %d is not answered", h.req)
	}
	return err
}

func qa(id int32) allocate.Queue { return allocate.Queue{Topic: "a", Broker: "b1", ID: id} }
