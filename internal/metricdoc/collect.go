package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tacitmq/tacit/broker"
	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/nameserver"
	"github.com/tacitmq/tacit/producer"
)

// metric is one metric of one part.
type metric struct {
	Part   string   `json:"part"` // the program, or the half of the SDK, that has it
	Name   string   `json:"name"`
	Help   string   `json:"help"`
	Labels []string `json:"labels"`
}

// collect makes one of each part and returns what they register, by part and name.
func collect() ([]metric, error) {
	dir, err := os.MkdirTemp("", "metricdoc")
	if err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	all, err := collectIn(dir)
	return all, errors.Join(err, os.RemoveAll(dir))
}

func collectIn(dir string) ([]metric, error) {
	var all []metric
	for _, part := range []struct {
		name string
		make func(reg prometheus.Registerer, dir string) error
	}{
		{"nameserver", makeNameServer},
		{"broker", makeBroker},
		{"consumer", makeConsumer},
		{"producer", makeProducer},
	} {
		reg := prometheus.NewRegistry()
		if err := part.make(reg, dir); err != nil {
			return nil, fmt.Errorf("make %s: %w", part.name, err)
		}
		found, err := described(part.name, reg)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func makeNameServer(reg prometheus.Registerer, _ string) error {
	lis := bufconn.Listen(1)
	_, err := nameserver.New(nameserver.Default(), nameserver.WithListener(lis), nameserver.WithRegisterer(reg))
	return errors.Join(err, lis.Close())
}

func makeBroker(reg prometheus.Registerer, dir string) error {
	cfg := broker.Default()
	cfg.Name, cfg.DataDir, cfg.Listen = "metricdoc", dir, "127.0.0.1:0"
	srv, err := broker.New(cfg, broker.WithRegisterer(reg))
	if err != nil {
		return err
	}
	return srv.Close()
}

func makeConsumer(reg prometheus.Registerer, _ string) error {
	handler := consumer.Each(func(context.Context, *message.Message) error { return nil })
	_, err := consumer.New([]string{"127.0.0.1:1"}, "metricdoc", handler, consumer.WithTopic("metricdoc", "*"), consumer.WithRegisterer(reg))
	return err
}

func makeProducer(reg prometheus.Registerer, _ string) error {
	p, err := producer.New([]string{"127.0.0.1:1"}, producer.WithRegisterer(reg))
	if err != nil {
		return err
	}
	return p.Close(context.Background()) // nothing was sent, so nothing is waited for
}

// described returns the metrics of a registry, by name: also those that have not
// counted anything yet, which a scrape would not show.
func described(part string, reg *prometheus.Registry) ([]metric, error) {
	descs := make(chan *prometheus.Desc)
	go func() { // ends with the loop below
		reg.Describe(descs)
		close(descs)
	}()
	var found []metric
	var errs []error
	for d := range descs {
		m, err := parse(d.String())
		if err != nil {
			errs = append(errs, err)
			continue
		}
		m.Part = part
		found = append(found, m)
	}
	slices.SortFunc(found, func(a, b metric) int { return cmp.Compare(a.Name, b.Name) })
	return found, errors.Join(errs...)
}

var (
	descText   = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"),.* constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	constLabel = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="(?:[^"\\]|\\.)*"`)
)

// parse reads a description, which only its text tells.
func parse(text string) (metric, error) {
	m := descText.FindStringSubmatch(text)
	if m == nil {
		return metric{}, fmt.Errorf("read description %s: not in the expected form", text)
	}
	name, err := strconv.Unquote(m[1])
	if err != nil {
		return metric{}, fmt.Errorf("read description %s: %w", text, err)
	}
	help, err := strconv.Unquote(m[2])
	if err != nil {
		return metric{}, fmt.Errorf("read description %s: %w", text, err)
	}
	labels := []string{}
	for _, l := range constLabel.FindAllStringSubmatch(m[3], -1) {
		labels = append(labels, l[1])
	}
	for l := range strings.SplitSeq(m[4], ",") {
		if l != "" {
			labels = append(labels, l)
		}
	}
	slices.Sort(labels)
	return metric{Name: name, Help: help, Labels: labels}, nil
}
