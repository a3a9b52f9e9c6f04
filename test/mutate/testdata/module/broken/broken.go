// Package broken has a test that fails without any fault.
package broken

// One returns 1.
func One() int { return 1 }
