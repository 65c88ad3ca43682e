package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/tacitmq/tacit/message"
)

// largest is a writer that knows the most it was given at once.
type largest struct {
	bytes.Buffer
	most int
}

func (l *largest) Write(b []byte) (int, error) {
	l.most = max(l.most, len(b))
	return l.Buffer.Write(b)
}

// A program that prints without an end takes no more memory than one that prints
// much, and nothing of what it prints is lost.
func TestOutputOfAProgramIsBounded(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("no shell")
	}
	const lines = 500_000
	var out largest
	r := &runner{path: "sh", args: []string{"-c", fmt.Sprint("seq 1 ", lines)}, stdout: &out, stderr: new(bytes.Buffer)}
	if err := r.run(t.Context(), &message.Message{}); err != nil {
		t.Fatal(err)
	}
	if out.most > keptOutput+64<<10 {
		t.Errorf("%d bytes were kept", out.most)
	}
	i := 0
	for line := range strings.Lines(out.String()) {
		if i++; line != fmt.Sprintln(i) {
			t.Fatalf("line %d: %q", i, line)
		}
	}
	if i != lines {
		t.Fatalf("%d lines", i)
	}
}

// What programs print that run at the same time is mixed by lines at most, and not
// at all where it is short.
func TestOutputOfProgramsIsNotMixedWithinLines(t *testing.T) {
	var out bytes.Buffer
	var mu sync.Mutex
	var wg sync.WaitGroup
	long := strings.Repeat("x", 1000)
	for p := range 4 {
		wg.Go(func() {
			o := output{to: &out, mu: &mu}
			for i := range 3000 {
				b := fmt.Appendf(nil, "%d %d %s\n", p, i, long)
				for len(b) > 0 { // as pipes do
					n := min(len(b), 300)
					if _, err := o.Write(b[:n]); err != nil {
						t.Error(err)
					}
					b = b[n:]
				}
			}
			if err := o.flush(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var next [4]int
	for line := range strings.Lines(out.String()) {
		var p, i int
		if _, err := fmt.Sscanf(line, "%d %d ", &p, &i); err != nil || p > 3 || i != next[p] || !strings.HasSuffix(line, " "+long+"\n") {
			t.Fatalf("%.40q: %v", line, err)
		}
		next[p]++
	}
	if next != [4]int{3000, 3000, 3000, 3000} {
		t.Fatalf("%v", next)
	}
}
