//go:build e2e

package e2e

import "syscall"

// childAttr makes a child end with the thread that started it.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
