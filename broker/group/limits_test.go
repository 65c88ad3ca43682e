package group

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// A frame beyond the limits ends its own session with a reason, and no other.
func TestF_RBS_05_AbsurdFramesEndTheirSessionAlone(t *testing.T) {
	long := strings.Repeat("x", 300)
	many := make([]allocate.Queue, 1<<16+1)
	for i := range many {
		many[i] = qa(int32(i))
	}
	owned := make([]session.Owned, len(many))
	for i := range owned {
		owned[i].Queue = many[i]
	}
	half := func(from int) session.Report {
		return session.Report{Topic: "a", Owned: owned[from : from+len(owned)/2+1]}
	}
	subs := make([]session.Subscription, 1025)
	for i := range subs {
		subs[i] = session.Subscription{Topic: fmt.Sprint(i), Filter: "*"}
	}
	for _, c := range []struct {
		name   string
		frames []session.ToBroker
		text   string
	}{
		{"queues", []session.ToBroker{session.Acquire{Queues: many}}, "queues 65537: must be at most 65536"},
		{"withdrawn", []session.ToBroker{session.Withdraw{Queues: many}}, "queues 65537: must be at most 65536"},
		{"released", []session.ToBroker{session.Released{Leases: make([]session.Release, len(many))}}, "leases 65537: must be at most 65536"},
		{"owned", []session.ToBroker{session.Report{Topic: "a", Owned: owned}}, "owned queues 65537: must be at most 65536"},
		{"owned in pieces", []session.ToBroker{half(0), half(len(owned) / 2)}, "owned queues 65537: must be at most 65536"},
		{"not owned", []session.ToBroker{session.Report{Topic: "a", NotOwned: many}}, "queues 65537: must be at most 65536"},
		{"topic", []session.ToBroker{session.FetchView{Topic: long}}, "must be 1 to 255 bytes, is 300"},
		{"no topic", []session.ToBroker{session.Report{}}, "topic \"\": must be 1 to 255 bytes, is 0"},
		{"queue", []session.ToBroker{session.Acquire{Queues: []allocate.Queue{{Topic: "a", Broker: long}}}}, "broker \"xxx"},
		{"queue id", []session.ToBroker{session.Acquire{Queues: []allocate.Queue{{Topic: "a", Broker: "b1", ID: -1 << 31}}}}, "queue id -2147483648: must be at least 0"},
		{"view broker", []session.ToBroker{session.Acquire{ViewBroker: long}}, "view broker"},
		{"subscriptions", []session.ToBroker{session.Subscribe{Subscriptions: subs}}, "subscriptions 1025: must be at most 1024"},
		{"filter", []session.ToBroker{session.Subscribe{Subscriptions: []session.Subscription{{Topic: "a", Filter: strings.Repeat("x", 5000)}}}}, "filter bytes 5000: must be at most 4096"},
		{"two filters", []session.ToBroker{session.Subscribe{Subscriptions: []session.Subscription{{Topic: "a", Filter: "x"}, {Topic: "a", Filter: "y"}}}}, `topic "a": must be subscribed with one filter`},
		{"silence", []session.ToBroker{session.Reach{Silent: make([]session.Silence, 2000)}}, "silent brokers 2000: must be at most 1024"},
		{"silent nobody", []session.ToBroker{session.Reach{Silent: make([]session.Silence, 1)}}, "broker \"\""},
		{"members", []session.ToBroker{session.MemberList{Topic: "a", IDs: make([]string, 1<<16+1)}}, "members 65537: must be at most 65536"},
		{"nothing", []session.ToBroker{nil}, "frame nil: must not come on an open session"},
	} {
		h := newHub(t, 2)
		h.hello(1, "c1", "a")
		h.hello(2, "c2", "a")
		for _, f := range c.frames {
			h.send(2, f)
		}
		f, ok := last[session.Refused](h, 2)
		if !ok || f.Reason != session.ReasonBadRequest || !strings.Contains(f.Text, c.text) || !h.closed[2] {
			t.Errorf("%s: refused %v with %q, closed %v", c.name, f.Reason, f.Text, h.closed[2])
		}
		h.send(1, session.Heartbeat{Seq: 7})
		if a, ok := last[session.HeartbeatAck](h, 1); !ok || a.Seq != 7 {
			t.Errorf("%s: the other member is not served", c.name)
		}
	}
}

// Hellos beyond the limits are refused with field, value and limit.
func TestAbsurdHellosAreRefused(t *testing.T) {
	long := strings.Repeat("x", 300)
	offer := []session.Offer{{Strategy: "sticky"}}
	for text, hello := range map[string]session.Hello{
		"group \"\"":                          {ClientID: "c", Offers: offer},
		"client id \"xxx":                     {Group: "g", ClientID: long, Offers: offer},
		"instance \"xxx":                      {Group: "g", ClientID: "c", Instance: long, Offers: offer},
		"offers 0: must be at least 1":        {Group: "g", ClientID: "c"},
		"offers 17: must be at most 16":       {Group: "g", ClientID: "c", Offers: make([]session.Offer, 17)},
		"strategy data bytes 70000":           {Group: "g", ClientID: "c", Offers: []session.Offer{{Strategy: "s", Data: make([]byte, 70000)}}},
		`strategy "s": must be offered once`:  {Group: "g", ClientID: "c", Offers: []session.Offer{{Strategy: "s"}, {Strategy: "s"}}},
		"strategy \"\"":                       {Group: "g", ClientID: "c", Offers: []session.Offer{{}}},
		"mode 9":                              {Group: "g", ClientID: "c", Offers: offer, Mode: 9},
		"held queues 65537":                   {Group: "g", ClientID: "c", Offers: offer, Held: make([]session.Owned, 65537)},
		"topic \"\"":                          {Group: "g", ClientID: "c", Offers: offer, Held: make([]session.Owned, 1)},
		"views 1025: must be at most 1024":    {Group: "g", ClientID: "c", Offers: offer, Views: make([]session.ViewRef, 1025)},
		`view of topic "a": must be named o`:  {Group: "g", ClientID: "c", Offers: offer, Views: []session.ViewRef{{Topic: "a"}, {Topic: "a"}}},
		"silent brokers 1025: must be at mos": {Group: "g", ClientID: "c", Offers: offer, Silent: make([]session.Silence, 1025)},
	} {
		h := newHub(t, 1)
		h.send(1, hello)
		if f, ok := last[session.Refused](h, 1); !ok || f.Reason != session.ReasonBadRequest || !strings.Contains(f.Text, text) {
			t.Errorf("%s: %+v", text, f)
		}
		if len(h.r.ListGroups()) != 0 {
			t.Errorf("%s: leaves a group behind", text)
		}
	}
}
