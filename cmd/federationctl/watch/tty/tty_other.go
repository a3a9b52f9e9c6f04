//go:build !unix

package tty

import "os"

// movesCursors is false: the consoles of other systems must be set up for it first.
const movesCursors = false

func unread(*os.File) bool { return false }
