package routes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// A client lets go of a name server that left its list, though it still runs.
func TestF_NSV_01_RemovedNameServerIsLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		for _, a := range []string{"n1:1", "n2:1", "n3:1", "n4:1"} {
			n.server(a)
		}
		source := &changing{now: []string{"n1:1", "n2:1"}}
		// b1 is registered with n1 for ever, as ageing data are.
		n.broker("b1", Static("n1:1"), "t")
		n.broker("b2", source, "t")
		w, _ := run(t, n, source)
		w.SetTopics("t")
		time.Sleep(15 * time.Second)
		if got := hosts(w, "t"); got != "b1,b2" {
			t.Fatalf("hosts %s", got)
		}
		before := n.connections("n1:1")
		source.set(nil, "n3:1", "n4:1")
		time.Sleep(15 * time.Second)
		if got := hosts(w, "t"); got != "b2" {
			t.Errorf("hosts %s, want b2 of the new name servers", got)
		}
		if n.connections("n3:1") != 2 || n.connections("n4:1") != 2 {
			t.Errorf("%d connections to n3, %d to n4, want 2 and 2", n.connections("n3:1"), n.connections("n4:1"))
		}
		if got := n.connections("n1:1"); got != before-2 { // the watcher's and b2's
			t.Errorf("%d connections to n1, before %d", got, before)
		}
	})
}

// A name server added to the list at run time is used by brokers and clients without a restart, so the old one may go.
func TestF_NSV_06_AddedNameServerIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		stop := n.server("n1:1")
		name := filepath.Join(t.TempDir(), "nameservers")
		write := func(text string) {
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("n1:1\n")
		source := File(name)
		b := n.broker("b1", source, "t")
		w, _ := run(t, n, source)
		w.SetTopics("t", "u")
		time.Sleep(15 * time.Second)
		n.server("n2:1")
		write("# two now\nn1:1, n2:1\n")
		time.Sleep(15 * time.Second)
		stop()
		time.Sleep(15 * time.Second)
		b.set("t", "u")
		time.Sleep(2 * time.Second)
		if got := hosts(w, "t") + " " + hosts(w, "u"); got != "b1 b1" {
			t.Errorf("hosts %s", got)
		}
	})
}

// The list shrinks to one, to nothing and grows again under load: no panic, and an empty list is an error that keeps the last one.
func TestF_NSV_07_ListShrinksAndGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		for _, a := range []string{"n1:1", "n2:1", "n3:1"} {
			n.server(a)
		}
		source := &changing{now: []string{"n1:1", "n2:1", "n3:1"}}
		core, logs := observer.New(zap.WarnLevel)
		n.broker("b1", Static("n1:1", "n2:1", "n3:1"), "t")
		w, _ := run(t, n, source, WithLogger(zap.New(core)))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		for range 4 {
			wg.Go(func() {
				for sleep(ctx, 10*time.Millisecond) {
					w.Refresh()
					if _, err := w.Wait(ctx, "t"); err != nil && ctx.Err() == nil {
						t.Errorf("wait: %v", err)
					}
				}
			})
		}
		for _, addresses := range [][]string{{"n3:1"}, {}, {"n1:1", "n2:1"}} {
			source.set(nil, addresses...)
			time.Sleep(5 * time.Second)
			if got := hosts(w, "t"); got != "b1" {
				t.Errorf("list %v: hosts %s", addresses, got)
			}
		}
		if n := logs.FilterMessage("keep the last list of name servers").Len(); n != 1 {
			t.Errorf("the empty list is logged %d times", n)
		}
	})
	if _, err := Static().Addresses(t.Context()); !errors.Is(err, ErrNoAddresses) {
		t.Errorf("no addresses: %v", err)
	}
	if _, err := Parse(" , "); !errors.Is(err, ErrNoAddresses) {
		t.Errorf("no addresses: %v", err)
	}
}

