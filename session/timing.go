package session

import "time"

// The times that both sides of the protocol count in.
const (
	// NoticeWindow collects changes of a view with up to SmallGroup members.
	NoticeWindow = 20 * time.Millisecond
	SmallGroup   = 64
	// NoticeWindowEach is the window for each member of a larger view.
	NoticeWindowEach = 300 * time.Microsecond
	// PatienceWindows is how many windows an asker, a fetch or an orphaned
	// queue waits before something is done about it.
	PatienceWindows = 5
)

// Window is the notice window of a view with n members.
func Window(n int) time.Duration {
	if n <= SmallGroup {
		return NoticeWindow
	}
	return time.Duration(n) * NoticeWindowEach
}
