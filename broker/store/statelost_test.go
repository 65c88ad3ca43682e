package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	pebblefs "github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/vfs"
)

// killedState returns a directory as kill -9 leaves it after some commits: the
// offset of group G is last. There is a copy of the state in which it is saved, if
// that is not 0.
func killedState(t *testing.T, saved, last int64) string {
	t.Helper()
	dir, killed := filepath.Join(t.TempDir(), "live"), filepath.Join(t.TempDir(), "killed")
	s := open(t, dir, store.Options{})
	defer func() { closeStore(t, s) }()
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	for i := int64(1); i <= last; i++ {
		if i == saved+1 && saved > 0 {
			closeStore(t, s)
			s = open(t, dir, store.Options{})
		}
		appendBodies(t, s, q, "x")
		if err := s.State().CommitOffset(ctx, "G", q, i); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(killed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return killed
}

// stateLog returns Pebble's newest log, and where its contents end.
func stateLog(t *testing.T, dir string) (name string, b []byte, end int) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "state", "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatal("no log", err)
	}
	name = slices.Max(logs)
	b, err = os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return name, b, len(bytes.TrimRight(b, "\x00"))
}

// Rule: stored offsets never go back silently. Damage in the state's own log that
// looks like an unfinished write is found by the number of the last update that was
// acknowledged: the store refuses to open, names the flag, and opens with what is
// left if that is accepted.
func TestF_STO_01_LossOfAcknowledgedUpdatesIsRefusedUnlessAccepted(t *testing.T) {
	const last = 20
	q := store.Queue{Topic: "T"}
	pristine := killedState(t, 0, last)
	_, whole, end := stateLog(t, pristine)
	refused := 0
	for at := 0; at < end; at += 1 + end/12 {
		dir := filepath.Join(t.TempDir(), "d")
		if err := os.CopyFS(dir, os.DirFS(pristine)); err != nil {
			t.Fatal(err)
		}
		name, _, _ := stateLog(t, dir)
		b := slices.Clone(whole)
		b[at] ^= 1 << (at % 8)
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		what := fmt.Sprintf("bit of byte %d of %d", at, end)
		ev := &events{}
		s, err := store.Open(dir, store.Options{Report: ev.report})
		if err == nil {
			if o, ok := s.State().Offset("G", q); !ok || o != last {
				t.Errorf("%s: the offset is %d %v, and nothing was said: %+v", what, o, ok, ev.all)
			}
			closeStore(t, s)
			continue
		}
		refused++
		if !errors.Is(err, store.ErrStateLost) || !strings.Contains(err.Error(), "accept-state-loss") || strings.Count(err.Error(), "\n") > 1 {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := store.Open(dir, store.Options{}); !errors.Is(err, store.ErrStateLost) {
			t.Errorf("%s: refused once, then: %v", what, err)
		}
		s = open(t, dir, store.Options{AcceptStateLoss: true, Report: ev.report})
		o, _ := s.State().Offset("G", q)
		if o >= last || len(ev.of(store.StateLost)) == 0 {
			t.Errorf("%s: accepted, the offset is %d: %+v", what, o, ev.all)
		}
		if n := len(readAll(t, s, q, 0)); n != last {
			t.Errorf("%s: %d messages", what, n)
		}
		if err := s.State().CommitOffset(ctx, "G", q, last); err != nil {
			t.Error(err)
		}
		closeStore(t, s)
		s = open(t, dir, store.Options{}) // what was accepted is not asked again
		if o, _ := s.State().Offset("G", q); o != last {
			t.Errorf("%s: the offset is %d after all", what, o)
		}
		closeStore(t, s)
	}
	if refused == 0 {
		t.Fatal("no damage was found")
	}
}

// A state that does not open at all is replaced by the newest copy, and what that
// lacks is said; a state that does, but lacks more than a copy, too, if that is
// accepted.
func TestWhatACopyLacksIsSaid(t *testing.T) {
	q := store.Queue{Topic: "T"}
	for _, file := range []string{"MANIFEST-*", "*.log"} {
		dir := killedState(t, 5, 9)
		names, err := filepath.Glob(filepath.Join(dir, "state", file))
		if err != nil || len(names) == 0 {
			t.Fatal("no such file", err)
		}
		for _, name := range names {
			if err := os.Truncate(name, 0); err != nil {
				t.Fatal(err)
			}
		}
		ev := &events{}
		if file == "*.log" {
			refused(t, dir)
		}
		s := open(t, dir, store.Options{Report: ev.report, AcceptStateLoss: file == "*.log"})
		if o, ok := s.State().Offset("G", q); !ok || o != 5 {
			t.Fatalf("%s: the offset is %d %v", file, o, ok)
		}
		said := slices.Concat(ev.of(store.StateRestored), ev.of(store.StateLost))
		if len(said) != 1 || !strings.Contains(said[0].Detail, "which were acknowledged, are lost") {
			t.Fatalf("%s: %+v", file, ev.all)
		}
		closeStore(t, s)
		ev = &events{}
		s = open(t, dir, store.Options{Report: ev.report})
		closeStore(t, s)
		if len(ev.all) > 0 {
			t.Fatalf("%s: again: %+v", file, ev.all)
		}
	}
}

// A damaged number of the last update harms nothing: the state opens, and that it
// cannot be checked is said.
func TestDamagedNumberOfTheLastUpdateIsSaid(t *testing.T) {
	dir := killedState(t, 0, 4)
	name := filepath.Join(dir, "state.acked")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, spoiled := range [][]byte{b[:7], make([]byte, len(b)), b[4:]} {
		if err := os.WriteFile(name, spoiled, 0o600); err != nil {
			t.Fatal(err)
		}
		ev := &events{}
		s := open(t, dir, store.Options{Report: ev.report})
		if o, ok := s.State().Offset("G", store.Queue{Topic: "T"}); !ok || o != 4 {
			t.Fatalf("the offset is %d %v", o, ok)
		}
		closeStore(t, s)
		if bad := ev.of(store.Damaged); len(bad) != 1 || bad[0].File != name {
			t.Fatalf("%+v", ev.all)
		}
	}
}

// A state that is opened again while the store runs, and lacks acknowledged updates
// then, takes no more of them.
func TestReopenedStateThatLostUpdatesIsNotUsed(t *testing.T) {
	d, ev := memDisks(), &events{}
	mem := d.state
	var full atomic.Bool
	d.state = errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return vfs.ErrFull
		}
		return nil
	}))
	s := open(t, "d", d.options(ev))
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	appendBodies(t, s, q, "a", "b", "c")
	if err := s.State().CommitOffset(ctx, "G", q, 2); err != nil {
		t.Fatal(err)
	}
	full.Store(true)
	if err := s.State().CommitOffset(ctx, "G", q, 3); !errors.Is(err, store.ErrNoSpace) {
		t.Fatal(err)
	}
	full.Store(false)
	names, err := mem.List("d/state")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".log") {
			f, err := mem.Create("d/state/"+name, pebblefs.WriteCategoryUnspecified)
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2 {
		store.Mend(s)
		if err := s.State().CommitOffset(ctx, "G", q, 3); !errors.Is(err, store.ErrStateLost) {
			t.Fatalf("%v", err)
		}
		if o, ok := s.State().Offset("G", q); !ok || o != 2 {
			t.Fatalf("the offset is %d %v", o, ok)
		}
	}
	appendBodies(t, s, q, "the log goes on")
	_ = s.Close() // the state has nothing to close
	if s, err := store.Open("d", d.options(ev)); !errors.Is(err, store.ErrStateLost) {
		closeStore(t, s)
		t.Fatal("opened", err)
	}
}