// Each attempt asks for the name anew and gets the address it has then.
func TestF_NSV_08_NameIsResolvedAtEveryAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		stop := n.server("live:1")
		n.broker("b1", Static("live:1"), "t")
		at := &changing{now: []string{"dead:1", "live:1"}} // what the name resolves to
		dial := func(ctx context.Context, address string) (net.Conn, error) {
			if address != "ns.example:1" {
				return nil, fmt.Errorf("dialled %s", address)
			}
			all, _ := at.Addresses(ctx)
			var errs []error
			for _, a := range all {
				conn, err := n.dial(ctx, a)
				if err == nil {
					return conn, nil
				}
				errs = append(errs, err)
			}
			return nil, errors.Join(errs...)
		}
		w := New(Static("ns.example:1"), WithDialer(dial))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }() // ended below
		w.SetTopics("t", "u")
		time.Sleep(2 * time.Second)
		if got := hosts(w, "t"); got != "b1" {
			t.Errorf("hosts %s", got)
		}
		stop()
		n.server("other:1")
		n.broker("b2", Static("other:1"), "u")
		at.set(nil, "other:1")
		time.Sleep(2*dialTimeout + 2*time.Second)
		if got := hosts(w, "u"); got != "b2" {
			t.Errorf("after the move: hosts %s", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A list service that answers with errors and pages leaves the last good list in use.
func TestF_NSV_09_ErrorPageIsNoList(t *testing.T) {
	answers := []struct {
		code int
		body string
		good bool
	}{
		{200, "n1:1\nn2:1\n", true},
		{500, "n9:1\n", false},
		{404, "not found", false},
		{200, "", false},
		{200, "<html><body>Welcome: please log in</body></html>", false},
		{200, "<!-- n9:1 -->", false},
		{200, "n1:1;n3:1", true},
	}
	i := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(answers[i].code)
		_, _ = w.Write([]byte(answers[i].body))
	}))
	defer srv.Close()
	source, err := Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	for ; i < len(answers); i++ {
		got, err := source.Addresses(t.Context())
		if (err == nil) != answers[i].good || (err == nil) != (len(got) == 2) {
			t.Errorf("answer %d %q: got %v, %v", answers[i].code, answers[i].body, got, err)
		}
	}
	// What Each does with such errors is the same for every source.
	synctest.Test(t, func(t *testing.T) {
		source := &changing{now: []string{"n1:1"}}
		core, logs := observer.New(zap.WarnLevel)
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		running := map[string]bool{}
		done := make(chan struct{})
		go func() { // ended by cancel below
			defer close(done)
			Each(ctx, source, time.Second, zap.New(core), func(ctx context.Context, address string) {
				mu.Lock()
				running[address] = true
				mu.Unlock()
				<-ctx.Done()
				mu.Lock()
				delete(running, address)
				mu.Unlock()
			})
		}()
		expect := func(want ...string) {
			t.Helper()
			time.Sleep(3 * time.Second)
			mu.Lock()
			defer mu.Unlock()
			got := map[string]bool{}
			for _, a := range want {
				got[a] = true
			}
			if !reflect.DeepEqual(running, got) {
				t.Errorf("running %v, want %v", running, want)
			}
		}
		expect("n1:1")
		source.set(errors.New("answered 500"))
		expect("n1:1")
		source.set(nil, "n2:1", "n1:1")
		expect("n1:1", "n2:1")
		source.set(nil, "n2:1")
		expect("n2:1")
		cancel()
		<-done
		if logs.Len() != 1 {
			t.Errorf("logged %v", logs.All())
		}
	})
}

func TestListsAreReadAsPeopleWriteThem(t *testing.T) {
	got, err := parseList("# name servers\r\n n1:1, n2:1;n3:1\n\n  # old: n9:1\nn1:1\n[::1]:9876")
	if want := []string{"n1:1", "n2:1", "n3:1", "[::1]:9876"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"n1", "n1:1 n2", "http//x:1", strings.Repeat("n1:1\n", maxList)} {
		if got, err := parseList(bad); err == nil {
			t.Errorf("%.20q is read as %.3v", bad, got)
		}
	}
	if _, err := File(filepath.Join(t.TempDir(), "none")).Addresses(t.Context()); err == nil {
		t.Error("a missing file is a list")
	}
	if source, err := ParseAll([]string{"n1:1", "n2:1"}); err != nil || !reflect.DeepEqual(source, Static("n1:1", "n2:1")) {
		t.Errorf("got %v, %v", source, err)
	}
}
