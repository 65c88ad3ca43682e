package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/tacitmq/tacit/internal/admin"
)

// event is something that happens to the group. do makes it happen, changes
// members and queues of the demo to what is expected afterwards and returns when
// it began.
type event struct {
	name  string // as in the JSON result
	title string
	do    func(ctx context.Context) (began time.Time, err error)
	// untilSeen counts the time until all was seen to be settled, not until the
	// last change of owner.
	untilSeen bool
}

// events returns the events in their order. Members 1 and 2 have stable ids.
func (d *demo) events() []event {
	viewBroker := d.viewBroker()
	return []event{
		{
			name: "start", title: "three consumers start: c1, c2, c3",
			do: func(ctx context.Context) (time.Time, error) {
				return d.join(ctx, member{"c1", true}, member{"c2", true}, member{"c3", false})
			},
		},
		{
			name: "join", title: "c4 joins",
			do: func(ctx context.Context) (time.Time, error) { return d.join(ctx, member{"c4", false}) },
		},
		{
			name: "leave", title: "c3 leaves",
			do: func(ctx context.Context) (time.Time, error) { return d.leave(ctx, "c3") },
		},
		{
			name: "crash", title: "c4 is killed, without goodbye",
			do: func(ctx context.Context) (time.Time, error) { return d.crash(ctx, "c4") },
		},
		{
			name: "grow", title: fmt.Sprintf("the topic grows from %d queues to %d", d.cfg.Queues, d.cfg.Grown),
			do: func(ctx context.Context) (time.Time, error) { return d.grow(ctx, d.cfg.Grown) },
		},
		{
			name: "broker-restart", title: viewBroker + " restarts, whose view of the group counts", untilSeen: true,
			do: func(ctx context.Context) (time.Time, error) {
				began := time.Now()
				return began, d.cluster.restart(ctx, viewBroker)
			},
		},
		{
			name: "rolling-restart", title: "c1 and c2 restart one after the other, with stable ids",
			do: func(ctx context.Context) (time.Time, error) { return d.roll(ctx, "c1", "c2") },
		},
	}
}

// member is one to be started.
type member struct {
	id     string
	static bool
}

// join starts member processes and lets them join together once all are ready.
func (d *demo) join(ctx context.Context, members ...member) (began time.Time, err error) {
	var started []*process
	for _, m := range members {
		cmd := d.cfg.Member(d.command, MemberConfig{
			NameServers: []string{d.cluster.nameServer}, Group: Group, Topic: Topic, ID: m.id, Static: m.static,
		})
		p, err := startProcess(cmd, m.id, m.static, Topic, d.note)
		if err != nil {
			return began, err
		}
		d.members[m.id] = p
		started = append(started, p)
	}
	for _, p := range started {
		if err := p.waitReady(ctx); err != nil {
			return began, err
		}
	}
	for _, p := range started {
		if err := p.tell(commandJoin); err != nil {
			return began, err
		}
	}
	for _, p := range started {
		select {
		case at := <-p.joined:
			if began.IsZero() || at.Before(began) {
				began = at
			}
		case <-p.ended:
			return began, fmt.Errorf("member %s ended: %w", p.id, p.failure())
		case <-ctx.Done():
			return began, fmt.Errorf("member %s does not join: %w", p.id, ctx.Err())
		}
	}
	return began, nil
}

// note takes in what a member says.
func (d *demo) note(p *process, l line) {
	d.observe(func(t *tally) {
		switch l.word {
		case wordOwn:
			t.own(p.id, l.queues, l.at, true, true)
		case wordRevoked:
			t.own(p.id, l.queues, l.at, false, true)
		case wordLost:
			t.own(p.id, l.queues, l.at, false, false)
		case wordMessage:
			t.hand(l.queues[0], l.seq, l.at)
		}
	})
}

// leave lets a member say goodbye.
func (d *demo) leave(ctx context.Context, id string) (time.Time, error) {
	p := d.members[id]
	began := time.Now()
	if err := p.tell(commandLeave); err != nil {
		return began, err
	}
	if err := p.waitEnd(ctx); err != nil {
		return began, err
	}
	delete(d.members, id)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil || p.text != "" {
		return began, fmt.Errorf("member %s: %s %w", id, p.text, p.err)
	}
	return began, nil
}

// crash kills a member: its process ends at once and the system cuts its
// connections.
func (d *demo) crash(ctx context.Context, id string) (time.Time, error) {
	p := d.members[id]
	delete(d.members, id)
	began := time.Now()
	if err := p.kill(ctx); err != nil {
		return began, err
	}
	d.observe(func(t *tally) { t.gone(id, began) })
	return began, nil
}

// grow raises the number of queues.
func (d *demo) grow(ctx context.Context, queues int32) (time.Time, error) {
	began := time.Now()
	d.queues = queues
	_, err := d.admin.AlterTopic(ctx, Topic, admin.TopicChange{Queues: &queues})
	return began, err //nolint:wrapcheck // says all
}

// roll restarts members one after the other, each when the one before is back.
// Each stops handing out, stores its progress and ends without a goodbye, which
// keeps its share for it.
func (d *demo) roll(ctx context.Context, ids ...string) (began time.Time, err error) {
	began = time.Now()
	for _, id := range ids {
		p := d.members[id]
		if err := p.tell(commandSuspend); err != nil {
			return began, err
		}
		if err := p.waitEnd(ctx); err != nil {
			return began, err
		}
		d.observe(func(t *tally) { t.gone(id, time.Now()) }) // nothing, if it could say its last word
		if _, err := d.join(ctx, member{id, true}); err != nil {
			return began, err
		}
		if _, why, err := d.settle(ctx, 0); err != nil || why != "" {
			if err == nil {
				err = &lateError{why}
			}
			return began, err
		}
	}
	return began, nil
}
