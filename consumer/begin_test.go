package consumer

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/message"
)

// What a thousand new queues cost is a few questions to each broker, however the grants come in.
func TestNewQueuesOfATopicAreAskedAboutTogether(t *testing.T) {
	for name, opts := range map[string][]Option{
		"last": {WithStart(Last())}, "time": {WithStart(At(time.Unix(1, 0)))}, "immediate": {WithMode(Immediate), WithStart(Last())},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.topic(500, "a", "b")
				f.setFailing(func(what string, _ allocate.Queue) error {
					if what == "committed" {
						time.Sleep(10 * time.Millisecond) // on its way
					}
					return nil
				})
				var n atomic.Int64
				m := runPush(t, f, "c1", handle(func(*message.Message) error { n.Add(1); return nil }), opts...)
				time.Sleep(5 * time.Second)
				for id := range int32(500) {
					f.fill(queue("a", id), 1)
					f.fill(queue("b", id), 1)
				}
				time.Sleep(time.Second)
				f.mu.Lock()
				asked := fmt.Sprint(f.asked)
				if f.asked["a"] > 5 || f.asked["b"] > 5 {
					t.Errorf("questions by broker: %s", asked)
				}
				f.mu.Unlock()
				if n.Load() != 1000 {
					t.Errorf("%d of 1000 queues have a beginning, after %s questions", n.Load(), asked)
				}
				m.stop()
			})
		})
	}
}

// One broker's word that the group has committed is enough to begin at the first message; without it all brokers of the
// topic must have been asked.
func TestLatestWaitsForAllBrokersUnlessOneKnowsTheGroup(t *testing.T) {
	for _, known := range []bool{false, true} {
		t.Run(fmt.Sprint("known=", known), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.topic(1, "a", "b", "c")
				f.fill(queue("a", 0), 10)
				if known {
					f.store(queue("b", 0), 0)
				}
				f.setFailing(func(what string, q allocate.Queue) error {
					if what == "committed" && q.Broker == "c" {
						return errors.New("broker does not answer")
					}
					return nil
				})
				var n atomic.Int64
				m := runPush(t, f, "c1", handle(func(*message.Message) error { n.Add(1); return nil }), WithStart(Last()))
				time.Sleep(5 * time.Second)
				f.fill(queue("a", 0), 10)
				time.Sleep(time.Second)
				if want := map[bool]int64{false: 0, true: 20}[known]; n.Load() != want {
					t.Errorf("%d messages handed out, want %d", n.Load(), want)
				}
				m.stop()
			})
		})
	}
}

// A broker whose sessions open late is not read from its first message on because the group has by then stored where it
// began at the others: what lay there before the group began is never handed out, and what came since is, to the member
// that began and to one that came later.
func TestLateBrokerIsReadFromWhereTheNewGroupBegan(t *testing.T) {
	for name, start := range map[string]func() Start{"last": Last, "time": func() Start { return At(time.Now()) }} {
		for _, second := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " second=", second), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFake(t)
					f.topic(2, "a", "b")
					for id := range int32(2) {
						f.fill(queue("a", id), 10)
						f.fill(queue("b", id), 10)
					}
					time.Sleep(time.Second)
					late := time.Now().Add(6 * time.Second)
					f.setFailing(func(what string, q allocate.Queue) error {
						if what == "session" && q.Broker == "b" && time.Now().Before(late) {
							return errors.New("not yet")
						}
						return nil
					})
					var old, fresh atomic.Int64
					count := handle(func(m *message.Message) error {
						if m.Offset < 10 {
							old.Add(1)
						} else {
							fresh.Add(1)
						}
						return nil
					})
					one := runPush(t, f, "c1", count, WithStart(start()))
					time.Sleep(500 * time.Millisecond)
					f.fill(queue("b", 0), 3)
					f.fill(queue("b", 1), 3)
					time.Sleep(3 * time.Second)
					var two *testMember
					if second {
						two = runPush(t, f, "c2", count, WithStart(start()))
					}
					time.Sleep(30 * time.Second)
					if old.Load() != 0 || fresh.Load() != 6 {
						t.Errorf("%d messages from before the group began came, and %d of 6 since", old.Load(), fresh.Load())
					}
					one.stop()
					if two != nil {
						two.stop()
					}
				})
			})
		}
	}
}
