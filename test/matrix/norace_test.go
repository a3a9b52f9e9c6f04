//go:build !race

package matrix

const race = false
