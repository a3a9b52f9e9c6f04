package realserver

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

const (
	readiness = 2 * time.Minute  // bounds the wait for the first answer
	ending    = 30 * time.Second // bounds the wait for the end after SIGTERM
	poll      = 20 * time.Millisecond
	tailSize  = 4 << 10 // octets of a log that a failure shows
)

// Process is a program that is started, ended, and started again with the same
// arguments: on the same port and with the same data, where its arguments say so. It
// ends with the process that started it, however that ends. Its methods are for one
// goroutine at a time.
type Process struct {
	Name  string // for messages, and for its log
	Path  string
	Dir   string // its working directory, where its log is as well
	Args  []string
	Env   []string                    // beside that of this process
	Ready func(context.Context) error // returns nil once the program serves; nil stands for at once

	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// Log returns the path of the file with all that the program has written, over all
// its starts.
func (p *Process) Log() string { return filepath.Join(p.Dir, p.Name+".log") }

// Tail returns the end of the log.
func (p *Process) Tail() string {
	text, err := os.ReadFile(p.Log())
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-tailSize):])
}

// PID returns the process ID of the last start.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Running reports whether the program has been started and has not ended.
func (p *Process) Running() bool {
	if p.done == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Start starts the program, and waits until it is ready. The error has the end of
// its log.
func (p *Process) Start(ctx context.Context) error {
	if err := p.Launch(); err != nil {
		return err
	}
	return p.Await(ctx)
}

// Launch is Start without the wait.
func (p *Process) Launch() error {
	log, err := os.OpenFile(p.Log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.Dir, log, log
	cmd.Env = slices.Concat(os.Environ(), p.Env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the process that started it
	endWithParent(cmd.SysProcAttr)
	started, done := make(chan error), make(chan struct{})
	go func() {
		defer close(done)
		// The system takes the end of the thread that started it for the end of the parent.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the exit code is in ProcessState
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	p.cmd, p.done = cmd, done
	return nil
}

// Await waits until the program is ready.
func (p *Process) Await(ctx context.Context) error {
	if p.Ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readiness)
	defer cancel()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		err := p.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s has ended: %v; it wrote:\n%s", p.Name, p.cmd.ProcessState, p.Tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w, %w; it wrote:\n%s", p.Name, err, ctx.Err(), p.Tail())
		case <-ticker.C:
		}
	}
}

// Signal sends a signal to the program.
func (p *Process) Signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// Stop ends the program with SIGTERM, and waits for its end. A program that has
// ended already is no error.
func (p *Process) Stop() error {
	if !p.Running() {
		return nil
	}
	p.Signal(syscall.SIGCONT)
	p.Signal(syscall.SIGTERM)
	timer := time.NewTimer(ending)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		p.Kill()
		return fmt.Errorf("%s did not end on SIGTERM", p.Name)
	}
}

// Kill ends the program with SIGKILL, and waits for its end.
func (p *Process) Kill() {
	if p.Running() {
		p.Signal(syscall.SIGKILL)
		<-p.done
	}
}

// Restart is Kill and Start.
func (p *Process) Restart(ctx context.Context) error {
	p.Kill()
	return p.Start(ctx)
}

// Logged returns how many lines of the log contain all of the texts.
func (p *Process) Logged(texts ...string) int {
	text, err := os.ReadFile(p.Log())
	if err != nil {
		return 0
	}
	n := 0
	for line := range bytes.Lines(text) {
		if !slices.ContainsFunc(texts, func(s string) bool { return !bytes.Contains(line, []byte(s)) }) {
			n++
		}
	}
	return n
}

// endWith ends processes with the test, the last one first, and shows the ends of
// their logs if the test has failed.
func endWith(tb testing.TB, end func(*Process) error, processes ...*Process) {
	tb.Helper()
	tb.Cleanup(func() {
		for _, p := range slices.Backward(processes) {
			if err := end(p); err != nil {
				tb.Error(err)
			}
			if tb.Failed() && p.cmd != nil {
				tb.Logf("end of the log of %s:\n%s", p.Name, p.Tail())
			}
		}
	})
}

// StartFor starts a program for a test, and ends it with SIGTERM when the test ends.
// A test that has failed shows the end of the log.
func (p *Process) StartFor(tb testing.TB) {
	tb.Helper()
	endWith(tb, (*Process).Stop, p)
	must.Do(tb, p.Start(tb.Context()))
}
