//go:build !unix

package tty

import (
	"context"
	"os"
)

// movesCursors is false: the consoles of other systems must be set up for it first.
const movesCursors = false

// Signals are the signals that concern the terminal: none.
type Signals struct{ Resized, Suspended <-chan os.Signal }

// Watch returns signals from now on, until Stop is called.
func Watch() Signals { return Signals{} }

// Stop ends the delivery of the signals.
func (Signals) Stop() {}

// Suspend does nothing.
func (Signals) Suspend(context.Context) {}

func unread(*os.File) bool { return false }
