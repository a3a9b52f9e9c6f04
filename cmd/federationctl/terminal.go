package main

import (
	"io"
	"os"
	"runtime"

	"golang.org/x/term"
)

// terminalWidth returns how many columns w has; 0 if it is no terminal.
func terminalWidth(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	width, _, _ := term.GetSize(int(f.Fd())) // 0 with an error
	return width
}

// hasColours reports whether w is a terminal whose user wants colours: https://no-color.org
// says how one does not.
func hasColours(w io.Writer) bool { return canUpdate(w) && os.Getenv("NO_COLOR") == "" }

// canUpdate reports whether a line written to w can be written over: w is a terminal that can
// move its cursor. The consoles of Windows must be set up for it first.
func canUpdate(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && runtime.GOOS != "windows" && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" && os.Getenv("TERM") != ""
}
