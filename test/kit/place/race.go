//go:build race

package place

// race has the flags with which federationctl is built.
var race = []string{"-race"}
