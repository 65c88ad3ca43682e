package broker

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
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
	fetchMemory       prometheus.Gauge
	slowFetchers      prometheus.Counter
	sessions          prometheus.Gauge
	framesIn          prometheus.Counter
	framesOut         prometheus.Counter
	slowReaders       prometheus.Counter
	persisted         prometheus.Counter
	commits           prometheus.Counter
	commitErrors      *prometheus.CounterVec
	groupEvents       *prometheus.CounterVec
	groupRequests     *prometheus.CounterVec
	claims            prometheus.Counter
	claimErrors       *prometheus.CounterVec
	sentBack          *prometheus.CounterVec
	scheduled         prometheus.Counter
	delivered         prometheus.Counter
	undeliverable     prometheus.Counter
	deliverySeconds   prometheus.Histogram
	registered        *prometheus.GaugeVec
	storeEvents       *prometheus.CounterVec
	writable          prometheus.Gauge
	diskWait          prometheus.Gauge
	panics            prometheus.Counter
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
		fetchMemory:   gauge("fetch_memory_bytes", "Bytes of answers to fetches that clients have not read yet."),
		slowFetchers:  counter("fetch_slow_readers_total", "Fetch streams ended because the client did not read while memory for fetches was short."),
		sessions:      gauge("sessions", "Members with an open session stream."),
		framesIn:      counter("session_frames_received_total", "Frames read from members."),
		framesOut:     counter("session_frames_sent_total", "Frames written to members."),
		slowReaders:   counter("session_slow_readers_total", "Sessions ended because the member did not read."),
		persisted:     counter("lease_writes_total", "Changes of leases and offsets made durable."),
		commits:       counter("commits_total", "Offsets committed."),
		commitErrors:  vec("commit_errors_total", "Offsets refused, by reason.", "reason"),
		groupEvents:   vec("coordinated_events_total", "What happened in groups that this broker coordinates, by kind.", "kind"),
		groupRequests: vec("coordinated_requests_total", "Requests of members of coordinated groups answered, by outcome.", "outcome"),
		claims:        counter("claims_total", "Queues that members of coordinated groups asked to hold."),
		claimErrors:   vec("claim_errors_total", "Claims of queues refused, by reason.", "reason"),
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
		diskWait:    gauge("disk_wait_seconds", "How long the write to the disk that is under way has taken, 0 if none is; looked at each second."),
		panics:      counter("stream_panics_total", "Streams ended by a panic of what serves them."),
	}
}
