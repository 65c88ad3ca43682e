package main

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tacitmq/tacit/broker"
	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/internal/cluster"
	"github.com/tacitmq/tacit/message"
)

// gauge returns the value of a metric with one label; ok is false if it is absent.
func gauge(t *testing.T, reg *prometheus.Registry, name string) (value float64, ok bool) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name && len(f.GetMetric()) > 0 {
			return f.GetMetric()[0].GetGauge().GetValue(), true
		}
	}
	return 0, false
}

// One broker of two says whether a group is settled: that whose view counts.
func TestSettledIsToldByTheBrokerWhoseViewCounts(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	regs := map[string]*prometheus.Registry{"broker-a": prometheus.NewRegistry(), "broker-b": prometheus.NewRegistry()}
	c, err := cluster.Start(ctx, cluster.Config{
		Dir: t.TempDir(), Brokers: len(regs),
		BrokerOptions: func(name string) []broker.Option { return []broker.Option{broker.WithRegisterer(regs[name])} },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}()
	if err := c.PutTopic(ctx, "orders", 4, c.Brokers()...); err != nil {
		t.Fatal(err)
	}
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 2)
	for range 2 {
		m, err := consumer.New(c.NameServers(), "g", consumer.Each(func(context.Context, *message.Message) error { return nil }), consumer.WithTopic("orders", "*"))
		if err != nil {
			t.Fatal(err)
		}
		go func() { ended <- m.Run(run) }() // ended by stop
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		told, settled := 0, 0.0
		owned := 0.0
		for _, reg := range regs {
			if v, ok := gauge(t, reg, "tacit_broker_group_settled"); ok {
				told++
				settled = v
			}
			v, _ := gauge(t, reg, "tacit_broker_group_queues_owned")
			owned += v
		}
		if told == 1 && settled == 1 && owned == 8 {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("told by %d brokers: %v, with %v queues owned", told, settled, owned)
		}
	}
	stop()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
