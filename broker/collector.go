package broker

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tacitmq/tacit/broker/group"
	"github.com/tacitmq/tacit/session"
)

// coreCollector reads the core's own counters when metrics are scraped.
type coreCollector struct {
	s       *Server
	descs   map[string]*prometheus.Desc
	settles *prometheus.HistogramVec
}

func newCoreCollector(s *Server) *coreCollector {
	c := &coreCollector{
		s: s, descs: make(map[string]*prometheus.Desc),
		settles: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tacit_broker_settle_seconds", Help: "Time a view of a group took from a change to settled.",
			Buckets: prometheus.ExponentialBuckets(5e-3, 2, 14),
		}, []string{"group", "topic"}),
	}
	for name, help := range map[string]string{
		"groups":                  "Groups known.",
		"members":                 "Members attached or remembered.",
		"views":                   "Views of groups.",
		"views_settled":           "Views in which every queue is held by the member its strategy names.",
		"views_warming":           "Views that miss expected members.",
		"topics":                  "Topics of this broker.",
		"queues":                  "Readable queues of this broker.",
		"queues_unowned":          "Queues of subscribed topics on this broker that no member of the group holds, over all exclusive groups.",
		"stored_bytes":            "Bytes in the data directory.",
		"free_bytes":              "Bytes free on the disk of the data directory.",
		"heartbeats_total":        "Heartbeats read.",
		"notices_total":           "Change notices sent.",
		"nudges_total":            "Nudges sent for queues without owner and asker.",
		"quiet_signals_total":     "Quiet signals sent.",
		"expiries_total":          "Sessions ended by silence.",
		"pauses_total":            "Times this process stood still.",
		"duplicate_clients_total": "Hellos refused for their client id.",
		"left_out_total":          "Members left out of a view because they cannot reach a broker.",
		"lease_grants_total":      "Leases granted with a new epoch.",
		"lease_kept_total":        "Leases kept over a reconnect.",
		"lease_releases_total":    "Leases released by their holders.",
		"lease_wanted_total":      "Leases whose holders were told that others wait.",
		"lease_dropped_total":     "Leases that ended with their holder's session.",
		"commits_refused_total":   "Commits refused for their epoch.",
	} {
		c.descs[name] = prometheus.NewDesc("tacit_broker_"+name, help, nil, nil)
	}
	c.descs["refused"] = prometheus.NewDesc("tacit_broker_sessions_refused_total", "Sessions refused or ended, by reason.", []string{"reason"}, nil)
	c.descs["settled"] = prometheus.NewDesc("tacit_broker_group_settled", "1 if the group is settled on every topic for which the view of this broker counts; absent where that is none.", []string{"group"}, nil)
	c.descs["group_members"] = prometheus.NewDesc("tacit_broker_group_members", "Members of the group.", []string{"group"}, nil)
	c.descs["owned"] = prometheus.NewDesc("tacit_broker_group_queues_owned", "Queues of this broker that members of the group hold.", []string{"group"}, nil)
	c.descs["lag"] = prometheus.NewDesc("tacit_broker_group_lag_messages", "Messages of this broker's queues that the group has not committed, in queues it has committed on.", []string{"group", "topic"}, nil)
	return c
}

// Describe implements prometheus.Collector.
func (c *coreCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
	c.settles.Describe(ch)
}

