//go:build !unix

package main

import "os"

// terminate ends a process; there is no asking here.
func terminate(p *os.Process) error { return p.Kill() }
