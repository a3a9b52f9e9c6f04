//go:build race

package matrix

// race means that everything takes ten times as long, so that a quarter must do.
const race = true
