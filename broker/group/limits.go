package group

import (
	"fmt"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// The checks return a text that names field, value and limit, or "".

func (l *Limits) hello(h *session.Hello) string {
	for _, bad := range []string{
		l.name("group", h.Group), l.name("client id", h.ClientID), l.optional("instance", h.Instance),
		atMost("offers", len(h.Offers), l.Offers),
		l.subscriptions(h.Subscriptions), l.owned("held", h.Held),
		atMost("views", len(h.Views), l.Subscriptions), l.silent(h.Silent),
	} {
		if bad != "" {
			return bad
		}
	}
	if h.Mode > session.Broadcasting {
		return fmt.Sprintf("mode %d: must be one of exclusive, immediate, broadcasting", uint8(h.Mode))
	}
	if len(h.Offers) == 0 && h.Mode != session.Broadcasting {
		return "offers 0: must be at least 1 strategy"
	}
	viewed := make(map[string]struct{}, len(h.Views))
	for _, v := range h.Views {
		if _, again := viewed[v.Topic]; again {
			return fmt.Sprintf("view of topic %s: must be named once", quote(v.Topic))
		}
		viewed[v.Topic] = struct{}{}
	}
	for i, o := range h.Offers {
		if bad := l.name("strategy", o.Strategy); bad != "" {
			return bad
		}
		if bad := atMost("strategy data bytes", len(o.Data), l.OfferBytes); bad != "" {
			return bad
		}
		for _, other := range h.Offers[:i] {
			if other.Strategy == o.Strategy {
				return fmt.Sprintf("strategy %q: must be offered once", o.Strategy)
			}
		}
	}
	return ""
}

func (l *Limits) subscriptions(subs []session.Subscription) string {
	if bad := atMost("subscriptions", len(subs), l.Subscriptions); bad != "" {
		return bad
	}
	filters := make(map[string]string, len(subs))
	for _, s := range subs {
		if bad := l.name("topic", s.Topic); bad != "" {
			return bad
		}
		if bad := atMost("filter bytes", len(s.Filter), l.FilterBytes); bad != "" {
			return bad
		}
		if other, ok := filters[s.Topic]; ok && other != s.Filter {
			return fmt.Sprintf("topic %q: must be subscribed with one filter", s.Topic)
		}
		filters[s.Topic] = s.Filter
	}
	return ""
}

func (l *Limits) silent(silent []session.Silence) string {
	if bad := atMost("silent brokers", len(silent), l.Brokers); bad != "" {
		return bad
	}
	for _, s := range silent {
		if bad := l.name("broker", s.Broker); bad != "" {
			return bad
		}
	}
	return ""
}

func (l *Limits) owned(field string, owned []session.Owned) string {
	if bad := atMost(field+" queues", len(owned), l.Queues); bad != "" {
		return bad
	}
	for i := range owned {
		if bad := l.queue(&owned[i].Queue); bad != "" {
			return bad
		}
	}
	return ""
}

func (l *Limits) queues(queues []allocate.Queue) string {
	if bad := atMost("queues", len(queues), l.Queues); bad != "" {
		return bad
	}
	for i := range queues {
		if bad := l.queue(&queues[i]); bad != "" {
			return bad
		}
	}
	return ""
}

func (l *Limits) releases(leases []session.Release) string {
	if bad := atMost("leases", len(leases), l.Queues); bad != "" {
		return bad
	}
	for i := range leases {
		if bad := l.queue(&leases[i].Queue); bad != "" {
			return bad
		}
		if leases[i].HasOffset && leases[i].Offset < 0 {
			return fmt.Sprintf("offset %d: must be at least 0", leases[i].Offset)
		}
	}
	return ""
}

// queue checks by far the most values: it must not allocate for good ones.
func (l *Limits) queue(q *allocate.Queue) string {
	switch {
	case q.Topic == "" || len(q.Topic) > l.NameBytes:
		return l.name("topic", q.Topic)
	case q.Broker == "" || len(q.Broker) > l.NameBytes:
		return l.name("broker", q.Broker)
	case q.ID < 0:
		return fmt.Sprintf("queue id %d: must be at least 0", q.ID)
	}
	return ""
}

// report also refuses queues of another topic than the report's.
func (l *Limits) report(rep *session.Report) string {
	if bad := l.name("topic", rep.Topic); bad != "" {
		return bad
	}
	if bad := l.owned("owned", rep.Owned); bad != "" {
		return bad
	}
	if bad := l.queues(rep.NotOwned); bad != "" {
		return bad
	}
	for i := range rep.Owned {
		if t := rep.Owned[i].Queue.Topic; t != rep.Topic {
			return fmt.Sprintf("owned queue of topic %q: must be of the report's topic %q", t, rep.Topic)
		}
	}
	return ""
}

func (l *Limits) name(field, s string) string {
	if s == "" || len(s) > l.NameBytes {
		return fmt.Sprintf("%s %s: must be 1 to %d bytes, is %d", field, quote(s), l.NameBytes, len(s))
	}
	return ""
}

func (l *Limits) optional(field, s string) string {
	if s == "" {
		return ""
	}
	return l.name(field, s)
}

func atMost(field string, n, limit int) string {
	if n > limit {
		return fmt.Sprintf("%s %d: must be at most %d", field, n, limit)
	}
	return ""
}

// quote shows a value that may come from anywhere, shortened.
func quote(s string) string {
	const most = 64
	if len(s) > most {
		return fmt.Sprintf("%q...", s[:most])
	}
	return fmt.Sprintf("%q", s)
}
