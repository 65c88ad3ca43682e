//go:build unix

package main

import (
	"os"
	"os/exec"
	"syscall"
)

// apart gives a program a process group of its own: what it starts in turn ends
// with it, and Ctrl-C in a terminal is for the consumer, which lets it finish.
func apart(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// terminate asks a program and what it started to end.
func terminate(p *os.Process) error { return syscall.Kill(-p.Pid, syscall.SIGTERM) }

// kill ends a program and what it started.
func kill(p *os.Process) error { return syscall.Kill(-p.Pid, syscall.SIGKILL) }

// die ends this process by a signal.
func die(s os.Signal) {
	if n, ok := s.(syscall.Signal); ok {
		_ = syscall.Kill(os.Getpid(), n) // it is there
	}
}
