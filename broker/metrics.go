package broker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/tacitmq/tacit/broker/group"
	"github.com/tacitmq/tacit/session"
)

// metrics are what the shell counts itself; what the core counts is read from it
// by coreCollector.
type metrics struct {
	produceBatches    prometheus.Counter
	produceMessages   prometheus.Counter
	produceBytes      prometheus.Counter
	produceDuplicates prometheus.Counter
	produceErrors     *prometheus.CounterVec
	produceSeconds    prometheus.Histogram
	fetches           prometheus.Counter
	fetchBytes        prometheus.Counter
	fetchErrors       *prometheus.CounterVec
	parked            prometheus.Gauge
	sessions          prometheus.Gauge
	framesIn          prometheus.Counter
	framesOut         prometheus.Counter
	slowReaders       prometheus.Counter
	persisted         prometheus.Counter
	commits           prometheus.Counter
	commitErrors      *prometheus.CounterVec
	sentBack          *prometheus.CounterVec
	scheduled         prometheus.Counter
	delivered         prometheus.Counter
	undeliverable     prometheus.Counter
	deliverySeconds   prometheus.Histogram
	registered        *prometheus.GaugeVec
	storeEvents       *prometheus.CounterVec
	writable          prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: "tacit_broker_" + name, Help: help})
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: "tacit_broker_" + name, Help: help}, []string{label})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: "tacit_broker_" + name, Help: help})
	}
	return &metrics{
		produceBatches:    counter("produce_batches_total", "Batches that passed the door."),
		produceMessages:   counter("produce_messages_total", "Messages in batches that passed the door."),
		produceBytes:      counter("produce_bytes_total", "Bytes of batches that passed the door."),
		produceDuplicates: counter("produce_duplicates_total", "Batches recognised as stored before."),
		produceErrors:     vec("produce_errors_total", "Batches refused, by reason.", "reason"),
		produceSeconds: f.NewHistogram(prometheus.HistogramOpts{
			Name: "tacit_broker_produce_seconds", Help: "Time from a batch's receipt to its acknowledgement.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 2.5, 12),
		}),
		fetches:       counter("fetch_requests_total", "Fetch requests."),
		fetchBytes:    counter("fetch_bytes_total", "Bytes of batches fetched."),
		fetchErrors:   vec("fetch_errors_total", "Fetch requests refused, by reason.", "reason"),
		parked:        gauge("fetch_parked", "Long polls that wait for a message."),
		sessions:      gauge("sessions", "Members with an open session stream."),
		framesIn:      counter("session_frames_received_total", "Frames read from members."),
		framesOut:     counter("session_frames_sent_total", "Frames written to members."),
		slowReaders:   counter("session_slow_readers_total", "Sessions ended because the member did not read."),
		persisted:     counter("lease_writes_total", "Changes of leases and offsets made durable."),
		commits:       counter("commits_total", "Offsets committed."),
		commitErrors:  vec("commit_errors_total", "Offsets refused, by reason.", "reason"),
		sentBack:      vec("sent_back_total", "Messages sent back, by outcome: retry, dead letter or duplicate.", "outcome"),
		scheduled:     counter("scheduled_batches_total", "Batches stored until their due time."),
		delivered:     counter("scheduled_delivered_total", "Scheduled batches put into their queues."),
		undeliverable: counter("scheduled_undeliverable_total", "Scheduled batches dropped because their topic is gone."),
		deliverySeconds: f.NewHistogram(prometheus.HistogramOpts{
			Name: "tacit_broker_scheduled_late_seconds", Help: "How much later than due scheduled batches reached their queues.",
			Buckets: prometheus.ExponentialBuckets(0.5e-3, 3, 10),
		}),
		registered: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tacit_broker_registered", Help: "1 while registered with a name server, by its address.",
		}, []string{"nameserver"}),
		storeEvents: vec("store_events_total", "Events of the store an operator should know, by kind.", "kind"),
		writable:    gauge("writable", "0 while appends are refused for want of disk space."),
	}
}

// coreCollector reads the core's own counters when metrics are scraped.
type coreCollector struct {
	d       *driver
	topics  *topics
	descs   map[string]*prometheus.Desc
	settles *prometheus.HistogramVec
}

func newCoreCollector(d *driver, ts *topics) *coreCollector {
	c := &coreCollector{
		d: d, topics: ts, descs: make(map[string]*prometheus.Desc),
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
		"queues_unowned":          "Queues of subscribed topics on this broker without a lease holder.",
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
	c.descs["settled"] = prometheus.NewDesc("tacit_broker_group_settled", "1 if all views of the group here are settled.", []string{"group"}, nil)
	c.descs["group_members"] = prometheus.NewDesc("tacit_broker_group_members", "Members of the group.", []string{"group"}, nil)
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
		free   int
	)
	c.d.view(func(r *group.Registry, _ time.Time) {
		st, groups, took = r.Stats(), r.ListGroups(), r.TakeSettles()
		for _, g := range groups {
			d, _ := r.Describe(g.Group)
			for _, l := range d.Leases {
				if l.Holder == "" {
					free++
				}
			}
		}
	})
	gauge := func(name string, v int) {
		ch <- prometheus.MustNewConstMetric(c.descs[name], prometheus.GaugeValue, float64(v))
	}
	counter := func(name string, v uint64) {
		ch <- prometheus.MustNewConstMetric(c.descs[name], prometheus.CounterValue, float64(v))
	}
	queues := 0
	set := c.topics.set()
	for _, t := range set.byName {
		queues += int(t.read)
	}
	gauge("topics", len(set.byName))
	gauge("queues", queues)
	gauge("queues_unowned", free)
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
		settled := 0.0
		if g.Settled {
			settled = 1
		}
		ch <- prometheus.MustNewConstMetric(c.descs["settled"], prometheus.GaugeValue, settled, g.Group)
		ch <- prometheus.MustNewConstMetric(c.descs["group_members"], prometheus.GaugeValue, float64(g.Members), g.Group)
	}
	for _, s := range took {
		c.settles.WithLabelValues(s.Group, s.Topic).Observe(s.Took.Seconds())
	}
	c.settles.Collect(ch)
}
