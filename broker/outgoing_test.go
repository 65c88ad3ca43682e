package broker

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tacitmq/tacit/internal/wire"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/session"
)

func crowd(n int) []session.Member {
	out := make([]session.Member, n)
	for i := range out {
		out[i] = session.Member{ClientID: fmt.Sprintf("10.0.0.1@4711#%027d", i), Offers: []session.Offer{{Strategy: "sticky"}}}
	}
	return out
}

func noticeOf(counter uint64, joined []session.Member) session.GroupChanged {
	return session.GroupChanged{Topic: "T", Version: session.Version{Broker: "b1", Epoch: 1, Counter: counter}, Joined: joined}
}

// checkMessage decodes what would go to gRPC.
func checkMessage(t *testing.T, o outgoing) {
	t.Helper()
	m, err := o.message()
	if err != nil {
		t.Fatal(err)
	}
	var got tacitv1.SessionResponse
	if err := proto.Unmarshal(m.Data.Materialize(), &got); err != nil {
		t.Fatal(err)
	}
	if want := wire.Response(o.frame); !proto.Equal(&got, want) {
		t.Errorf("sent %v\nwant %v", &got, want)
	}
}

// Of 10 000 members that join at once each is told of all others. If each of
// those notices were encoded, the broker would do nothing else until sessions
// had timed out.
func TestWhatManyMembersAreToldIsEncodedOnce(t *testing.T) {
	var a alike
	members := crowd(1000)
	view := session.View{Topic: "T", Version: session.Version{Broker: "b1", Epoch: 1, Counter: 9}, Members: members}
	seq := uint64(0)
	for name, frame := range map[string]func() session.ToMember{
		"notice":  func() session.ToMember { return noticeOf(7, members) },
		"view":    func() session.ToMember { seq++; return session.ViewAnswer{Seq: seq, View: view} },
		"owners":  func() session.ToMember { return session.OwnersChanged{Topic: "T", Owners: 5} },
		"ready":   func() session.ToMember { return session.ViewReady{Topic: "T", Inputs: 5} },
		"refusal": func() session.ToMember { return session.Refused{Text: "no"} },
		"warming": func() session.ToMember {
			return session.ViewAnswer{Seq: 3, Warming: true, View: session.View{Topic: "T"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			checkMessage(t, a.outgoing(frame()))
			checkMessage(t, a.outgoing(frame()))
			const most = 10
			if n := testing.AllocsPerRun(20, func() {
				o := a.outgoing(frame())
				if _, err := o.message(); err != nil {
					t.Error(err)
				}
			}); n > most {
				t.Errorf("%v allocations for each receiver, at most %d are for a frame encoded before", n, most)
			}
		})
	}
}

func TestWhatDiffersIsEncodedForItself(t *testing.T) {
	var a alike
	members := crowd(3)
	version := session.Version{Broker: "b1", Epoch: 1, Counter: 9}
	changed := session.View{Topic: "T", Version: version, Members: crowd(3)}
	changed.Members[1].Expected = 77
	for _, f := range []session.ToMember{
		noticeOf(7, members), noticeOf(8, members), noticeOf(8, members[:2]), noticeOf(8, members[1:]),
		session.ViewAnswer{Seq: 1, View: session.View{Topic: "T", Version: version, Members: members}},
		session.ViewAnswer{Seq: 1, View: changed},
		session.ViewAnswer{Seq: 1, View: session.View{Topic: "T", Version: version, Members: members, Owners: 4}},
		session.OwnersChanged{Topic: "T", Owners: 5},
		session.OwnersChanged{Topic: "T", Owners: 6},
		session.ViewReady{Topic: "T"},
		session.Nudge{Topic: "T"},
		session.Nudge{Topic: "U"},
	} {
		checkMessage(t, a.outgoing(f))
	}
}
