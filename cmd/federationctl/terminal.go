package main

import (
	"io"
	"os"
	"runtime"

	"golang.org/x/term"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
)

// lineWidth returns how many columns w has, or is taken to have if it is no terminal.
func lineWidth(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return printable.LineWidth
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
