// Package owner is the server side of federated service discovery: it publishes
// services to any number of consumers, over mutual TLS, in both versions of the
// API.
//
// A [Registry] holds the services. Whoever knows them calls Set, Upsert and
// Delete, from as many goroutines as it likes: there is no other interface for
// sources. Package ownerfile is one that reads a file.
//
// A [Server] sends the registry to every consumer that subscribes: first the whole
// catalog, then its end marker, then every change. What a consumer has not been
// sent yet is kept as a set of names, so a consumer that is slow, or asleep, gets
// each service that has changed once, in its last state, and costs no more memory
// the more there is to tell. Nothing is dropped.
//
// # Who may subscribe
//
// Consumers are known by the identities in their certificates. Config.Allow names
// those that may subscribe, and SetAllow changes them while the server runs. All
// others get the code Unauthenticated, after which consumers do not come back by
// themselves.
//
// # What consumers refuse
//
// A consumer may refuse a service. The refusal is logged once, with its reason,
// and counted in [Stats]. The service is sent again when it changes.
//
// # The end
//
// When the context of Serve ends, streams end with Unavailable: consumers keep
// what they have, and come back. The health service of gRPC says NOT_SERVING by
// then. To withdraw services, delete them before.
package owner
