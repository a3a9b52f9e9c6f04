// Package nsm holds the tests against a real registry of Network Service Mesh, made of
// the mesh's own SDK: see test/peers/tools/nsm. `make e2e-nsm` builds what they need and runs
// them; without REAL_SERVERS=required in the environment they are skipped.
//
// What a test has is a registry in a process of its own, an owner that
// publishes what the registry holds, and a CoreDNS that answers for it. Endpoints are
// processes that register by the client of the SDK.
package nsm
