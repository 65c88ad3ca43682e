package group

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/session"
)

// TestStories runs the stories in testdata: an event in, its effects out. Queues
// are written broker/id of the only topic "a", or topic/broker/id; epochs
// broker.counter; digests #1, #2, ... in the order in which they appear. What is
// to be stored is on disk at once, unless the broker has disk=slow. "wait" wakes
// the broker whenever it asks for it.
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata/stories", func(t *testing.T, path string) {
		s := &story{start: time.Unix(1_000_000, 0)}
		s.now = s.start
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t = t
			return s.run(d)
		})
	})
}

type story struct {
	t     testing.TB
	start time.Time
	now   time.Time
	wake  time.Time
	r     *Registry
	cfg   Config
	slow  bool // records reach the disk only when told
	disk  map[lease.Key]lease.Record
	queue []Persist
	names map[session.Digest]string
	out   strings.Builder
	req   uint64
}

func (s *story) run(d *datadriven.TestData) string {
	s.out.Reset()
	arg := func(key, def string) string {
		for _, a := range d.CmdArgs {
			if a.Key == key {
				return strings.Join(a.Vals, ",")
			}
		}
		return def
	}
	num := func(key string) uint64 {
		n, err := strconv.ParseUint(arg(key, "0"), 10, 64)
		if err != nil {
			s.t.Fatalf("%s: %v", d.Pos, err)
		}
		return n
	}
	dur := func(v string) time.Duration {
		x, err := time.ParseDuration(v)
		if err != nil {
			s.t.Fatalf("%s: %v", d.Pos, err)
		}
		return x
	}
	switch d.Cmd {
	case "broker": // starts, or starts anew with what is on disk
		if s.disk == nil {
			s.disk = map[lease.Key]lease.Record{}
			s.names = map[session.Digest]string{}
		}
		s.slow = arg("disk", "") == "slow"
		s.cfg = Config{Broker: "b1", BrokerEpoch: num("epoch"), Broken: s.broken(arg("broken", ""))}
		var records []lease.Record
		for _, r := range s.disk {
			records = append(records, r)
		}
		s.r, s.wake, s.queue = New(s.cfg, records, s.now), time.Time{}, nil
		return s.output()
	case "routes": // b1=2 b2=1
		t := Topic{Name: "a"}
		var local []allocate.Queue
		for _, a := range d.CmdArgs {
			t.Brokers = append(t.Brokers, a.Key)
			n, _ := strconv.Atoi(a.Vals[0])
			for id := range n {
				q := allocate.Queue{Topic: "a", Broker: a.Key, ID: int32(id)}
				t.Queues = append(t.Queues, q)
				if a.Key == "b1" {
					local = append(local, q)
				}
			}
		}
		s.step(LocalQueues{local})
		s.step(Routes{Topics: []Topic{t}})
		return s.output()
	case "wait":
		end := s.now.Add(dur(d.CmdArgs[0].Key))
		for !s.wake.IsZero() && !s.wake.After(end) {
			if s.now.Before(s.wake) {
				s.now = s.wake
			}
			s.wake = time.Time{}
			s.step(Wake{})
		}
		s.now = end
		return s.output()
	case "pause": // the broker stands still
		s.now = s.now.Add(dur(d.CmdArgs[0].Key))
		return s.output()
	case "wake":
		s.wake = time.Time{}
		s.step(Wake{})
		return s.output()
	case "disk": // everything that waits is on disk now
		for _, p := range s.queue {
			s.store(p)
			s.step(Persisted{p.ID})
		}
		s.queue = nil
		return s.output()
	case "commit":
		s.req++
		s.step(Commit{Req: s.req, Key: lease.Key{Group: "g", Queue: s.q(arg("queue", ""))}, Epoch: s.epoch(arg("epoch", "0.0")), Offset: int64(num("offset"))})
		return s.output()
	case "pull":
		if err := s.r.Check("g", s.q(arg("queue", "")), s.epoch(arg("epoch", "0.0"))); err != nil {
			return err.Error() + "\n"
		}
		return "allowed\n"
	case "reset":
		s.req++
		s.step(Reset{Req: s.req, Key: lease.Key{Group: "g", Queue: s.q(arg("queue", ""))}, Offset: int64(num("offset")), Force: d.HasArg("force")})
		return s.output()
	case "describe":
		return s.describe()
	}
	id, err := strconv.ParseUint(strings.TrimPrefix(d.Cmd, "s"), 10, 64)
	if err != nil || len(d.CmdArgs) == 0 {
		s.t.Fatalf("%s: unknown command", d.Pos)
	}
	sid := SessionID(id)
	var f session.ToBroker
	switch verb := d.CmdArgs[0].Key; verb {
	case "closed":
		s.step(Closed{sid, !d.HasArg("by-broker")})
		return s.output()
	case "hello":
		inc := strings.Split(arg("incarnation", "1.1"), ".")
		c, _ := strconv.ParseUint(inc[0], 10, 64)
		x, _ := strconv.ParseUint(inc[1], 10, 64)
		h := session.Hello{
			Group: "g", ClientID: arg("id", ""), Instance: arg("instance", ""), Incarnation: session.Incarnation{Counter: c, Random: x},
			SessionTimeout: dur(arg("timeout", "0s")), Held: s.leases(arg("held", "")), Leaving: d.HasArg("leaving"),
			Silent: s.silent(arg("silent", "")),
		}
		for i, m := range []string{"exclusive", "immediate", "broadcasting"} {
			if arg("mode", "exclusive") == m {
				h.Mode = session.Mode(i)
			}
		}
		for _, o := range split(arg("offers", "sticky")) {
			h.Offers = append(h.Offers, session.Offer{Strategy: o})
		}
		h.Subscriptions = s.subs(arg("subs", "a"))
		if ids := split(arg("saw", "")); ids != nil { // the members of the view it used last, of another broker
			h.Views = []session.ViewRef{{Topic: "a", Version: session.Version{Broker: "b2", Epoch: 1, Counter: 1}, Members: session.MembersDigest("a", ids)}}
		}
		f = h
	case "heartbeat":
		f = session.Heartbeat{Seq: num("seq")}
	case "subscribe":
		f = session.Subscribe{Subscriptions: s.subs(arg("subs", ""))}
	case "reach":
		f = session.Reach{Silent: s.silent(arg("silent", ""))}
	case "report":
		rep := session.Report{Topic: arg("topic", "a"), Full: d.HasArg("full"), Owned: s.leases(arg("owned", "")), NotOwned: s.queues(arg("gone", "")), Draining: d.HasArg("draining")}
		if e := arg("expects", ""); e != "" { // b1/0=c1 ... with : for =
			rep.Expected = s.ownership(e)
		}
		f = rep
	case "fetch":
		f = session.FetchView{Topic: arg("topic", "a"), Seq: num("seq")}
	case "acquire":
		f = session.Acquire{Queues: s.queues(arg("queues", "")), ViewBroker: arg("view", "b1")}
	case "withdraw":
		f = session.Withdraw{Queues: s.queues(arg("queues", ""))}
	case "release":
		rel := session.Released{}
		for _, o := range s.leases(arg("leases", "")) {
			rel.Leases = append(rel.Leases, session.Release{Queue: o.Queue, Epoch: o.Epoch, Offset: int64(num("offset")), HasOffset: d.HasArg("offset")})
		}
		f = rel
	case "members":
		ids := split(arg("ids", ""))
		f = session.MemberList{Topic: "a", Members: session.MembersDigest("a", ids), IDs: ids}
	case "leaving":
		f = session.Leaving{}
	case "goodbye":
		f = session.Goodbye{}
	default:
		s.t.Fatalf("%s: unknown frame %s", d.Pos, verb)
	}
	s.step(Received{sid, f})
	return s.output()
}

