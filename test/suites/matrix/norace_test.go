//go:build !race

package matrix

// race reports whether the race detector is on.
const race = false
