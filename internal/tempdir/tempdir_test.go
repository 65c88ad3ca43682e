package tempdir

import (
	"os"
	"path/filepath"
	"testing"
)

// temporary makes the directory for temporary files one of the test's.
func temporary(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"TMPDIR", "TMP", "TEMP"} {
		t.Setenv(name, dir)
	}
	return dir
}

func made(t *testing.T, prefix string) *Dir {
	t.Helper()
	d, err := New(prefix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Remove() })
	return d
}

func TestWhatKilledProcessesLeftIsRemovedAndNothingElse(t *testing.T) {
	tmp := temporary(t)
	used := made(t, "tacit-test-")
	killed := made(t, "tacit-test-")
	if err := os.WriteFile(filepath.Join(killed.Path, "data"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := killed.lock.Close(); err != nil { // as the end of its process does
		t.Fatal(err)
	}
	foreign := filepath.Join(tmp, "tacit-test-without-a-lock")
	other := filepath.Join(tmp, "other")
	for _, dir := range []string{foreign, other} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	own := made(t, "tacit-test-")
	if here(killed.Path) {
		t.Error("what was left is still there")
	}
	for _, dir := range []string{used.Path, foreign, other, own.Path} {
		if !here(dir) {
			t.Errorf("%s is gone", dir)
		}
	}
	if err := own.Remove(); err != nil || here(own.Path) {
		t.Errorf("not removed: %v", err)
	}
}
