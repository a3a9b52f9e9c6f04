//go:build !unix

package main

import (
	"context"
	"os"
)

// movesCursors is false: the consoles of other systems must be set up for it first.
const movesCursors = false

type terminalSignals struct{ resized, suspended <-chan os.Signal }

func watchTerminal() terminalSignals            { return terminalSignals{} }
func (terminalSignals) stop()                   {}
func (terminalSignals) suspend(context.Context) {}
func unread(*os.File) bool                      { return false }
