//go:build race

package place

// raceDetected reports whether the race detector is on.
const raceDetected = true
