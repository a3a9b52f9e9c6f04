// Package part is a part of package whole.
package part

// Next returns the number after n.
func Next(n int) int { return n + 1 }
