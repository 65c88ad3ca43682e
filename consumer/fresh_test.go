package consumer

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/message"
)

// places are the offsets that were handed out, by queue.
type places struct {
	mu  sync.Mutex
	got map[allocate.Queue]map[int64]bool
}

func newPlaces() *places { return &places{got: make(map[allocate.Queue]map[int64]bool)} }

func (s *places) note(m *message.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.got[m.Queue] == nil {
		s.got[m.Queue] = make(map[int64]bool)
	}
	s.got[m.Queue][m.Offset] = true
}

// older is how many messages a queue holds before the group begins.
const older = 5

// check fails unless exactly the offsets from older up to to came of a queue.
func (s *places) check(t *testing.T, q allocate.Queue, to int64) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for o := range to + 10 {
		if want := o >= older && o < to; s.got[q][o] != want {
			t.Errorf("queue %s/%d offset %d: came %v, want %v", q.Broker, q.ID, o, s.got[q][o], want)
		}
	}
}

// A member of a new group that dies in its first moments leaves nothing unread: where it began is stored before a message
// is handed out.
func TestMemberOfANewGroupThatDiesAtOnceLeavesNothingUnread(t *testing.T) {
	for _, after := range []time.Duration{50 * time.Millisecond, 300 * time.Millisecond, 900 * time.Millisecond} {
		for name, opts := range map[string][]Option{
			"last": {WithStart(Last())}, "by hand": {WithStart(Last()), WithAutoCommit(false)}, "time": {WithStart(At(time.Now().Add(24 * time.Hour)))},
		} {
			t.Run(fmt.Sprint(name, " ", after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFake(t)
					f.topic(2, "a", "b")
					for id := range int32(2) {
						f.fill(queue("a", id), 5)
						f.fill(queue("b", id), 5)
					}
					rest := newPlaces()
					first := make(chan struct{}, 1)
					one := runNew(t, f, "c1", func(*message.Message) error {
						select {
						case first <- struct{}{}:
						default:
						}
						time.Sleep(time.Hour) // it never gets on
						return nil
					}, opts)
					time.Sleep(after)
					for id := range int32(2) {
						f.fill(queue("a", id), 5)
						f.fill(queue("b", id), 5)
					}
					<-first
					time.Sleep(time.Millisecond) // the other broker has answered, too; else all there is would be read
					f.kill()
					time.Sleep(10 * time.Millisecond)
					f.fill(queue("b", 1), 5)
					two := runNew(t, f, "c2", func(m *message.Message) error { rest.note(m); return nil }, opts)
					time.Sleep(10 * time.Second)
					for id := range int32(2) {
						rest.check(t, queue("a", id), 10)
						rest.check(t, queue("b", id), 10+5*int64(id))
					}
					one.stop()
					two.stop()
					time.Sleep(time.Hour) // for its handler
				})
			})
		}
	}
}

func runNew(t *testing.T, f *fake, id string, h func(*message.Message) error, opts []Option) *testMember {
	t.Helper()
	return runPush(t, f, id, handle(h), append(opts, WithConcurrency(1), WithDrainLimit(time.Millisecond), WithCommitInterval(time.Hour))...)
}

// A member that comes to a new group a moment after the first takes the first one's word for where the group began, also on
// a broker to which neither had a session by then.
func TestSecondMemberOfANewGroupBeginsWhereTheFirstDid(t *testing.T) {
	for _, second := range []time.Duration{time.Millisecond, 20 * time.Millisecond, 300 * time.Millisecond} {
		t.Run(second.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.topic(2, "a", "b")
				for id := range int32(2) {
					f.fill(queue("a", id), 5)
					f.fill(queue("b", id), 5)
				}
				late := time.Now().Add(600 * time.Millisecond)
				f.setFailing(func(what string, q allocate.Queue) error {
					switch {
					case what == "session" && q.Broker == "b" && time.Now().Before(late):
						return errors.New("not yet")
					case what == "committed" || what == "commit":
						time.Sleep(100 * time.Microsecond) // on its way
					}
					return nil
				})
				got := newPlaces()
				h := handle(func(m *message.Message) error { got.note(m); return nil })
				one := runPush(t, f, "c1", h, WithStart(Last()))
				time.Sleep(second)
				f.fill(queue("b", 0), 3)
				f.fill(queue("b", 1), 3)
				two := runPush(t, f, "c2", h, WithStart(Last()))
				time.Sleep(10 * time.Second)
				for id := range int32(2) {
					got.check(t, queue("a", id), 5)
					got.check(t, queue("b", id), 8)
				}
				one.stop()
				two.stop()
			})
		})
	}
}

