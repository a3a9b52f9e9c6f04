// Package spiffe holds the test in which the programs of this project have their
// certificates from a real SPIRE. `make e2e-spiffe` builds what it needs and runs it;
// without REAL_SERVERS=required in the environment it is skipped. The rules about
// identities and agents are tested in package mtls.
package spiffe
