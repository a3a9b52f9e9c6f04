// Package nightly lets tests try more where `make nightly` runs them.
package nightly

import (
	"os"
	"testing"
)

// Cases returns how many cases a test tries: one number by night, a smaller one by day.
func Cases[N int | uint64](byNight, byDay N) N {
	if os.Getenv("NIGHTLY") == "true" && !testing.Short() {
		return byNight
	}
	return byDay
}
