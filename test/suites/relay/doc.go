// Package relay holds the tests of federation beyond one hop: an origin, relays, and
// CoreDNS at the end.
//
// They run the programs of this project, built once: each tier is a process that can be
// killed. Package source/relay has what relays do in simulated time, with many more schedules.
package relay