func (s *story) step(ev Event) {
	for _, eff := range s.r.Step(s.now, ev) {
		switch eff := eff.(type) {
		case WakeAt:
			if !eff.At.After(s.now) {
				s.t.Errorf("asks at %v for a wake at %v", s.now.Sub(s.start), eff.At.Sub(s.start))
			}
			s.wake = eff.At
		case Persist:
			s.say("store %s", s.persist(eff))
			if s.slow {
				s.queue = append(s.queue, eff)
				continue
			}
			s.store(eff)
			s.step(Persisted{eff.ID})
		case CloseSession:
			s.say("close s%d", eff.Session)
		case Answer:
			if eff.Err != nil {
				s.say("answer %d: %v", eff.Req, eff.Err)
				continue
			}
			s.say("answer %d: done", eff.Req)
		case Send:
			s.say("s%d <- %s", eff.Session, s.frame(eff.Frame))
		}
	}
}

func (s *story) store(p Persist) {
	for _, r := range p.Records {
		s.disk[r.Key] = r
	}
}

func (s *story) say(format string, args ...any) {
	fmt.Fprintf(&s.out, "%-7s "+format+"\n", append([]any{fmt.Sprintf("+%.3fs", s.now.Sub(s.start).Seconds())}, args...)...)
}

func (s *story) output() string {
	if s.out.Len() == 0 {
		return "nothing\n"
	}
	return s.out.String()
}

func split(v string) []string {
	if v == "" {
		return nil
	}
	return strings.Split(v, ",")
}

