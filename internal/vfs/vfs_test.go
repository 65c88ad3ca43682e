package vfs_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/tacitmq/tacit/internal/vfs"
)

func create(t *testing.T, fs vfs.FS, name, content string) vfs.File {
	t.Helper()
	f, err := fs.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte(content), 0); err != nil {
		t.Fatal(err)
	}
	return f
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, fs vfs.FS, name string) (string, bool) {
	t.Helper()
	f, err := fs.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return "", false
	}
	must(t, err)
	defer f.Close()
	n, err := f.Size()
	must(t, err)
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return string(b), true
}

func TestFileSystemsAgree(t *testing.T) {
	for name, fs := range map[string]vfs.FS{"os": vfs.OS{}, "mem": vfs.NewMem(), "inject": &vfs.Inject{FS: vfs.NewMem(), Fail: func(vfs.Op, string) (int, error) { return 0, nil }}} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.ToSlash(filepath.Join(t.TempDir(), "a", "b"))
			must(t, fs.MkdirAll(dir))
			f := create(t, fs, dir+"/x", "hello")
			if _, err := f.WriteAt([]byte("!"), 7); err != nil {
				t.Fatal(err)
			}
			if n, err := f.ReadAt(nil, 8); n != 0 || err != nil {
				t.Errorf("no bytes at the end: %d %v", n, err)
			}
			f.Prefetch(0, 5)
			must(t, f.Sync())
			must(t, f.Truncate(9))
			must(t, f.Close())
			must(t, fs.Rename(dir+"/x", dir+"/y"))
			create(t, fs, dir+"/x", "new").Close()
			must(t, fs.SyncDir(dir))
			if s, _ := content(t, fs, dir+"/y"); s != "hello\x00\x00!\x00" {
				t.Fatalf("%q", s)
			}
			names, err := fs.List(dir)
			if err != nil || len(names) != 2 || names[0] != "x" || names[1] != "y" {
				t.Fatal(names, err)
			}
			must(t, fs.Remove(dir+"/x"))
			if err := fs.Remove(dir + "/x"); !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			if _, ok := content(t, fs, dir+"/x"); ok {
				t.Fatal("still there")
			}
			l, err := fs.Lock(dir + "/LOCK")
			must(t, err)
			if _, err := fs.Lock(dir + "/LOCK"); !errors.Is(err, vfs.ErrLocked) {
				t.Fatal(err)
			}
			must(t, l.Close())
			l, err = fs.Lock(dir + "/LOCK")
			must(t, err)
			must(t, l.Close())
			if n, err := fs.Free(dir); err != nil || n <= 0 {
				t.Fatal(n, err)
			}
		})
	}
}

func TestPowerCutKeepsWhatWasSyncedAndForgetsTheRestSometimes(t *testing.T) {
	lost, kept := 0, 0
	for seed := range uint64(200) {
		m := vfs.NewMem()
		f := create(t, m, "d/safe", "durable")
		must(t, f.Sync())
		must(t, m.SyncDir("d"))
		if _, err := f.WriteAt(bytes.Repeat([]byte("x"), 2000), 7); err != nil {
			t.Fatal(err)
		}
		g := create(t, m, "d/new", "content") // its name is not synced
		must(t, g.Sync())
		after := m.PowerCut(rand.New(rand.NewPCG(seed, 0)))
		s, ok := content(t, after, "d/safe")
		if !ok || len(s) < 7 || s[:7] != "durable" || len(s) > 2007 {
			t.Fatalf("seed %d: %q", seed, s)
		}
		if len(s) == 2007 && !bytes.Contains([]byte(s), []byte{0}) {
			kept++
		} else {
			lost++
		}
		if s, ok := content(t, after, "d/new"); ok && s != "content" {
			t.Fatalf("seed %d: synced content is %q", seed, s)
		}
		if s, _ := content(t, m, "d/safe"); len(s) != 2007 {
			t.Fatal("the power cut changed the file system it was taken of")
		}
	}
	if lost < 20 || kept < 20 {
		t.Fatalf("%d lost, %d kept", lost, kept)
	}
}

func TestEqualSeedsGiveEqualPowerCuts(t *testing.T) {
	m := vfs.NewMem()
	for _, name := range []string{"d/a", "d/b", "d/c"} {
		create(t, m, name, string(bytes.Repeat([]byte(name), 1000)))
		must(t, m.SyncDir("d"))
	}
	for seed := range uint64(20) {
		one := m.PowerCut(rand.New(rand.NewPCG(seed, 0)))
		two := m.PowerCut(rand.New(rand.NewPCG(seed, 0)))
		for _, name := range []string{"d/a", "d/b", "d/c"} {
			a, _ := content(t, one, name)
			if b, _ := content(t, two, name); a != b {
				t.Fatalf("seed %d: %s differs", seed, name)
			}
		}
	}
}

func TestFullDiskTakesWhatFits(t *testing.T) {
	m := vfs.NewMem()
	m.SetLimit(10)
	f, err := m.Create("d/x")
	must(t, err)
	n, err := f.WriteAt([]byte("0123456789abc"), 0)
	if n != 10 || !vfs.IsFull(err) {
		t.Fatal(n, err)
	}
	if _, err := f.WriteAt([]byte("xx"), 3); err != nil {
		t.Fatal("overwriting needs no space:", err)
	}
	if free, _ := m.Free("d"); free != 0 {
		t.Fatal(free)
	}
}

func TestInjectedErrorsCutWritesShort(t *testing.T) {
	errDisk := errors.New("input/output error")
	m := vfs.NewMem()
	fs := &vfs.Inject{FS: m, Fail: func(op vfs.Op, _ string) (int, error) {
		if op == vfs.OpWrite {
			return 3, errDisk
		}
		return 0, nil
	}}
	f, err := fs.Create("d/x")
	must(t, err)
	if n, err := f.WriteAt([]byte("0123456"), 0); n != 3 || !errors.Is(err, errDisk) {
		t.Fatal(n, err)
	}
	if s, _ := content(t, m, "d/x"); s != "012" {
		t.Fatalf("%q", s)
	}
}

func TestFailedSyncForgetsWhatWasToBeSynced(t *testing.T) {
	errDisk := errors.New("input/output error")
	m := vfs.NewMem()
	fail := true
	fs := &vfs.Inject{FS: m, Fail: func(op vfs.Op, _ string) (int, error) {
		if op == vfs.OpSync && fail {
			return 0, errDisk
		}
		return 0, nil
	}}
	f, err := fs.Create("d/x")
	must(t, err)
	must(t, fs.SyncDir("d"))
	_, err = f.WriteAt([]byte("lost"), 0)
	must(t, err)
	if err := f.Sync(); !errors.Is(err, errDisk) {
		t.Fatal(err)
	}
	fail = false
	must(t, f.Sync())
	if s, _ := content(t, m, "d/x"); s != "lost" {
		t.Fatalf("%q can be read", s)
	}
	if s, ok := content(t, m.PowerCut(rand.New(rand.NewPCG(1, 1))), "d/x"); !ok || bytes.Contains([]byte(s), []byte("lost")) {
		t.Fatalf("%q %v", s, ok)
	}
}
