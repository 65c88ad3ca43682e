package broker

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pebblefs "github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rawcodec"
	"github.com/tacitmq/tacit/internal/vfs"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// hung is a disk whose syncs do not return until it is released.
type hung struct {
	log, state atomic.Bool
	release    chan struct{}
}

func (h *hung) disk(o *store.Options) {
	o.FS = &vfs.Inject{FS: vfs.OS{}, Fail: func(op vfs.Op, _ string) (int, error) {
		if op == vfs.OpSync && h.log.Load() {
			<-h.release
		}
		return 0, nil
	}}
	o.StateFS = errorfs.Wrap(pebblefs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
			if h.state.Load() {
				<-h.release
			}
		default:
		}
		return nil
	}))
}

// A disk that does not answer keeps a broker from closing its store, but not from
// stopping.
func TestStopIsBoundedThoughTheDiskHangs(t *testing.T) {
	for _, name := range []string{"log", "state"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &hung{release: make(chan struct{})}
				lis := bufconn.Listen(1 << 20)
				cfg := testConfig(t.TempDir())
				srv, err := New(cfg, WithListener(lis), WithLogger(zap.NewNop()), func(o *options) { o.disk = h.disk })
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := make(chan error, 1)
				go func() { ended <- srv.Run(ctx) }() // ended by cancel
				e := &env{t: t, srv: srv, lis: lis}
				e.conn = e.dial()
				e.data, e.admin = tacitv1.NewDataServiceClient(e.conn), tacitv1.NewAdminServiceClient(e.conn)
				e.topic("T", 1)
				h.log.Store(name == "log")
				h.state.Store(name == "state")
				info := batch.Info{Topic: "T"}
				if name == "state" {
					info.DueTime = time.Now().Add(time.Hour).UnixMilli()
				}
				p := e.producer()
				for id := range uint64(3) { // one is in the sync, the others wait
					if err := p.s.SendMsg(&rawcodec.ProduceRequest{ID: id, Batch: encodeBatch(t, info, bodies("x")...)}); err != nil {
						t.Fatal(err)
					}
				}
				called, hangUp := context.WithCancel(t.Context())
				defer hangUp()
				go func() { // ended by hangUp at the latest
					_, _ = e.admin.PutTopic(called, &tacitv1.PutTopicRequest{Config: &tacitv1.TopicConfig{Topic: "U", ReadQueues: 1, WriteQueues: 1}})
				}()
				synctest.Wait()
				begun := time.Now()
				cancel()
				select {
				case err := <-ended:
					if took := time.Since(begun); took > cfg.Grace+hangGrace {
						t.Errorf("stopped after %v", took)
					}
					if err == nil || !strings.Contains(err.Error(), "disk does not answer") {
						t.Errorf("stopped with %v", err)
					}
				case <-time.After(time.Hour):
					t.Error("a broker on a hung disk does not stop")
				}
				close(h.release)
				hangUp()
				_ = e.conn.Close()
				synctest.Wait()
			})
		})
	}
}

// However long streams may take to end, a stop is not given up before that.
func TestStopWithTheLongestGraceClosesTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t.TempDir())
		cfg.Grace = math.MaxInt64
		e := start(t, cfg)
		e.topic("T", 1)
		e.stop() // fails the test if there is an error
	})
}

// A disk that hangs makes no error. Whoever looks at the broker is told all the same,
// and told again when it is over.
func TestHungDiskIsSaid(t *testing.T) {
	for _, name := range []string{"log", "state"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &hung{release: make(chan struct{})}
				lis := bufconn.Listen(1 << 20)
				core, logs := observer.New(zap.InfoLevel)
				srv, err := New(testConfig(t.TempDir()), WithListener(lis), WithLogger(zap.New(core)), func(o *options) { o.disk = h.disk })
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := make(chan error, 1)
				go func() { ended <- srv.Run(ctx) }() // ended by cancel
				e := &env{t: t, srv: srv, lis: lis}
				e.conn = e.dial()
				e.data, e.admin = tacitv1.NewDataServiceClient(e.conn), tacitv1.NewAdminServiceClient(e.conn)
				e.topic("T", 1)
				h.log.Store(name == "log")
				h.state.Store(name == "state")
				info := batch.Info{Topic: "T"}
				if name == "state" {
					info.DueTime = time.Now().Add(time.Hour).UnixMilli()
				}
				p := e.producer()
				if err := p.s.SendMsg(&rawcodec.ProduceRequest{ID: 1, Batch: encodeBatch(t, info, bodies("x")...)}); err != nil {
					t.Fatal(err)
				}
				if err := srv.Ready(); err != nil {
					t.Errorf("at once: %v", err)
				}
				time.Sleep(slowDisk + 2*diskEvery)
				if err := srv.Ready(); err == nil || !strings.Contains(err.Error(), "disk does not answer") {
					t.Errorf("after %v: %v", slowDisk, err)
				}
				h.log.Store(false)
				h.state.Store(false)
				close(h.release)
				time.Sleep(2 * diskEvery)
				if err := srv.Ready(); err != nil {
					t.Errorf("once it answers: %v", err)
				}
				for _, want := range []string{"disk does not answer, what is to be stored waits", "disk answers again"} {
					if n := logs.FilterMessage(want).Len(); n != 1 {
						t.Errorf("%q is logged %d times", want, n)
					}
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
				_ = e.conn.Close()
				synctest.Wait()
			})
		})
	}
}

// What is written to a directory that is gone is not kept, so nothing more is taken.
func TestBrokerWhoseDirectoryIsGoneStops(t *testing.T) {
	cfg := testConfig(filepath.Join(t.TempDir(), "data"))
	lis := bufconn.Listen(1 << 20)
	srv, err := New(cfg, WithListener(lis), WithLogger(zap.NewNop()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx) }() // ends by itself
	e := &env{t: t, srv: srv, lis: lis}
	e.conn = e.dial()
	defer e.conn.Close()
	e.admin = tacitv1.NewAdminServiceClient(e.conn)
	e.topic("T", 1) // it serves
	if err := os.RemoveAll(cfg.DataDir); err != nil {
		t.Skip("an open directory cannot be removed here:", err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "removed or replaced while it was in use") || ctx.Err() != nil {
		t.Errorf("ended with %v", err)
	}
}
