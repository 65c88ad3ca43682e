package producer

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tacitmq/tacit/internal/promreg"
)

// metrics are shared by the producers of a process that have one registerer.
type metrics struct {
	success, failure                    prometheus.Counter
	batches, bytes, retries, duplicates prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	var errs []error
	counter := func(name, help string, by ...string) *prometheus.CounterVec {
		return promreg.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tacit", Subsystem: "producer", Name: name, Help: help}, by), &errs)
	}
	one := func(name, help string) prometheus.Counter { return counter(name, help).WithLabelValues() }
	messages := counter("messages_total", "Messages sent, by outcome.", "outcome")
	m := &metrics{
		success:    messages.WithLabelValues("success"),
		failure:    messages.WithLabelValues("error"),
		batches:    one("batches_total", "Batches stored."),
		bytes:      one("batch_bytes_total", "Bytes of the batches stored."),
		retries:    one("retries_total", "Batches sent again."),
		duplicates: one("duplicates_total", "Batches that the broker had already when they were sent again."),
	}
	return m, errors.Join(errs...)
}

func (m *metrics) stored(messages, bytes int, duplicate bool) {
	m.success.Add(float64(messages))
	m.batches.Inc()
	m.bytes.Add(float64(bytes))
	if duplicate {
		m.duplicates.Inc()
	}
}

func (m *metrics) failed(messages int) { m.failure.Add(float64(messages)) }
func (m *metrics) retried()            { m.retries.Inc() }
