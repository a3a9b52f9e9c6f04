//go:build !unix

package gate

import "math"

// mostFiles returns how many files the process may have open.
func mostFiles() uint64 { return math.MaxUint64 }
