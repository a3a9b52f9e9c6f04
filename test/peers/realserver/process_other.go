//go:build !linux

package realserver

import "syscall"

// endWithParent does nothing: there is no portable way.
func endWithParent(*syscall.SysProcAttr) {}
