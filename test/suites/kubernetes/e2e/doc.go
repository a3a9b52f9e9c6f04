// Package e2e holds the tests that run the programs of this project against real
// control planes of Kubernetes. `make e2e` builds what they need and runs them;
// without REAL_SERVERS=required in the environment they are skipped.
//
// The tests share two domains, west and east, one after the other: each works in
// namespaces of its own and leaves everything running.
package e2e
