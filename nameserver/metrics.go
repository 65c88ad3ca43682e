package nameserver

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are a name server's.
type metrics struct {
	brokers, topics, warming, watches, streams prometheus.Gauge

	registrations   *prometheus.CounterVec
	expired, pushes prometheus.Counter
}

// newMetrics registers the metrics with reg, which may be nil.
func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: "tacit_nameserver_" + name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: "tacit_nameserver_" + name, Help: help})
	}
	return &metrics{
		brokers: gauge("brokers", "Brokers registered."),
		topics:  gauge("topics", "Topics that some broker hosts."),
		warming: gauge("warming", "1 while brokers may be missing because the name server started a moment ago or knows none."),
		watches: gauge("watches", "Watches open."),
		streams: gauge("register_streams", "Registration streams open."),
		registrations: f.NewCounterVec(prometheus.CounterOpts{
			Name: "tacit_nameserver_registrations_total",
			Help: "Messages of brokers by outcome: full, delta, heartbeat, need_full, superseded, left, late_leave, refused.",
		}, []string{"outcome"}),
		expired: counter("expired_total", "Brokers dropped for silence."),
		pushes:  counter("pushes_total", "Changes sent to watchers."),
	}
}

func (m *metrics) registered(outcome string) { m.registrations.WithLabelValues(outcome).Inc() }

func (m *metrics) state(brokers, topics int, warming bool) {
	m.brokers.Set(float64(brokers))
	m.topics.Set(float64(topics))
	m.warming.Set(0)
	if warming {
		m.warming.Set(1)
	}
}
