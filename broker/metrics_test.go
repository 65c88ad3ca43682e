package broker

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tacitmq/tacit/internal/batch"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// gathered returns the value of every metric that has no labels, or by label value.
func gathered(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]float64)
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "tacit_broker_") || f.GetHelp() == "" {
			t.Errorf("metric %s: %q", f.GetName(), f.GetHelp())
		}
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += "/" + l.GetValue()
			}
			out[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

func TestMetricsTellWhatHappened(t *testing.T) {
	reg := prometheus.NewRegistry()
	e := start(t, testConfig(t.TempDir()), WithRegisterer(reg))
	e.topic("T", 2)
	e.producer().send(batch.Info{Topic: "T"}, bodies("a", "b", "c")...)
	_, _ = e.producer().try(encodeBatch(t, batch.Info{Topic: "U"}, bodies("a")...))
	e.poll("T", 0, 3)
	m, g := e.hold(mq("T", 0))
	if err := e.commit(mq("T", 0), g.GetEpoch(), 1); err != nil {
		t.Fatal(err)
	}
	m.send(&tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Heartbeat{Heartbeat: &tacitv1.Heartbeat{Seq: 1}}})
	await(m, (*tacitv1.SessionResponse).GetHeartbeatAck)
	got := gathered(t, reg)
	for name, want := range map[string]float64{
		"tacit_broker_produce_messages_total":               3,
		"tacit_broker_produce_errors_total/TOPIC_NOT_FOUND": 1,
		"tacit_broker_produce_seconds":                      1,
		"tacit_broker_sessions":                             1,
		"tacit_broker_commits_total":                        1,
		"tacit_broker_heartbeats_total":                     1,
		"tacit_broker_lease_grants_total":                   1,
		"tacit_broker_topics":                               1,
		"tacit_broker_queues":                               2,
		"tacit_broker_group_queues_owned/g":                 1,
		"tacit_broker_queues_unowned":                       1,
		"tacit_broker_group_lag_messages/g/T":               2,
		"tacit_broker_group_members/g":                      1,
		"tacit_broker_writable":                             1,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (%v), want %v", name, v, ok, want)
		}
	}
	for _, name := range []string{"tacit_broker_fetch_bytes_total", "tacit_broker_stored_bytes", "tacit_broker_free_bytes", "tacit_broker_session_frames_received_total"} {
		if got[name] <= 0 {
			t.Errorf("%s is %v", name, got[name])
		}
	}
}

// A broadcasting group has nothing to settle, and no progress that a broker knows of:
// neither may look as if it stood still.
func TestBroadcastingGroupNeitherChangesNorLags(t *testing.T) {
	reg := prometheus.NewRegistry()
	e := start(t, testConfig(t.TempDir()), WithRegisterer(reg))
	e.topic("T", 2)
	e.fill(0, 5)
	m, g := e.hold(mq("T", 0))
	if err := e.commit(mq("T", 0), g.GetEpoch(), 1); err != nil {
		t.Fatal(err)
	}
	if got := gathered(t, reg); got["tacit_broker_group_lag_messages/g/T"] != 4 {
		t.Fatalf("lag of the exclusive group: %v", got["tacit_broker_group_lag_messages/g/T"])
	}
	m.send(&tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Goodbye{Goodbye: &tacitv1.Goodbye{}}})
	for {
		if _, err := m.s.Recv(); err != nil {
			break // its end
		}
	}
	b := e.openSession(e.conn)
	h := hello("g", "c2", 1, "T")
	h.Mode, h.Offers = tacitv1.HandOver_HAND_OVER_BROADCASTING, nil
	b.hello(h)
	await(b, (*tacitv1.SessionResponse).GetWelcome)
	got := gathered(t, reg)
	for _, name := range []string{"tacit_broker_group_settled/g", "tacit_broker_group_lag_messages/g/T", "tacit_broker_group_queues_owned/g"} {
		if v, ok := got[name]; ok {
			t.Errorf("%s is %v", name, v)
		}
	}
	if got["tacit_broker_queues_unowned"] != 0 || got["tacit_broker_group_members/g"] != 1 {
		t.Errorf("unowned %v, members %v", got["tacit_broker_queues_unowned"], got["tacit_broker_group_members/g"])
	}
	resp, err := e.srv.ListGroups(e.ctx(), nil)
	if err != nil || len(resp.GetGroups()) != 1 || resp.GetGroups()[0].GetState() != groupSettled {
		t.Errorf("groups %v, %v", resp, err)
	}
}
