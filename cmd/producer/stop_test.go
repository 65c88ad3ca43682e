package main

import (
	"context"
	"strings"
	"testing"
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
