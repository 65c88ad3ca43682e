package bench

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// process is a server, or a crowd of clients, that this test started.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
}

// spawn starts this program again in a role and reads what it says first into hello.
func spawn(tb testing.TB, role, dir, arg string, hello any) *process {
	tb.Helper()
	exe, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), roleEnv+"="+role, dirEnv+"="+dir, argEnv+"="+arg)
	p := start(tb, cmd)
	if hello != nil {
		p.read(tb, hello)
	}
	return p
}

func start(tb testing.TB, cmd *exec.Cmd) *process {
	tb.Helper()
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	p := &process{cmd: cmd, stdin: stdin, out: bufio.NewReaderSize(stdout, 1<<20)}
	tb.Cleanup(p.end)
	return p
}

// read reads the next line that the process says.
func (p *process) read(tb testing.TB, v any) {
	tb.Helper()
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		tb.Fatalf("process %v ended without an answer: %v", p.cmd.Args, err)
	}
	if err := json.Unmarshal(line, v); err != nil {
		tb.Fatalf("process says %q: %v", line, err)
	}
}

// tell gives the process a line.
func (p *process) tell(tb testing.TB, line string) {
	tb.Helper()
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		tb.Fatal(err)
	}
}

// end ends the process, once. A server's data is not needed any more.
func (p *process) end() {
	if p.cmd == nil {
		return
	}
	_ = p.stdin.Close()
	if os.Getenv("BENCH_PROFILE") != "" { // it has a profile to write
		time.Sleep(2 * time.Second)
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	p.cmd = nil
}

// say prints a line for the parent.
func say(v any) error { return json.NewEncoder(os.Stdout).Encode(v) }

// untilTold returns when the parent has gone or wants this process to end.
func untilTold() { _, _ = io.Copy(io.Discard, os.Stdin) }

// usage is processor time and what it was measured over.
type usage struct {
	at           time.Time
	server, self time.Duration
	machine      time.Duration
	written      int64
}

// used reads the processor time of a process and of this one. The kernel counts
// in hundredths of a second.
func (p *process) used() usage {
	u := usage{at: time.Now(), self: cpuOf("self"), machine: cpuOfAll()}
	if p != nil && p.cmd != nil {
		pid := strconv.Itoa(p.cmd.Process.Pid)
		u.server, u.written = cpuOf(pid), writtenBy(pid)
	}
	return u
}

// since returns what was used from an earlier moment on.
func (u usage) since(from usage) usage {
	return usage{
		server: u.server - from.server, self: u.self - from.self,
		machine: u.machine - from.machine, written: u.written - from.written,
	}
}

const tick = 10 * time.Millisecond

func cpuOf(pid string) time.Duration {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0
	}
	s := string(b)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * tick
}

// cpuOfAll is the time in which the machine was busy.
func cpuOfAll() time.Duration {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	f := strings.Fields(line)
	var sum int64
	for i, s := range f {
		if i == 0 || i == 4 || i == 5 { // name, idle, iowait
			continue
		}
		n, _ := strconv.ParseInt(s, 10, 64)
		sum += n
	}
	return time.Duration(sum) * tick
}

func writtenBy(pid string) int64 { return procNumber("/proc/"+pid+"/io", "write_bytes:") }

// residentOf is the memory of a process in bytes.
func residentOf(pid int) int64 {
	return 1024 * procNumber(fmt.Sprintf("/proc/%d/status", pid), "VmRSS:")
}

func procNumber(file, key string) int64 {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n
		}
	}
	return 0
}
