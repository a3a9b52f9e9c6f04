//go:build unix

package child

import (
	"os"
	"os/signal"
	"syscall"
)

// passed are the signals that a process passes on.
var passed = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGWINCH, syscall.SIGTSTP, syscall.SIGCONT,
}

// Signals returns the signals that a process should pass on, until stop is called. It must
// be called before Start: a command does not ignore a signal because this process does,
// but for one that was ignored before it began, as by nohup.
func Signals() (signals <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 16)
	for _, s := range passed {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
	// A signal that is handled, and not ignored, has its default effect in a command.
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	return c, func() {
		signal.Stop(c)
		signal.Stop(pipes)
	}
}

// Ends reports whether a signal asks a command to end.
func Ends(s os.Signal) bool { return s == syscall.SIGTERM || s == syscall.SIGINT }

// Stops reports whether a signal is that of a terminal to stop, which is not in the
// nature of a process that handles it: Stop does it.
func Stops(s os.Signal) bool { return s == syscall.SIGTSTP }

// Stop stops this process until it is continued.
func Stop() { _ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP) }

func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func codeOf(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return codeSignal + int(status.Signal())
	}
	return state.ExitCode()
}

// Init is what the first process of a container does: it runs this program again, with
// the same arguments, passes signals on to it, and reaps whatever has lost its parent. It
// returns the exit code of the other one. Two processes are simpler than one: the first
// waits for any process, and takes from nobody the end of his own.
func Init() (code int, err error) {
	signals, stop := Signals()
	defer stop()
	path, err := os.Executable()
	if err != nil {
		return 0, err
	}
	process, err := startProcess(path, os.Args)
	if err != nil {
		return 0, err
	}
	end := make(chan int, 1)
	go func() { end <- reap(process.Pid) }()
	for {
		select {
		case s := <-signals:
			_ = syscall.Kill(process.Pid, s.(syscall.Signal)) //nolint:forcetypeassert // of unix
		case code := <-end:
			return code, nil
		}
	}
}

// reap waits for all processes whose parent is this one, until that with the pid has
// ended, and returns its exit code.
func reap(pid int) int {
	for {
		var status syscall.WaitStatus
		switch ended, err := syscall.Wait4(-1, &status, 0, nil); {
		case err == syscall.EINTR:
		case err != nil:
			return codeNotRun // there is none, which cannot be
		case ended != pid:
		case status.Signaled():
			return codeSignal + int(status.Signal())
		case status.Exited():
			return status.ExitStatus()
		}
	}
}
