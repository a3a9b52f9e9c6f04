//go:build !unix

package child

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// Signals returns the signals that a process should pass on, until stop is called.
func Signals() (signals <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, os.Interrupt)
	return c, func() { signal.Stop(c) }
}

// Ends reports whether a signal asks a command to end.
func Ends(s os.Signal) bool { return s == os.Interrupt }

// Stops reports whether a signal is that of a terminal to stop.
func Stops(os.Signal) bool { return false }

// Stop does nothing.
func Stop() {}

func ownGroup() *syscall.SysProcAttr { return nil }

func codeOf(state *os.ProcessState) int { return state.ExitCode() }

// Init is for systems with a first process.
func Init() (code int, err error) { return 0, errors.ErrUnsupported }
