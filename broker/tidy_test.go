package broker

import "testing"

func TestMemoryIsGivenBackOnceAfterEachBurstOfJoins(t *testing.T) {
	var y tidy
	at := func(sessions int, want ...bool) {
		t.Helper()
		for i, w := range want {
			if got := y.look(sessions); got != w {
				t.Fatalf("look %d at %d sessions: %v, want %v", i, sessions, got, w)
			}
		}
	}
	at(0, false, false, false, false)
	at(499, false, false, false, false, false)              // too few
	at(700, false, false, false, true, false, false, false) // once
	for n := 700; n < 5000; n += 100 {                      // not while they come
		at(n+100, false)
	}
	at(5000, false, false, true, false, false)
	at(5600, false, false, false, false, false) // less than a quarter more
	at(100, false, false, false, false, false)  // they leave: nothing to do,
	at(1000, false, false, false, true, false)  // but growth counts from there
}
