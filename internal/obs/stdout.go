package obs

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// ErrStdoutClosed is that of a program that was started without a stdout to print to.
// To the program that looks like a /dev/null opened for reading and writing.
var ErrStdoutClosed = errors.New("stdout is closed: what is printed would be lost; to discard it on purpose, write it to /dev/null (>/dev/null)")

// CheckStdout returns [ErrStdoutClosed] if w is the program's stdout and that was
// closed when the program was started. The Go runtime puts /dev/null in its place,
// which takes everything: messages would count as consumed that nobody has seen. A
// shell's >/dev/null is told apart, for it cannot be read from.
func CheckStdout(w io.Writer) error {
	if f, ok := w.(*os.File); ok && f == os.Stdout && stdoutClosed() {
		return ErrStdoutClosed
	}
	return nil
}

// KeepPipes makes writing to a pipe that nobody reads any more an error on stdout and
// stderr, too, where it would end the process at once. undo ends that. Programs that
// are started do not inherit it.
func KeepPipes() (undo func()) {
	// Whatever is broken sends this signal, also a connection: the error of the write
	// says what it was.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGPIPE)
	return func() { signal.Stop(signals) }
}

// ReaderGone tells whether err is that of a write to a pipe that nobody reads any more.
func ReaderGone(err error) bool { return readerGone(err) }
