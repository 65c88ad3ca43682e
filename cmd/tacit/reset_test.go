package main

import (
	"errors"
	"testing"

	"github.com/tacitmq/tacit/internal/admin"
)

// "executed" is what the exit code says: all of it was carried out.
func TestResetIsExecutedOnlyIfAllOfItIs(t *testing.T) {
	failed := []admin.Failure{{Server: "b", Reason: "does not answer"}}
	for _, c := range []struct {
		execute  bool
		failures []admin.Failure
		err      error
		want     bool
	}{
		{true, nil, nil, true},
		{false, nil, nil, false},
		{true, failed, nil, false},
		{true, nil, errors.New("refused"), false},
	} {
		r := admin.Reset{Group: "g", Execute: c.execute}
		if got := newResetResult(&r, nil, c.failures, c.err); got.Executed != c.want || got.Changes == nil || got.Failures == nil {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}
