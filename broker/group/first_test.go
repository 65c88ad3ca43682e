package group

import (
	"fmt"
	"testing"
	"time"

	"github.com/tacitmq/tacit/session"
)

// The first view of a group waits while members keep coming, so that the first
// to come take nothing that the next ones are to have; and not for ever.
func TestFirstViewWaitsForThoseWhoComeTogether(t *testing.T) {
	const members = 12
	h := newHub(t, 24)
	start := h.now
	for s := SessionID(1); s <= members; s++ {
		h.hello(s, string('a'+rune(s)), "a")
		h.send(s, session.FetchView{Topic: "a", Seq: 1})
		h.wait(session.NoticeWindow - time.Millisecond)
	}
	h.wait(session.NoticeWindow)
	first, ok := last[session.ViewAnswer](h, 1)
	if !ok || first.Warming {
		t.Fatalf("after %v: %+v", h.now.Sub(start), first)
	}
	// Five windows hold those who came 19 ms apart.
	if got := len(first.View.Members); got != 6 {
		t.Errorf("the first view has %d members, want the 6 of the first %v", got, session.PatienceWindows*session.NoticeWindow)
	}
}

// One that comes alone waits for one window only.
func TestFirstViewOfOneMemberTakesOneWindow(t *testing.T) {
	h := newHub(t, 4)
	h.hello(1, "a", "a")
	h.send(1, session.FetchView{Topic: "a", Seq: 1})
	h.wait(session.NoticeWindow)
	if a, ok := last[session.ViewAnswer](h, 1); !ok || a.Warming || len(a.View.Members) != 1 {
		t.Errorf("got %+v, %v", a, ok)
	}
}

// Members of a large group that come in over many windows make few versions, and
// the window is short again after a pause. A small group is never kept waiting.
func TestWindowsGrowWhileALargeGroupComesIn(t *testing.T) {
	for _, tc := range []struct{ members, versions int }{{1000, 8}, {session.SmallGroup - 2, 160}} {
		h := newHub(t, 16)
		for i := range tc.members {
			h.hello(SessionID(i+1), fmt.Sprintf("c%04d", i), "a")
		}
		h.wait(time.Second)
		before := h.r.Stats().Versions
		next := SessionID(tc.members + 1)
		for end := h.now.Add(5 * time.Second); h.now.Before(end); next++ {
			h.hello(next, fmt.Sprintf("d%06d", next), "a")
			h.wait(10 * time.Millisecond)
			h.step(Closed{Session: next - 1, ByPeer: true})
		}
		if got := int(h.r.Stats().Versions - before); got == 0 || tc.members > session.SmallGroup && got > tc.versions || tc.members <= session.SmallGroup && got < tc.versions {
			t.Errorf("%d members: %d versions in five seconds, want about %d", tc.members, got, tc.versions)
		}
		h.wait(3 * time.Second)
		before = h.r.Stats().Versions
		h.hello(next, "e", "a")
		h.wait(Window(tc.members + 2))
		if got := h.r.Stats().Versions - before; got != 1 {
			t.Errorf("%d members: %d versions a window after the pause, want 1", tc.members, got)
		}
	}
}
