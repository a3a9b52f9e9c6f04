//go:build race

package serve

// race reports whether the race detector is on.
const race = true
