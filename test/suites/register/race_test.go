//go:build race

package register

// race has the flags with which federationctl is built.
var race = []string{"-race"}
