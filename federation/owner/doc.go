// Package owner is the server side of federated service discovery: it publishes
// services to any number of consumers, over mutual TLS, in both versions of the
// API.
//
// A [Registry] holds the services, each once, in the form in which v1alpha2 sends it.
// A program calls its methods Set, Upsert and Delete, from any number of goroutines:
// that is the whole interface. Set and Upsert fail for a service that is not valid (see
// [federation.Service.Validate]), and change nothing then. SetEncoded and UpdateEncoded
// are for programs that remember what they have published. Package source joins several
// origins of services in one registry.
//
// A [Server] sends the registry to every consumer that subscribes: first the whole
// catalog, then its end marker, then every change. For each consumer, the names of
// the services that it has yet to be sent are kept in a set. A slow consumer
// therefore gets each service that has changed once, in its latest version, and its
// backlog is never larger than the catalog. No update is dropped.
//
// A service that a version of the API cannot express, or only in a message larger
// than Config.MaxMessage, is withheld from the consumers of that version, reported in
// the log and counted. Consumers of a version that cannot express a service are not told
// the end of the catalog: one that has the whole catalog denies what it does not have.
//
// # Catalogs
//
// A server has one registry for all consumers, or several catalogs, of which a consumer
// chooses one by the server name of its TLS handshake; see [Server.SetCatalogs]. Every
// catalog is open to all that may subscribe; its policy says what they are told.
//
// A registry that does not hold a whole catalog is made unavailable with
// SetUnavailable. Its streams, and those for whose server name there is no catalog, end
// with Unavailable: consumers keep the catalog that they have, and retry with
// backoff. Foreign consumers do so too, because the specification says it of no other
// code.
//
// # Who may subscribe
//
// Consumers are known by the identities in their certificates. Config.Allow names
// those that may subscribe, and SetAllow changes them while the server runs. All
// others get the code Unauthenticated, after which consumers do not reconnect by
// themselves. With the credentials of package mtls, a stream also ends when the
// authority that signed the certificate of its consumer is no longer trusted, and some
// time after that certificate has expired, unless the consumer has shown a newer one: each
// stream has a token, by which the consumer can do so in the handshake of another
// connection.
//
// # Who is told what
//
// With [Registry.SetPolicy], a registry tells each consumer what a policy lets its
// identities have, in the shape that is for them. For everyone else a service that is
// hidden does not exist: a change that hides it is a deletion. Changes of services and of
// the policy, and what a stream takes, are in one order. A stream never takes anything
// that the policy in force does not tell its consumer; a response that it has taken
// before may still be on its way.
//
// Consumers for whom the same rules are made are a class. The registry has one verdict on
// each service, with one encoding for each shape, and no copy of what a class sees.
// SetAudit has every service that a consumer is told written to a log, and every one
// that is withdrawn.
//
// # Consumers that come back
//
// A consumer that says in the header of its stream what it holds already is sent only
// what is different, and the end marker; see package resume. The header of the stream is
// then the answer, and the subscription begins with it. Nothing is remembered of a
// consumer. A registry takes digests of what a class of consumers is told when the first
// of them asks, without holding up the others, and notes what has changed since. At most
// a tenth of the time goes into that; when it is used up, more is sent.
//
// # What consumers may do
//
// A consumer may refuse a service. The refusal is logged once, with its reason,
// and counted in [Stats]. The service is sent again when it changes. A registry tells
// of refusals, and of services that are taken again, with OnRefusal.
//
// A consumer may be an owner as well, and send responses. Each of them is answered
// with the code Unimplemented, because this owner accepts none, and the stream goes
// on. While four of these answers wait to be sent, the stream is not read. A response
// of more than 256 KiB ends it.
//
// # Both roles
//
// Config.Consume names the consumers from which something is accepted: on their streams
// of v1alpha2, a [Subscriber] sends requests of its own, and gets the responses. A
// program that has opened a stream itself publishes on it with [Server.Publish], which
// makes the Server a stream.Publisher; what Serve says of consumers holds for the owner
// at the other end. Package duplex says how the two roles share a stream.
//
// # What consumers can cost
//
// A connection has at most eight streams, and ends after a minute without any.
// [Limits] bound the connections, in total and for each address. Package gate does
// both, for other ports of the process as well where Config.Gate is shared, and says what
// else it bounds. Package loglimit bounds what consumers can make the server log.
// Config.Register adds services of others to the port.
//
// # Shutdown and health
//
// When the context of Serve ends, streams end with Unavailable: consumers keep
// their catalog, and reconnect. To withdraw services, delete them before.
//
// The health service of gRPC says SERVING of the whole server, whose name is empty, and
// of both versions of the API, until then. Catalogs have no health of their own there: a
// probe that restarts or passes over the server because one catalog is unavailable would
// take the others from their consumers. Stats has the state of each.
package owner
