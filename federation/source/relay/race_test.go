//go:build race

package relay

// race reports whether the race detector is on.
const race = true
