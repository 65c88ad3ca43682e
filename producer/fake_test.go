package producer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/route"
)

// fake is a cluster of brokers that keep batches in memory and know repeats.
type fake struct {
	client.Cluster // what a producer does not need

	t  *testing.T
	wg sync.WaitGroup

	mu      sync.Mutex
	route   []route.Topic
	watches []*fakeWatch
	stored  map[allocate.Queue][]string // bodies, in order
	seqs    map[string]int64            // offsets of batches by producer, queue and sequence
	sent    []string                    // brokers, in the order of attempts
	delay   time.Duration
	// answer may turn the outcome of an attempt into an error; before is whether
	// the batch is stored nevertheless.
	answer func(h batch.Header, broker string, attempt int) (err error, store bool)
	// hung are brokers that take batches and answer nothing until it is closed; then
	// they have stored them. Not to be changed while batches are under way.
	hung   map[string]chan struct{}
	toHung int // batches
}

func newFake(t *testing.T) *fake {
	f := &fake{t: t, stored: make(map[allocate.Queue][]string), seqs: make(map[string]int64), delay: time.Millisecond}
	t.Cleanup(f.wg.Wait)
	return f
}

// setRoute says which brokers host topic T with how many queues; the order of
// brokers varies.
func (f *fake) setRoute(queues int32, brokers ...string) {
	const topic = "T"
	f.mu.Lock()
	defer f.mu.Unlock()
	t := route.Topic{Name: topic}
	for _, b := range brokers {
		t.Hosts = append(t.Hosts, route.Host{
			Broker: route.Broker{Name: b, Address: b + ":1"},
			Config: route.Config{Topic: topic, ReadQueues: queues, WriteQueues: queues, Readable: true, Writable: true},
		})
	}
	rand.Shuffle(len(t.Hosts), func(i, j int) { t.Hosts[i], t.Hosts[j] = t.Hosts[j], t.Hosts[i] })
	f.route = slices.DeleteFunc(f.route, func(r route.Topic) bool { return r.Name == topic })
	f.route = append(f.route, t)
	for _, w := range f.watches {
		w.changed()
	}
}

type fakeWatch struct {
	f       *fake
	changed func()
}

func (f *fake) Watch(changed func()) client.Watch {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &fakeWatch{f, changed}
	f.watches = append(f.watches, w)
	return w
}

func (w *fakeWatch) SetTopics([]string) { w.changed() }
func (w *fakeWatch) Refresh()           {}
func (w *fakeWatch) Ready() error       { return nil }
func (w *fakeWatch) Close()             {}

func (w *fakeWatch) Routes() []route.Topic {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	return slices.Clone(w.f.route)
}

func (f *fake) Close() {}

func (f *fake) Produce(c *client.ProduceCall) {
	b := slices.Clone(c.Batch)
	f.wg.Go(func() { // ends with the call
		if thaw := f.hung[c.Broker]; thaw != nil {
			select {
			case <-thaw:
			case <-time.After(c.Timeout):
				f.mu.Lock()
				f.toHung++
				f.mu.Unlock()
				f.wg.Go(func() { // ends with the test
					<-thaw
					_, _ = f.store(c.Broker, b)
				})
				c.Done(client.ProduceResult{}, fmt.Errorf("no answer within %v: %w", c.Timeout, context.DeadlineExceeded))
				return
			}
		}
		time.Sleep(f.delay)
		c.Done(f.store(c.Broker, b))
	})
}

func (f *fake) store(broker string, b []byte) (client.ProduceResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h, err := batch.Parse(b)
	if err == nil {
		err = batch.VerifyBody(b, &h)
	}
	if err != nil {
		f.t.Errorf("batch sent to %s: %v", broker, err)
		return client.ProduceResult{}, err
	}
	f.sent = append(f.sent, broker)
	if f.answer != nil {
		var keep bool
		if err, keep = f.answer(h, broker, len(f.sent)); err != nil && !keep {
			return client.ProduceResult{}, err
		}
	}
	q := allocate.Queue{Topic: string(h.Topic), Broker: broker, ID: h.Queue}
	key := fmt.Sprint(q, h.ProducerID, h.BaseSequence, h.Count)
	offset, dup := f.seqs[key]
	if !dup {
		offset = int64(len(f.stored[q]))
		f.seqs[key] = offset
		var d batch.Decoder
		it, e := d.Open(&h, nil)
		if e != nil {
			f.t.Error(e)
		}
		var r batch.Record
		for {
			more, e := it.Next(&r)
			if e != nil {
				f.t.Error(e)
			}
			if !more {
				break
			}
			f.stored[q] = append(f.stored[q], string(r.Value))
		}
	}
	return client.ProduceResult{Offset: offset, StoreTime: time.Now(), Duplicate: dup}, err
}

// all returns every stored body, sorted.
func (f *fake) all() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, s := range f.stored {
		out = append(out, s...)
	}
	slices.Sort(out)
	return out
}