func (s *story) q(v string) allocate.Queue {
	p := strings.Split(v, "/")
	if len(p) == 2 {
		p = append([]string{"a"}, p...)
	}
	id, err := strconv.Atoi(p[len(p)-1])
	if err != nil || len(p) != 3 {
		s.t.Fatalf("queue %q", v)
	}
	return allocate.Queue{Topic: p[0], Broker: p[1], ID: int32(id)}
}

func (s *story) queues(v string) (out []allocate.Queue) {
	for _, q := range split(v) {
		out = append(out, s.q(q))
	}
	return out
}

func (s *story) epoch(v string) session.Epoch {
	var e session.Epoch
	if _, err := fmt.Sscanf(v, "%d.%d", &e.Broker, &e.Counter); err != nil {
		s.t.Fatalf("epoch %q", v)
	}
	return e
}

func (s *story) leases(v string) (out []session.Owned) {
	for _, l := range split(v) {
		q, e, ok := strings.Cut(l, "@")
		o := session.Owned{Queue: s.q(q)}
		if ok {
			o.Epoch = s.epoch(e)
		}
		out = append(out, o)
	}
	return out
}

func (s *story) subs(v string) (out []session.Subscription) {
	for _, t := range split(v) {
		topic, filter, ok := strings.Cut(t, ":")
		if !ok {
			filter = "*"
		}
		out = append(out, session.Subscription{Topic: topic, Filter: filter})
	}
	return out
}

func (s *story) silent(v string) (out []session.Silence) {
	for _, b := range split(v) {
		name, unreachable := strings.CutSuffix(b, "!")
		out = append(out, session.Silence{Broker: name, Unreachable: unreachable})
	}
	return out
}

func (s *story) ownership(v string) session.Digest {
	var list []session.Holding
	for _, p := range split(v) {
		q, id, _ := strings.Cut(p, ":")
		list = append(list, session.Holding{Queue: s.q(q), ClientID: id})
	}
	return session.OwnersDigest("a", list)
}

func (s *story) digest(d session.Digest) string {
	if d == 0 {
		return "-"
	}
	if s.names[d] == "" {
		s.names[d] = fmt.Sprintf("#%d", len(s.names)+1)
	}
	return s.names[d]
}

func (s *story) broken(v string) (b Broken) {
	for _, name := range split(v) {
		switch name {
		case "no-warm-up":
			b.NoWarmUp = true
		case "quiet-ignores-drains":
			b.QuietIgnoresDrains = true
		case "no-healing":
			b.NoHealing = true
		case "no-commit-epoch-check":
			b.NoCommitEpochCheck = true
		case "grant-before-release":
			b.GrantBeforeRelease = true
		case "release-without-epoch":
			b.ReleaseWithoutEpoch = true
		default:
			s.t.Fatalf("broken %q", name)
		}
	}
	return b
}

func showQueue(q allocate.Queue) string {
	if q.Topic == "a" {
		return fmt.Sprintf("%s/%d", q.Broker, q.ID)
	}
	return fmt.Sprintf("%s/%s/%d", q.Topic, q.Broker, q.ID)
}

func showAll[T any](list []T, show func(T) string) string {
	if len(list) == 0 {
		return "-"
	}
	out := make([]string, len(list))
	for i, x := range list {
		out[i] = show(x)
	}
	return strings.Join(out, ",")
}

func showOwned(o session.Owned) string { return showQueue(o.Queue) + "@" + o.Epoch.String() }

func showMember(m session.Member) string {
	return fmt.Sprintf("%s(%d.%d %s)", m.ClientID, m.Incarnation.Counter, m.Incarnation.Random, showAll(m.Owned, showOwned))
}

func (s *story) persist(p Persist) string {
	var parts []string
	for _, r := range p.Records {
		holder := r.Holder
		if holder == "" {
			holder = "nobody"
		}
		parts = append(parts, fmt.Sprintf("%s@%s of %s", showQueue(r.Queue), r.Epoch, holder))
	}
	for _, o := range p.Offsets {
		parts = append(parts, fmt.Sprintf("offset %s %d", showQueue(o.Queue), o.Offset))
	}
	for _, o := range p.Resets {
		parts = append(parts, fmt.Sprintf("reset %s %d", showQueue(o.Queue), o.Offset))
	}
	return strings.Join(parts, "; ")
}