// A state that cannot be written when it is opened is opened as soon as it can be,
// and that is said meanwhile.
func TestStateThatCannotBeWrittenAtFirstIsOpenedLater(t *testing.T) {
	d, ev := memDisks(), &events{}
	s := open(t, "d", d.options(ev))
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	appendBodies(t, s, q, "a", "b", "c")
	if err := s.State().CommitOffset(ctx, "G", q, 2); err != nil {
		t.Fatal(err)
	}
	killed := disks{d.log.(*vfs.Mem).Kill(), d.state.(*pebblefs.MemFS).CrashClone(pebblefs.CrashCloneCfg{})}
	closeStore(t, s)
	var refused atomic.Int64
	killed.state = errorfs.Wrap(killed.state, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if strings.HasSuffix(op.Path, ".sst") && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && refused.Add(1) < 4 {
			return vfs.ErrFull
		}
		return nil
	}))
	s = open(t, "d", killed.options(ev))
	if o, ok := s.State().Offset("G", q); !ok || o != 2 {
		t.Fatalf("the offset is %d %v", o, ok)
	}
	closeStore(t, s)
	if said := ev.of(store.WriteFailed); refused.Load() < 4 || len(said) != 1 || !errors.Is(said[0].Err, vfs.ErrFull) {
		t.Fatalf("refused %d times: %+v", refused.Load(), ev.all)
	}
}

// Rule: a state that is gone while messages are there is refused, and the error says
// what is missing and what can be done.
func TestF_STO_01_LostStateDirectoryIsRefusedWithWhatToDo(t *testing.T) {
	for _, acked := range []bool{false, true} {
		dir := killedState(t, 3, 20)
		gone, err := filepath.Glob(filepath.Join(dir, "state*"))
		if err != nil || len(gone) < 3 {
			t.Fatal(gone, err)
		}
		for _, name := range gone {
			if acked && strings.HasSuffix(name, "state.acked") {
				continue
			}
			if err := os.RemoveAll(name); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 { // also when it is tried again
			_, err = store.Open(dir, store.Options{})
			if !errors.Is(err, store.ErrStateLost) {
				t.Fatal(err)
			}
			for _, want := range []string{filepath.Join(dir, "state") + " is missing", "no copy", "backup", "--accept-state-loss"} {
				if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
					t.Fatalf("does not say %q: %v", want, err)
				}
			}
		}
		ev := &events{}
		s := open(t, dir, store.Options{AcceptStateLoss: true, Report: ev.report})
		if n := len(readAll(t, s, store.Queue{Topic: "T"}, 0)); n != 20 || len(ev.of(store.StateEmpty)) != 1 {
			t.Fatalf("%d messages, %+v", n, ev.all)
		}
		closeStore(t, s)
	}
}

// A log that is gone while its topics are known is reported, and no offset is given
// out again: groups and readers may be anywhere in it.
func TestLostLogDirectoryIsReportedAndItsOffsetsStayUsed(t *testing.T) {
	dir := killedState(t, 3, 20)
	if err := os.RemoveAll(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	ev := &events{}
	s := open(t, dir, store.Options{Report: ev.report})
	q := store.Queue{Topic: "T"}
	a := appendBodies(t, s, q, "new")
	if bad := ev.of(store.Damaged); len(bad) == 0 || bad[0].File != filepath.Join(dir, "log") || a.Offset <= 20 {
		t.Fatalf("offset %d, %+v", a.Offset, ev.all)
	}
	closeStore(t, s)
	ev = &events{}
	s = open(t, dir, store.Options{Report: ev.report})
	wantBodies(t, readAll(t, s, q, a.Offset), a.Offset, "new")
	closeStore(t, s)
	if len(ev.all) > 0 {
		t.Fatalf("reported again: %+v", ev.all)
	}
}
