// Package whole tests what its part does not.
package whole

import "example.test/module/whole/part"

// Twice returns n twice incremented.
func Twice(n int) int { return part.Next(part.Next(n)) }
