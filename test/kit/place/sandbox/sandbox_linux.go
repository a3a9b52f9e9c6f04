// Package sandbox runs a test again in namespaces of its own. They end with the test, however
// it ends, and with them every process, mount and network that it has made. It needs root.
package sandbox

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Namespaces are those that every sandbox has: networks, mounts and processes.
const Namespaces = syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID

// Run runs this binary again with the same arguments, in new namespaces and with more
// variables in its environment: one of them tells it to call Furnish. It returns the exit code.
func Run(namespaces uintptr, env ...string) int {
	runtime.LockOSThread() // Pdeathsig is about the thread
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	cmd := exec.CommandContext(ctx, os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: namespaces,
		Pdeathsig:  syscall.SIGKILL, // the first process of the namespace takes all others with it
	}
	err := cmd.Run()
	if code := cmd.ProcessState.ExitCode(); err == nil || code > 0 { // it has said why
		return code
	}
	fmt.Fprintln(os.Stderr, "sandbox:", err)
	return 1
}

// Furnish makes the namespaces that this process is in usable: nothing that is mounted here
// reaches the machine, /proc shows the processes of the sandbox, and /run is empty. Temporary
// files are there.
func Furnish() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	if err := os.Mkdir("/run/tmp", 0o777); err != nil {
		return err
	}
	if err := os.Setenv("TMPDIR", "/run/tmp"); err != nil {
		return err
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("ip link set lo up: %w: %s", err, out)
	}
	return nil
}