// Members of a new group that start at the same moment read nothing from before, whoever of them is told first. Leases come
// after a broker's first window, 20 ms after its first member.
func TestMembersOfANewGroupThatStartTogetherReadNothingOld(t *testing.T) {
	for n := range 20 {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t)
			f.topic(4, "a", "b", "c")
			for _, b := range []string{"a", "b", "c"} {
				for id := range int32(4) {
					f.fill(queue(b, id), 5)
				}
			}
			f.setFailing(func(what string, q allocate.Queue) error {
				switch what {
				case "session":
					time.Sleep(20 * time.Millisecond)
				case "committed", "commit": // on its way, to each broker for another time
					time.Sleep(time.Duration((n*7+len(what)*int(q.Broker[0]))%11) * time.Millisecond)
				}
				return nil
			})
			got := newPlaces()
			h := handle(func(m *message.Message) error { got.note(m); return nil })
			var all []*testMember
			for i := range 4 {
				all = append(all, runPush(t, f, fmt.Sprint("c", i), h, WithStart(Last())))
				time.Sleep(time.Duration(n%5) * 3 * time.Millisecond)
			}
			time.Sleep(2 * time.Second)
			for _, b := range []string{"a", "b", "c"} {
				for id := range int32(4) {
					f.fill(queue(b, id), 2)
				}
			}
			time.Sleep(5 * time.Second)
			for _, b := range []string{"a", "b", "c"} {
				for id := range int32(4) {
					got.check(t, queue(b, id), 7)
				}
			}
			for _, m := range all {
				m.stop()
			}
		})
	}
}

// In an immediate group an assignment does not say what is committed: a queue that comes back to the member that found the
// group new goes on where others left it.
func TestQueueOfAnImmediateGroupThatComesBackGoesOnWhereItWasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(2, "a")
		var mu sync.Mutex
		came := make(map[string]int)
		h := handle(func(m *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			came[string(m.Body)]++
			return nil
		})
		one := runPush(t, f, "c1", h, WithMode(Immediate), WithStart(Last()))
		time.Sleep(5 * time.Second)
		two := runPush(t, f, "c2", h, WithMode(Immediate), WithStart(Last()))
		time.Sleep(5 * time.Second)
		f.fill(queue("a", 0), 20)
		f.fill(queue("a", 1), 20)
		time.Sleep(20 * time.Second)
		two.stop()
		time.Sleep(20 * time.Second)
		one.stop()
		for body, n := range came {
			if n != 1 {
				t.Errorf("%s came %d times", body, n)
			}
		}
		if len(came) != 40 {
			t.Errorf("%d of 40 messages came", len(came))
		}
	})
}

// A topic that is deleted and made again holds nothing from before the group began: all of it is read, however much there is
// by then.
func TestTopicMadeAgainIsReadFromItsFirstMessage(t *testing.T) {
	for name, start := range map[string]Start{"last": Last(), "time": At(time.Now().Add(24 * time.Hour))} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.topic(2, "a")
				f.fill(queue("a", 0), older)
				f.fill(queue("a", 1), older)
				var mu sync.Mutex
				came := 0
				h := handle(func(*message.Message) error {
					mu.Lock()
					defer mu.Unlock()
					came++
					return nil
				})
				one := runPush(t, f, "c1", h, WithStart(start))
				time.Sleep(3 * time.Second)
				f.delete()
				time.Sleep(3 * time.Second)
				f.fill(queue("a", 0), 20)
				f.fill(queue("a", 1), 20)
				f.topic(2, "a")
				time.Sleep(10 * time.Second)
				one.stop()
				if came != 40 {
					t.Errorf("%d of 40 messages came", came)
				}
			})
		})
	}
}
