package consumer

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tacitmq/tacit/internal/promreg"
)

// metrics of one member. Members of one group in one process, with one
// registerer, share them: what counts things present is added to, never set.
type metrics struct {
	messages                   *prometheus.CounterVec // by outcome
	success, failure, lateOnes prometheus.Counter
	fetchedBytes, fetchErrors  prometheus.Counter
	undecodable                prometheus.Counter
	backs                      *prometheus.CounterVec // by outcome
	commits                    *prometheus.CounterVec // by outcome
	panics, overruns, losses   prometheus.Counter
	passes                     *prometheus.CounterVec // by trigger
	gained, given              prometheus.Counter
	queues, stalls, unknown    prometheus.Gauge
	lag                        *prometheus.GaugeVec // by topic
	cached, waiting, running   prometheus.Gauge
	settleTime                 prometheus.Histogram
}

// levels are what a member last added to the gauges that it shares.
type levels struct {
	cached, waiting, running float64
	lag                      map[string]float64 // by topic
}

func newMetrics(reg prometheus.Registerer, group string) (*metrics, error) {
	var errs []error
	labels := prometheus.Labels{"group": group}
	counter := func(name, help string, by ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tacit", Subsystem: "consumer", Name: name, Help: help, ConstLabels: labels}, by)
		return promreg.Register(reg, c, &errs)
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "tacit", Subsystem: "consumer", Name: name, Help: help, ConstLabels: labels})
		return promreg.Register(reg, g, &errs)
	}
	one := func(name, help string) prometheus.Counter { return counter(name, help).WithLabelValues() }
	m := &metrics{
		messages:     counter("messages_total", "Messages handled, by outcome; late ones ended after their queue was lost.", "outcome"),
		fetchedBytes: one("fetched_bytes_total", "Bytes of messages fetched."),
		fetchErrors:  one("fetch_errors_total", "Fetches that failed and were repeated."),
		undecodable:  one("undecodable_batches_total", "Batches that this client cannot decode; their queues stand still."),
		backs:        counter("sent_back_total", "Messages given back to their broker, by outcome.", "outcome"),
		commits:      counter("commits_total", "Commits of offsets, by outcome.", "outcome"),
		panics:       one("handler_panics_total", "Handlers that panicked."),
		overruns:     one("drain_overruns_total", "Queues released while handlers still ran."),
		losses:       one("queues_lost_total", "Queues lost without having been given up."),
		passes:       counter("rebalances_total", "Runs of the allocate strategy, by trigger.", "trigger"),
		gained:       one("queues_gained_total", "Queues asked for because of a rebalance."),
		given:        one("queues_given_total", "Queues given up because of a rebalance."),
		queues:       gauge("queues_owned", "Queues owned."),
		unknown:      gauge("topics_unknown", "Subscribed topics that do not exist, summed over members."),
		stalls:       gauge("members_stalled", "Members whose handlers make no progress."),
		cached:       gauge("cached_bytes", "Bytes of messages fetched and not finished."),
		waiting:      gauge("messages_waiting", "Messages fetched and not yet handed out."),
		running:      gauge("messages_running", "Messages with handlers."),
		lag: promreg.Register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "tacit", Subsystem: "consumer", Name: "lag_messages", ConstLabels: labels,
			Help: "Messages stored in the queues owned and not finished, as last heard, by topic.",
		}, []string{"topic"}), &errs),
		settleTime: promreg.Register(reg, prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "tacit", Subsystem: "consumer", Name: "settle_seconds", ConstLabels: labels,
			Help:    "Time from a change of the assignment until everything gained was there and everything given was released.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}), &errs),
	}
	m.success, m.failure = m.messages.WithLabelValues("success"), m.messages.WithLabelValues("failure")
	m.lateOnes = m.messages.WithLabelValues("late")
	return m, errors.Join(errs...)
}

func outcome(err error) string {
	if err != nil {
		return "error"
	}
	return "success"
}

// level moves the shared gauges from what a member added last to what it has.
func (m *metrics) level(last *levels, now levels) {
	m.cached.Add(now.cached - last.cached)
	m.waiting.Add(now.waiting - last.waiting)
	m.running.Add(now.running - last.running)
	for t, n := range now.lag {
		m.lag.WithLabelValues(t).Add(n - last.lag[t])
	}
	for t, n := range last.lag {
		if _, ok := now.lag[t]; !ok {
			m.lag.WithLabelValues(t).Sub(n)
		}
	}
	*last = now
}

func (m *metrics) fetched(bytes int64)     { m.fetchedBytes.Add(float64(bytes)) }
func (m *metrics) settled(d time.Duration) { m.settleTime.Observe(d.Seconds()) }

func (m *metrics) fetchFailed()        { m.fetchErrors.Inc() }
func (m *metrics) consumed()           { m.success.Inc() }
func (m *metrics) failed()             { m.failure.Inc() }
func (m *metrics) late(n int)          { m.lateOnes.Add(float64(n)) }
func (m *metrics) panicked()           { m.panics.Inc() }
func (m *metrics) overrun()            { m.overruns.Inc() }
func (m *metrics) lost()               { m.losses.Inc() }
func (m *metrics) owned(n int)         { m.queues.Add(float64(n)) }
func (m *metrics) missing(n int)       { m.unknown.Add(float64(n)) }
func (m *metrics) stalled(n int)       { m.stalls.Add(float64(n)) }
func (m *metrics) givenUp()            { m.messages.WithLabelValues("given_up").Inc() }
func (m *metrics) committed(err error) { m.commits.WithLabelValues(outcome(err)).Inc() }

func (m *metrics) sentBack(dead bool, err error) {
	o := outcome(err)
	if dead {
		o = "dead_letter"
	}
	m.backs.WithLabelValues(o).Inc()
}

func (m *metrics) passed(trigger string, gained, given int) {
	m.passes.WithLabelValues(trigger).Inc()
	m.gained.Add(float64(gained))
	m.given.Add(float64(given))
}
