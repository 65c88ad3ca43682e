//go:build !unix

package main

import (
	"os"
	"os/exec"
)

// apart would give a program a process group of its own.
func apart(*exec.Cmd) {}

// terminate ends a process; there is no asking here.
func terminate(p *os.Process) error { return p.Kill() }

// kill ends a process.
func kill(p *os.Process) error { return p.Kill() }

// die ends this process.
func die(os.Signal) { os.Exit(1) }
