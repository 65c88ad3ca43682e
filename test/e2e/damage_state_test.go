//go:build e2e && unix

package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer"
)

// progress stores the progress of a group that has read everything, queue by
// queue, and returns it.
func (s *stored) progress(store bool) map[allocate.Queue]int64 {
	t := s.t
	t.Helper()
	c, err := consumer.NewLitePull(s.names, "marks", consumer.WithAutoCommit(false))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), flowLimit)
	defer cancel()
	defer func() {
		if err := c.Close(ctx); err != nil {
			t.Errorf("close reader: %v", err)
		}
	}()
	if err := c.Assign(s.queues...); err != nil {
		t.Fatal(err)
	}
	if store {
		for _, q := range s.queues {
			if err := c.Seek(q, 0); err != nil {
				t.Fatal(err)
			}
		}
		want := ends(s.acked)
		for read := newShelf(t); ; {
			if ok, _ := read.reached(want)(); ok {
				break
			}
			msgs, err := c.Poll(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range msgs {
				read.put(m)
			}
			if err := c.Commit(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	out := make(map[allocate.Queue]int64)
	for _, q := range s.queues {
		await(t, startLimit, fmt.Sprintf("the progress of %v", q), func() (bool, string) {
			offset, ok, err := c.Committed(ctx, q)
			if err != nil {
				return false, err.Error() // it may not know its broker yet
			}
			if ok {
				out[q] = offset
			}
			return true, ""
		})
	}
	return out
}

// A bit flipped anywhere in the state of a broker loses no message. Either it
// does no harm, or an older copy is opened and that is reported, or the broker
// refuses to start and says why. Progress never goes back silently.
func TestDamageFlippedBitInTheState(t *testing.T) {
	chance := seeded(t)
	for _, kill := range []bool{true, false} {
		s := fill(t, kill)
		s.restore()
		s.b.start()
		s.c.awaitBrokers(1)
		before := s.progress(true)
		if want := ends(s.acked); len(before) != len(want) {
			t.Fatalf("progress %v, want %v", before, want)
		}
		s.end(kill)
		if err := os.RemoveAll(s.pristine); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(s.pristine, os.DirFS(s.c.dataDir("broker-a"))); err != nil {
			t.Fatal(err)
		}
		files := s.stateFiles()
		for range number(t, "E2E_DAMAGES", 4) {
			s.restore()
			name := files[chance.IntN(len(files))]
			info, err := os.Stat(filepath.Join(s.pristine, name))
			if err != nil {
				t.Fatal(err)
			}
			at, bit := chance.Int64N(info.Size()), chance.IntN(8)
			s.flip(filepath.Join("..", name), at, bit)
			s.startDamaged(fmt.Sprintf("bit %d of byte %d of %s (%d bytes), killed %v", bit, at, name, info.Size(), kill), before)
		}
		s.c.names.proc.stop(stopLimit)
	}
}

// stateFiles lists the files of the live state that are not empty.
func (s *stored) stateFiles() (out []string) {
	err := filepath.WalkDir(filepath.Join(s.pristine, "state"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Size() > 0 {
			name, rel := filepath.Rel(s.pristine, path)
			out, err = append(out, name), rel
		}
		return err
	})
	if err != nil || len(out) == 0 {
		s.t.Fatalf("no files of the state: %v", err)
	}
	slices.Sort(out)
	return out
}

// startDamaged starts the broker on a damaged state.
func (s *stored) startDamaged(what string, before map[allocate.Queue]int64) {
	t := s.t
	t.Helper()
	s.b.proc = start(t, "broker-a", "broker", append([]string{"--listen", s.b.address, "--advertise", s.b.address}, s.b.args...)...)
	serves := false
	await(t, startLimit, "the broker to serve or to refuse", func() (bool, string) {
		_, serves = s.b.proc.log.find(s.b.serves)
		return serves || !s.b.proc.running(), "neither"
	})
	if !serves {
		said, ok := s.b.proc.log.find("broker: open data directory: state is lost: " + filepath.Join(s.c.dataDir("broker-a"), "state"))
		if code := s.b.proc.state.ExitCode(); code != 1 || !ok {
			t.Errorf("%s: it ended with %d: %s", what, code, s.b.proc.log.last(20))
		}
		t.Logf("%s: refused: %s", what, said)
		return
	}
	s.c.awaitBrokers(1)
	begun := time.Now()
	r := newShelf(t)
	r.read(s.names, s.queues, func() (bool, string) {
		m := r.missing(s.acked)
		return len(m) == 0, fmt.Sprintf("%s: %d messages are not served", what, len(m))
	})
	after, found := s.progress(false), s.findings()
	s.b.proc.kill()
	back := 0
	for q, offset := range before {
		if after[q] > offset {
			t.Errorf("%s: progress of %v is %d, was %d", what, q, after[q], offset)
		}
		if after[q] < offset {
			back++
		}
	}
	if back > 0 && len(found) == 0 {
		t.Errorf("%s: progress of %d queues went back and nothing was reported: %v, was %v", what, back, after, before)
	}
	t.Logf("%s: all messages served in %v, progress of %d queues is older; reported: %v", what, time.Since(begun).Round(time.Millisecond), back, found)
}
