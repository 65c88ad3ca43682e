package group

import (
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
