package rebalance

import (
	"fmt"
	"strings"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

func (s *story) effect(eff Effect) string {
	in := func(t time.Time) string {
		if t.Sub(s.now) > time.Hour {
			return "never"
		}
		return "in " + t.Sub(s.now).String()
	}
	switch eff := eff.(type) {
	case WakeAt:
		return "wake " + in(eff.At)
	case Connect:
		return "connect " + eff.Broker
	case Disconnect:
		return "disconnect " + eff.Broker
	case Send:
		return eff.Broker + " <- " + frame(eff.Frame)
	case Extend:
		return "extend " + eff.Broker + " " + in(eff.Until)
	case Assign:
		return "assign " + name(eff.Queue, eff.Epoch) + offset(eff.Offset, eff.HasOffset)
	case Revoke:
		return "revoke " + name(eff.Queue, eff.Epoch)
	case Lose:
		return "lose " + name(eff.Queue, eff.Epoch) + ": " + eff.Cause
	case Passed:
		p := eff.Pass
		out := fmt.Sprintf("pass %s by %s at %s: %s, %d members, %d queues, mine %s", p.Topic, p.Trigger, p.View, p.Strategy, p.Members, p.Queues, names(p.Mine))
		if len(p.Gained) > 0 {
			out += ", gained " + names(p.Gained)
		}
		if len(p.Given) > 0 {
			out += ", given " + names(p.Given)
		}
		if p.Err != nil {
			out += ", error: " + p.Err.Error()
		}
		return out
	case Left:
		return "left"
	case Failed:
		return fmt.Sprintf("failed %s by %s: %s", eff.Reason, eff.Broker, eff.Text)
	case FindCoordinator, Ask, WatchTopics:
		return fmt.Sprintf("%T of the other engine", eff)
	case RefreshRoutes:
		return "refresh routes"
	}
	return fmt.Sprintf("%T", eff)
}

func frame(f session.ToBroker) string {
	var b strings.Builder
	list := func(key string, items []string) {
		if len(items) > 0 {
			fmt.Fprintf(&b, " %s=%s", key, strings.Join(items, ","))
		}
	}
	ownedList := func(key string, os []session.Owned) {
		var items []string
		for _, o := range os {
			items = append(items, name(o.Queue, o.Epoch))
		}
		list(key, items)
	}
	silent := func(ss []session.Silence) {
		var items []string
		for _, x := range ss {
			if x.Unreachable {
				items = append(items, x.Broker+" unreachable")
			} else {
				items = append(items, x.Broker)
			}
		}
		list("silent", items)
	}
	subs := func(ss []session.Subscription) {
		var items []string
		for _, x := range ss {
			items = append(items, x.Topic+":"+x.Filter)
		}
		list("subs", items)
	}
	switch f := f.(type) {
	case session.Hello:
		fmt.Fprintf(&b, "hello incarnation=%d", f.Incarnation.Counter)
		subs(f.Subscriptions)
		ownedList("held", f.Held)
		var views []string
		for _, v := range f.Views {
			views = append(views, v.Topic+"@"+v.Version.String())
		}
		list("views", views)
		silent(f.Silent)
		if f.Leaving {
			b.WriteString(" leaving")
		}
	case session.Heartbeat:
		fmt.Fprintf(&b, "heartbeat %d", f.Seq)
	case session.Subscribe:
		b.WriteString("subscribe")
		subs(f.Subscriptions)
	case session.Reach:
		b.WriteString("reach")
		silent(f.Silent)
	case session.Report:
		b.WriteString("report " + f.Topic)
		if f.Full {
			b.WriteString(" full")
		}
		ownedList("owned", f.Owned)
		if len(f.NotOwned) > 0 {
			b.WriteString(" notowned=" + names(f.NotOwned))
		}
		if f.Expected == 0 {
			b.WriteString(" expects-nothing-yet")
		}
		if f.Draining {
			b.WriteString(" draining")
		}
	case session.FetchView:
		fmt.Fprintf(&b, "fetch %s seq=%d", f.Topic, f.Seq)
	case session.Acquire:
		fmt.Fprintf(&b, "acquire %s view=%s", names(f.Queues), f.ViewBroker)
	case session.Withdraw:
		b.WriteString("withdraw " + names(f.Queues))
	case session.Released:
		b.WriteString("released")
		for _, r := range f.Leases {
			b.WriteString(" " + name(r.Queue, r.Epoch) + offset(r.Offset, r.HasOffset))
		}
	case session.MemberList:
		fmt.Fprintf(&b, "members %s %v", f.Topic, f.IDs)
	case session.Leaving:
		b.WriteString("leaving")
	case session.Goodbye:
		b.WriteString("goodbye")
	}
	return b.String()
}

func name(q allocate.Queue, e session.Epoch) string {
	n := fmt.Sprintf("%s/%s/%d", q.Topic, q.Broker, q.ID)
	if !e.IsZero() {
		n += "@" + e.String()
	}
	return n
}

func names(qs []allocate.Queue) string {
	if len(qs) == 0 {
		return "none"
	}
	var out []string
	for _, q := range qs {
		out = append(out, name(q, session.Epoch{}))
	}
	return strings.Join(out, ",")
}

func offset(n int64, has bool) string {
	if !has {
		return ""
	}
	return fmt.Sprintf(" offset=%d", n)
}

// state lists what the snapshot says of the queues.
func (s *story) state() string {
	var b strings.Builder
	snap := s.e.Snapshot()
	for _, p := range snap.Brokers {
		fmt.Fprintf(&b, "%s %s silent=%d\n", p.Name, p.Phase, p.Silent)
	}
	for _, t := range snap.Topics {
		fmt.Fprintf(&b, "%s view=%s settled=%v\n", t.Name, t.ViewBroker, t.Settled)
		for _, q := range t.Queues {
			fmt.Fprintf(&b, "  %s %s wanted=%v\n", name(q.Queue, q.Epoch), q.State, q.Wanted)
		}
	}
	return b.String()
}
