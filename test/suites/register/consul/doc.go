// Package consul holds the tests against real servers and agents of Consul, which are built from
// the module proxy: see test/peers/tools/consul. `make e2e-consul` builds what they need and runs
// them; without REAL_SERVERS=required in the environment they are skipped. `make bench-consul` measures.
//
// What a test has is a server and an agent of Consul, `federationctl serve` that publishes what the
// agent knows, and a CoreDNS that answers for it, each in a process of its own. A prober asks CoreDNS all the
// while, and every answer must be one that Consul has given cause for.
package consul