// Collect implements prometheus.Collector.
func (c *coreCollector) Collect(ch chan<- prometheus.Metric) {
	var (
		st     group.Stats
		groups []group.Summary
		took   []group.Settle
	)
	set := c.s.topics.set()
	owned, unowned := make(map[string]int), 0
	settled := make(map[string]bool)
	c.s.driver.view(func(r *group.Registry, _ time.Time) {
		st, groups, took = r.Stats(), r.ListGroups(), r.TakeSettles()
		for _, g := range groups {
			d, _ := r.Describe(g.Group)
			if s, counts := settledHere(&d); counts {
				settled[g.Group] = s
			}
			if g.Mode != session.Exclusive {
				continue
			}
			all, held := 0, 0
			for i := range d.Views {
				if t := set.byName[d.Views[i].View.Topic]; t != nil && t.readable {
					all += int(t.read)
				}
			}
			for _, l := range d.Leases {
				if l.Holder != "" {
					held++
				}
			}
			owned[g.Group] = held
			unowned += max(0, all-held)
		}
	})
	gauge := func(name string, v int) {
		ch <- prometheus.MustNewConstMetric(c.descs[name], prometheus.GaugeValue, float64(v))
	}
	counter := func(name string, v uint64) {
		ch <- prometheus.MustNewConstMetric(c.descs[name], prometheus.CounterValue, float64(v))
	}
	queues := 0
	for _, t := range set.byName {
		queues += int(t.read)
	}
	gauge("topics", len(set.byName))
	gauge("queues", queues)
	gauge("queues_unowned", unowned)
	gauge("stored_bytes", int(dirBytes(c.s.cfg.DataDir)))
	gauge("free_bytes", int(freeBytes(c.s.cfg.DataDir)))
	gauge("groups", st.Groups)
	gauge("members", st.Members)
	gauge("views", st.Views)
	gauge("views_settled", st.Settled)
	gauge("views_warming", st.Warm)
	counter("heartbeats_total", st.Heartbeats)
	counter("notices_total", st.Notices)
	counter("nudges_total", st.Nudges)
	counter("quiet_signals_total", st.QuietSignals)
	counter("expiries_total", st.Expiries)
	counter("pauses_total", st.Pauses)
	counter("duplicate_clients_total", st.Duplicates)
	counter("left_out_total", st.LeftOut)
	counter("lease_grants_total", st.Leases.Grants)
	counter("lease_kept_total", st.Leases.Kept)
	counter("lease_releases_total", st.Leases.Releases)
	counter("lease_wanted_total", st.Leases.Wanted)
	counter("lease_dropped_total", st.Leases.Dropped)
	counter("commits_refused_total", st.Leases.CommitsRefused)
	for r, n := range st.Refused {
		if n > 0 {
			ch <- prometheus.MustNewConstMetric(c.descs["refused"], prometheus.CounterValue, float64(n), session.Reason(r).String()) //nolint:gosec // an index
		}
	}
	for _, g := range groups {
		if s, counts := settled[g.Group]; counts {
			value := 0.0
			if s {
				value = 1
			}
			ch <- prometheus.MustNewConstMetric(c.descs["settled"], prometheus.GaugeValue, value, g.Group)
		}
		ch <- prometheus.MustNewConstMetric(c.descs["group_members"], prometheus.GaugeValue, float64(g.Members), g.Group)
	}
	for name, n := range owned {
		ch <- prometheus.MustNewConstMetric(c.descs["owned"], prometheus.GaugeValue, float64(n), name)
	}
	c.lag(ch, groups)
	for _, s := range took {
		c.settles.WithLabelValues(s.Group, s.Topic).Observe(s.Took.Seconds())
	}
	c.settles.Collect(ch)
}

// lag reports how far each group is behind in each topic. Members of broadcasting
// groups keep their progress themselves: what is stored for them is of other times.
func (c *coreCollector) lag(ch chan<- prometheus.Metric, groups []group.Summary) {
	state := c.s.store.State()
	for _, name := range state.Groups() {
		if slices.ContainsFunc(groups, func(g group.Summary) bool { return g.Group == name && g.Mode == session.Broadcasting }) {
			continue
		}
		behind := make(map[string]int64)
		for q, at := range state.Offsets(name) {
			if low, high, err := c.s.store.Bounds(q); err == nil {
				behind[q.Topic] += high - max(low, at)
			}
		}
		for topic, n := range behind {
			ch <- prometheus.MustNewConstMetric(c.descs["lag"], prometheus.GaugeValue, float64(n), name, topic)
		}
	}
}

// settledHere tells whether a group is settled on all topics for which the view
// of this broker counts, and whether there are any. The others, and topics that
// are on no broker, such as that of a group's retries before the first, say
// nothing: members report elsewhere, or nowhere.
func settledHere(d *group.Description) (settled, counts bool) {
	settled = true
	for i := range d.Views {
		if v := &d.Views[i]; v.First && len(v.View.Queues) > 0 {
			settled, counts = settled && v.Settled, true
		}
	}
	return settled && counts, counts
}