func (s *story) frame(f session.ToMember) string {
	grant := func(g session.Grant) string {
		if g.Kept {
			return showQueue(g.Queue) + "@" + g.Epoch.String() + " kept"
		}
		return showQueue(g.Queue) + "@" + g.Epoch.String()
	}
	switch f := f.(type) {
	case session.Welcome:
		out := fmt.Sprintf("welcome timeout=%v", f.SessionTimeout)
		if len(f.Grants) > 0 {
			out += " grants=" + showAll(f.Grants, grant)
		}
		if len(f.Inherited) > 0 {
			out += " inherited=" + showAll(f.Inherited, showOwned)
		}
		return out
	case session.Refused:
		out := fmt.Sprintf("refused: %s: %s", f.Reason, f.Text)
		if f.Incarnation != (session.Incarnation{}) {
			out += fmt.Sprintf(" (%d.%d)", f.Incarnation.Counter, f.Incarnation.Random)
		}
		return out
	case session.HeartbeatAck:
		return fmt.Sprintf("ack %d %s", f.Seq, showAll(f.Views, func(v session.ViewState) string {
			out := fmt.Sprintf("%s %s inputs=%s", v.Topic, v.Version, s.digest(v.Inputs))
			if v.OwnersSettled {
				out += " owners=" + s.digest(v.Owners)
			}
			return out
		}))
	case session.ViewAnswer:
		if f.Warming {
			return fmt.Sprintf("view %d of %s: warming", f.Seq, f.View.Topic)
		}
		return fmt.Sprintf("view %d of %s: %s queues=%s members=%s inputs=%s owners=%s", f.Seq, f.View.Topic, f.View.Version,
			showAll(f.View.Queues, showQueue), showAll(f.View.Members, showMember), s.digest(f.View.Inputs), s.digest(f.View.Owners))
	case session.ViewReady:
		return fmt.Sprintf("view of %s ready: %s inputs=%s", f.Topic, f.Version, s.digest(f.Inputs))
	case session.GroupChanged:
		return fmt.Sprintf("changed %s: %s -> %s joined=%s left=%s added=%s removed=%s inputs=%s before=%s", f.Topic, f.Previous, f.Version,
			showAll(f.Joined, showMember), showAll(f.Left, func(id string) string { return id }),
			showAll(f.Added, showQueue), showAll(f.Removed, showQueue), s.digest(f.Inputs), s.digest(f.OwnersBefore))
	case session.OwnersChanged:
		return fmt.Sprintf("owners of %s at %s: %s", f.Topic, f.Version, s.digest(f.Owners))
	case session.Nudge:
		return fmt.Sprintf("nudge %s", showQueue(f.Queue))
	case session.AskMembers:
		return fmt.Sprintf("who was in %s %s?", f.Topic, s.digest(f.Members))
	case session.Granted:
		return "granted " + showAll(f.Grants, grant)
	case session.LeaseWanted:
		return fmt.Sprintf("wanted %s by a user of %s", showAll(f.Queues, showQueue), f.ViewBroker)
	case session.Withdrawn:
		if f.Reason != 0 {
			return fmt.Sprintf("withdrawn %s: %s", showAll(f.Queues, showQueue), f.Reason)
		}
		return "withdrawn " + showAll(f.Queues, showQueue)
	case session.LeaseLost:
		if f.Reason != 0 {
			return fmt.Sprintf("lost %s: %s", showAll(f.Leases, showOwned), f.Reason)
		}
		return "lost " + showAll(f.Leases, showOwned)
	}
	return fmt.Sprintf("%T", f)
}

func (s *story) describe() string {
	d, ok := s.r.Describe("g")
	if !ok {
		return "no such group\n"
	}
	var b strings.Builder
	for _, m := range d.Members {
		fmt.Fprintf(&b, "member %s %d.%d session=%d holds=%d asks=%d", m.ClientID, m.Incarnation.Counter, m.Incarnation.Random, m.Session, m.Holds, m.Asks)
		if m.Ghost {
			b.WriteString(" ghost")
		}
		if m.Session == 0 {
			fmt.Fprintf(&b, " until +%.3fs", m.ExpiresAt.Sub(s.start).Seconds())
		}
		b.WriteByte('\n')
	}
	for _, v := range d.Views {
		fmt.Fprintf(&b, "view %s at %s ready=%v settled=%v since +%.3fs", v.View.Topic, v.View.Version, v.Ready, v.Settled, v.Since.Sub(s.start).Seconds())
		for _, x := range []struct {
			name string
			ids  []string
		}{{"missing", v.Missing}, {"waiting", v.Waiting}, {"left out", v.LeftOut}} {
			if len(x.ids) > 0 {
				fmt.Fprintf(&b, " %s %s", x.name, strings.Join(x.ids, ","))
			}
		}
		b.WriteByte('\n')
	}
	for _, l := range d.Leases {
		fmt.Fprintf(&b, "lease %s@%s of %s line=%s\n", showQueue(l.Queue), l.Epoch, orNobody(l.Holder), showAll(l.Line, func(id string) string { return id }))
	}
	return b.String()
}

func orNobody(id string) string {
	if id == "" {
		return "nobody"
	}
	return id
}
