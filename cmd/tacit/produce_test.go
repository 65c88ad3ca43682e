package main

import (
	"context"
	"strings"
	"testing"
)

// Exit code 0 says that every line is stored.
func TestProduceStoppedBeforeTheEndOfStdinIsAnError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&sender{}).lines(ctx, strings.NewReader("one\n")); err == nil || !strings.Contains(err.Error(), "stopped after 0 messages") {
		t.Error(err)
	}
}
