package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tacitmq/tacit/message"
)

// Exit code 0 says that every message is stored: one that was stopped before has
// not even sent them all.
func TestStopBeforeTheEndOfTheInputIsAnError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for generate, stopped := range map[int]bool{0: true, 5: true, -1: false} {
		s := &settings{file: "-", generate: generate, size: 1}
		in, err := s.open(strings.NewReader("one\ntwo\n"))
		if err != nil {
			t.Fatal(err)
		}
		w := &sender{s: s}
		if err := w.send(ctx, in); (err != nil) != stopped {
			t.Errorf("generate %d: %v", generate, err)
		}
	}
}

// A broker that does not answer must not keep a producer that was told to stop,
// whatever --timeout is, and the messages in question are told of.
func TestStopWaitsAFewSecondsForWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		began := time.Now()
		last, cancel := closing(ctx, time.Minute)
		defer cancel()
		time.AfterFunc(10*time.Second, stop)
		<-last.Done()
		if took := time.Since(began); took != 10*time.Second+stopLimit || !errors.Is(context.Cause(last), errStopped) {
			t.Errorf("ends after %v: %v", took, context.Cause(last))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		last, cancel := closing(t.Context(), time.Minute)
		defer cancel()
		<-last.Done()
		if took := time.Since(began); took != time.Minute || errors.Is(context.Cause(last), errStopped) {
			t.Errorf("ends after %v: %v", took, context.Cause(last))
		}
	})
}

func TestLineThatIsTooLongIsToldWithTheLimit(t *testing.T) {
	s := &settings{file: "-"}
	in, err := s.open(strings.NewReader("one\n" + strings.Repeat("x", message.MaxBodyBytes+1)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.next(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.next(); err == nil || !strings.Contains(err.Error(), "line 2: has more than 4.0MiB") {
		t.Error(err)
	}
}
