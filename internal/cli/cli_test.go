package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tacitmq/tacit/message"
)

func TestLinesComeWholeAndInOrder(t *testing.T) {
	var text strings.Builder
	var want []string
	for i := range 100_000 {
		want = append(want, fmt.Sprint(i, strings.Repeat("x", i%50)))
		text.WriteString(want[i] + "\n")
	}
	l := ReadLines(strings.NewReader(text.String() + "no newline"))
	for i, w := range append(want, "no newline") {
		if got, err := l.Next(t.Context()); err != nil || string(got) != w {
			t.Fatalf("line %d: %q %v, want %q", i+1, got, err, w)
		}
	}
	for range 2 {
		if _, err := l.Next(t.Context()); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
}

func TestLineThatIsTooLongIsToldWithTheLimit(t *testing.T) {
	l := ReadLines(strings.NewReader("one\n" + strings.Repeat("x", message.MaxBodyBytes) + "\n" + strings.Repeat("x", message.MaxBodyBytes+1)))
	for i, n := range []int{3, message.MaxBodyBytes} {
		if b, err := l.Next(t.Context()); err != nil || len(b) != n {
			t.Fatal(i, len(b), err)
		}
	}
	if _, err := l.Next(t.Context()); err == nil || !strings.Contains(err.Error(), "line 3: has more than 4.0MiB, which a message may have") {
		t.Error(err)
	}
}

func TestErrorOfReadingNamesTheLine(t *testing.T) {
	l := ReadLines(io.MultiReader(strings.NewReader("one\n"), errReader{}))
	if _, err := l.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Next(t.Context()); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.HasPrefix(err.Error(), "read line 2: ") {
		t.Error(err)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// A line is there as soon as it was written, whatever comes after it, and an input
// that says nothing keeps nobody who is stopped.
func TestInputThatWaitsKeepsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		defer w.Close()
		l := ReadLines(r)
		ctx, stop := context.WithCancel(t.Context())
		go func() { _, _ = w.Write([]byte("one\ntw")) }()
		if b, err := l.Next(ctx); err != nil || string(b) != "one" {
			t.Fatalf("%q %v", b, err)
		}
		began := time.Now()
		time.AfterFunc(time.Second, stop)
		if _, err := l.Next(ctx); !errors.Is(err, ErrStopped) || time.Since(began) != time.Second {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
	})
}

// What was read and not sent yet is not sent after a stop.
func TestStopLeavesWhatWasRead(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	l := ReadLines(strings.NewReader("one\ntwo\n"))
	if _, err := l.Next(ctx); err != nil {
		t.Fatal(err)
	}
	stop()
	if _, err := l.Next(ctx); !errors.Is(err, ErrStopped) {
		t.Fatal(err)
	}
}

// closer is a producer whose messages are never answered.
type closer struct{}

func (closer) Close(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// A broker that does not answer must not keep a producer that was told to stop,
// whatever its timeout is, and the messages in question are told of.
func TestStopWaitsAFewSecondsForWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		began := time.Now()
		time.AfterFunc(10*time.Second, stop)
		err := Close(ctx, closer{}, time.Minute, func() int { return 7 })
		if took := time.Since(began); took != 10*time.Second+StopLimit || !errors.Is(err, ErrStopped) || !strings.Contains(err.Error(), "7 messages are not acknowledged") {
			t.Errorf("ends after %v: %v", took, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := Close(t.Context(), closer{}, time.Minute, func() int { return 7 })
		if took := time.Since(began); took != time.Minute || errors.Is(err, ErrStopped) {
			t.Errorf("ends after %v: %v", took, err)
		}
	})
}
