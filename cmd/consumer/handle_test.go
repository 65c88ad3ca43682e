package main

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/tacitmq/tacit/message"
)

// What a program leaves running, and what that holds open, says nothing about how
// the program ended.
func TestMessageIsConsumedWhenItsProgramExitsWithZero(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("no shell")
	}
	var out bytes.Buffer
	r := &runner{path: "sh", stdout: &out, stderr: &out}
	for script, fails := range map[string]bool{"echo done; sleep 4 & exit 0": false, "sleep 4 & exit 3": true} {
		r.args = []string{"-c", script}
		if err := r.run(t.Context(), &message.Message{}); (err != nil) != fails {
			t.Errorf("%s: %v", script, err)
		}
	}
	if !strings.Contains(out.String(), "done") {
		t.Errorf("printed %q", out.String())
	}
}
