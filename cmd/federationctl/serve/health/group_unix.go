//go:build unix

package health

import (
	"os/exec"
	"syscall"
)

// killGroup has all processes of a command killed when its context ends, and not only
// the shell.
func killGroup(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
}
