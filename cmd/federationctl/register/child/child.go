// Package child runs the command that a process is the parent of: it passes signals on,
// and says how the command has ended.
//
// Only packages of this module import it: it is not a stable API.
package child

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"sync"
)

// The exit codes of shells for a command that cannot be run, and for one that was ended by
// a signal: that and its number. POSIX.1-2024, Shell Command Language, section 2.8.2.
const (
	codeNotRun   = 126
	codeNotFound = 127
	codeSignal   = 128
)

// Code returns the exit code that a shell has for an error of Start.
func Code(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return codeNotFound
	}
	return codeNotRun
}

// Child is a command that was started.
type Child struct {
	// read-only after Start
	process *os.Process
	done    chan struct{}
	waiting sync.WaitGroup

	code int // written before done is closed
}

// Start starts a command with the standard streams, the environment and the directory of
// this process. It is in a process group of its own: what a terminal sends reaches it only
// through this process. Wait must be called.
func Start(args []string) (*Child, error) {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return nil, err
	}
	process, err := startProcess(path, args)
	if err != nil {
		return nil, err
	}
	c := &Child{process: process, done: make(chan struct{})}
	c.waiting.Go(func() {
		c.code = codeNotRun // what cannot be
		if state, err := process.Wait(); err == nil {
			c.code = codeOf(state)
		}
		close(c.done)
	})
	return c, nil
}

func startProcess(path string, args []string) (*os.Process, error) {
	return os.StartProcess(path, args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: ownGroup()}) //nolint:gosec // whoever runs this names the command
}

// Done returns a channel that is closed when the command has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Wait waits for the end of the command, and returns its exit code: 128 and the number of
// the signal, if one has ended it.
func (c *Child) Wait() int {
	c.waiting.Wait()
	return c.code
}

// Signal sends a signal to the command, and not to what it has started. That it has ended
// is no error.
func (c *Child) Signal(s os.Signal) { _ = c.process.Signal(s) }
