//go:build unix

package accept

import (
	"errors"
	"syscall"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// The operator is told which limit to raise, and how high it is.
func TestLackOfFilesIsSaidWithTheLimit(t *testing.T) {
	var has syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &has); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{noFiles(), failed(syscall.ENFILE)} {
		core, logs := observer.New(zap.InfoLevel)
		l := Logged(&scripted{err: err}, zap.New(core))
		if _, got := l.Accept(); got == nil {
			t.Fatal("accepted")
		}
		all := logs.TakeAll()
		if len(all) != 1 {
			t.Fatalf("said %v", all)
		}
		said, ok := all[0].ContextMap()["open_files_limit"]
		if full := errors.Is(err, syscall.EMFILE); ok != full || full && said != uint64(has.Cur) {
			t.Errorf("%v: said %v, the limit is %d", err, said, has.Cur)
		}
	}
}
