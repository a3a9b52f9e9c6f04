// Package register holds the tests and benchmarks of registration that run the programs
// of this project: owners, CoreDNS and many providers, each a process that can be
// killed. Those that take a minute or need etcd are skipped without
// REAL_SERVERS=required in the environment; make e2e runs them. `make bench-register` measures.
//
// The processes are those of the working tree, built once. Providers by the hundred are
// this test binary itself, in the role of a fleet (package fleet).
package register
