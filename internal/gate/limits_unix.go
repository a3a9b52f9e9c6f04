//go:build unix

package gate

import (
	"math"
	"syscall"
)

// mostFiles returns how many files the process may have open.
func mostFiles() uint64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return math.MaxUint64
	}
	return uint64(limit.Cur) //nolint:unconvert // it is signed on some systems
}
