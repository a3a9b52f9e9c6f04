// Package race lets tests do less under the race detector, which makes them ten times slower.
package race
