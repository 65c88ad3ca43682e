package rebalance

import (
	"fmt"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// checker follows one engine's effects and reports what must never be.
type checker struct {
	mode     session.Mode
	request  map[allocate.Queue]string // "asked" or "withdrawn"
	have     map[allocate.Queue]session.Epoch
	revoked  map[allocate.Queue]bool
	until    map[string]time.Time
	paused   map[string]bool // until the next welcome
	open     map[string]bool
	greeted  map[string]bool
	welcomed map[string]bool
	over     bool
	now      time.Time
}

func newChecker(mode session.Mode) *checker {
	return &checker{
		mode: mode, request: map[allocate.Queue]string{}, have: map[allocate.Queue]session.Epoch{}, revoked: map[allocate.Queue]bool{},
		until: map[string]time.Time{}, paused: map[string]bool{}, open: map[string]bool{}, greeted: map[string]bool{}, welcomed: map[string]bool{},
	}
}

func (c *checker) forgetRequests(broker string) {
	for q := range c.request {
		if q.Broker == broker {
			delete(c.request, q)
		}
	}
}

// step checks one Step. Events are noted before the effects they cause.
func (c *checker) step(now time.Time, ev Event, effects []Effect) error {
	c.now = now
	switch ev := ev.(type) {
	case Connected:
		c.forgetRequests(ev.Broker)
		c.open[ev.Broker], c.greeted[ev.Broker], c.welcomed[ev.Broker] = true, false, false
	case Disconnected:
		c.forgetRequests(ev.Broker)
		c.open[ev.Broker] = false
	case Received:
		switch f := ev.Frame.(type) {
		case session.Granted:
			for _, g := range f.Grants {
				if g.Queue.Broker == ev.Broker && !g.Epoch.IsZero() && c.welcomed[ev.Broker] {
					delete(c.request, g.Queue)
				}
			}
		case session.Withdrawn:
			for _, q := range f.Queues {
				if q.Broker == ev.Broker && c.welcomed[ev.Broker] && (c.request[q] == "withdrawn" || f.Reason != 0) {
					delete(c.request, q)
				}
			}
		case session.Welcome:
			if c.open[ev.Broker] && c.greeted[ev.Broker] {
				c.welcomed[ev.Broker] = true
			}
		default:
		}
	case Drained:
		// It may cross with the Lose of a session that has run out.
		lost := slices.ContainsFunc(effects, func(eff Effect) bool {
			l, ok := eff.(Lose)
			return ok && l.Queue == ev.Queue && l.Epoch == ev.Epoch
		})
		if !lost && c.revoked[ev.Queue] && c.have[ev.Queue] == ev.Epoch {
			delete(c.have, ev.Queue)
			delete(c.revoked, ev.Queue)
		}
	default:
	}
	if c.over && len(effects) > 0 {
		return fmt.Errorf("effects after the end: %v", effects)
	}
	for _, eff := range effects {
		if err := c.effect(eff); err != nil {
			return err
		}
	}
	for q, epoch := range c.have {
		if b := q.Broker; c.mode == session.Exclusive && !c.over && (!c.open[b] || !c.welcomed[b]) && !c.paused[b] {
			return fmt.Errorf("%v under %v may be dispatched while there is no session with its broker", q, epoch)
		}
		if until, ok := c.until[q.Broker]; c.mode == session.Exclusive && (!ok || !now.Before(until)) && !c.over {
			return fmt.Errorf("%v under %v may still be dispatched at %v, after %v", q, epoch, now, until)
		}
	}
	return nil
}

func (c *checker) effect(eff Effect) error {
	switch eff := eff.(type) {
	case Assign:
		if _, ok := c.have[eff.Queue]; ok {
			return fmt.Errorf("%v is assigned twice", eff.Queue)
		}
		if (c.mode == session.Exclusive) == eff.Epoch.IsZero() {
			return fmt.Errorf("%v is assigned with epoch %v in a group of mode %v", eff.Queue, eff.Epoch, c.mode)
		}
		c.have[eff.Queue] = eff.Epoch
	case Revoke:
		if epoch, ok := c.have[eff.Queue]; !ok || epoch != eff.Epoch || c.revoked[eff.Queue] {
			return fmt.Errorf("%v %v is revoked without being assigned", eff.Queue, eff.Epoch)
		}
		c.revoked[eff.Queue] = true
	case Lose:
		if epoch, ok := c.have[eff.Queue]; !ok || epoch != eff.Epoch {
			return fmt.Errorf("%v %v is lost without being assigned", eff.Queue, eff.Epoch)
		}
		delete(c.have, eff.Queue)
		delete(c.revoked, eff.Queue)
	case Extend:
		if eff.Until.After(c.now.Add(DefaultSessionTimeout)) {
			return fmt.Errorf("%s may be dispatched until %v, it is %v", eff.Broker, eff.Until, c.now)
		}
		if c.paused[eff.Broker] = !eff.Until.After(c.now); !c.paused[eff.Broker] {
			c.until[eff.Broker] = eff.Until
		}
	case Disconnect:
		c.forgetRequests(eff.Broker)
		c.open[eff.Broker] = false
	case Send:
		return c.frame(eff)
	case Left:
		c.over = true
		if len(c.have) > 0 {
			return fmt.Errorf("left with %d queues", len(c.have))
		}
	case Failed:
		c.over = true
		if len(c.have) > 0 {
			return fmt.Errorf("failed with %d queues", len(c.have))
		}
	case FindCoordinator, Ask, WatchTopics:
		return fmt.Errorf("%T of the other engine", eff)
	case WakeAt, Connect, Passed, RefreshRoutes:
	}
	return nil
}

func (c *checker) frame(eff Send) error {
	if !c.open[eff.Broker] {
		return fmt.Errorf("%T is sent to %s without a stream", eff.Frame, eff.Broker)
	}
	_, hello := eff.Frame.(session.Hello)
	if hello == c.greeted[eff.Broker] {
		return fmt.Errorf("%T is sent to %s, hello said: %v", eff.Frame, eff.Broker, c.greeted[eff.Broker])
	}
	c.greeted[eff.Broker] = true
	switch f := eff.Frame.(type) {
	case session.Acquire:
		for _, q := range f.Queues {
			if c.request[q] != "" {
				return fmt.Errorf("%v is asked for while a request is %s", q, c.request[q])
			}
			if _, ok := c.have[q]; ok {
				return fmt.Errorf("%v is asked for and owned", q)
			}
			c.request[q] = "asked"
		}
	case session.Withdraw:
		for _, q := range f.Queues {
			if c.request[q] != "asked" {
				return fmt.Errorf("%v is withdrawn while %q", q, c.request[q])
			}
			c.request[q] = "withdrawn"
		}
	case session.Goodbye:
		for q := range c.have {
			if q.Broker == eff.Broker {
				return fmt.Errorf("goodbye to %s, %v may still be dispatched", eff.Broker, q)
			}
		}
	case session.Released:
		for _, r := range f.Leases {
			if epoch, ok := c.have[r.Queue]; ok && epoch == r.Epoch {
				return fmt.Errorf("%v %v is released and may still be dispatched", r.Queue, epoch)
			}
		}
	default:
	}
	return nil
}
