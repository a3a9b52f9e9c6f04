// Package spiffe holds the tests that give the programs of this project their
// certificates by a real SPIRE. `make e2e-spiffe` builds what they need and runs them;
// without REAL_SERVERS=required in the environment they are skipped.
//
// The world of world_test.go has two trust domains that federate, each with a server and
// an agent: west.test, where the owner is, and east.test, where CoreDNS is. Each test
// has a world of its own, and they run side by side, as most of the time is waiting for
// certificates to be replaced or to expire.
package spiffe
