// Package count has a loop that a mutant does not end.
package count

// Count counts down to zero.
func Count(n uint64) (steps int) {
	for n != 0 {
		n--
		steps++
	}
	return steps
}
