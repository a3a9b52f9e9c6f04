// Package relay holds the tests of federation beyond one hop: an origin, relays, and
// CoreDNS at the end.
//
// They run the programs of this project, built once: each tier is a process that can be
// killed and stopped, behind a gate that counts what passes. Package source/relay has a
// simulation of the same with many more schedules.
package relay
