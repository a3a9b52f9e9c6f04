// Package owner is the server side of federated service discovery: it publishes
// services to any number of consumers, over mutual TLS, in both versions of the
// API.
//
// A [Registry] holds the services. Whoever knows them calls Set, Upsert and
// Delete, from as many goroutines as it likes: there is no other interface for
// sources. Package ownerfile is one that reads a file. Set and Upsert fail for a
// service that no consumer could take, with the rules of package wire that decide
// it there, and change nothing then.
//
// A [Server] sends the registry to every consumer that subscribes: first the whole
// catalog, then its end marker, then every change. What a consumer has not been
// sent yet is kept as a set of names, so a consumer that is slow, or asleep, gets
// each service that has changed once, in its last state, and costs no more memory
// the more there is to tell. Nothing is dropped. A service that a version of the API
// cannot express, or only in a message larger than Config.MaxMessage, is withheld
// from the consumers of that version, and reported.
//
// # Who may subscribe
//
// Consumers are known by the identities in their certificates. Config.Allow names
// those that may subscribe, and SetAllow changes them while the server runs. All
// others get the code Unauthenticated, after which consumers do not come back by
// themselves. With the credentials of package mtls, streams also end when the
// authority that signed for the consumer is struck off.
//
// # What consumers may do
//
// A consumer may refuse a service. The refusal is logged once, with its reason,
// and counted in [Stats]. The service is sent again when it changes.
//
// A consumer may be an owner as well, and send responses. Each is answered with
// the code Unimplemented, as nobody here takes them, and the stream goes on. It is
// not read from while four of these answers wait to be sent; a response of more
// than 256 KiB ends it.
//
// # What they can cost
//
// A connection has at most eight streams, and ends after a minute without any.
// [Limits] bound the connections, in total and for each address. What consumers
// make the server log is bounded by package loglimit. Below, gRPC bounds the rest:
// the answers to frames such as PING and SETTINGS that a peer lets pile up, and the
// streams that it resets before they were served.
//
// # The end
//
// When the context of Serve ends, streams end with Unavailable: consumers keep
// what they have, and come back. The health service of gRPC says NOT_SERVING by
// then. To withdraw services, delete them before.
package owner
