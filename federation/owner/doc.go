// Package owner publishes services to any number of consumers, over mutual TLS, in both
// versions of the API.
//
// A [Registry] holds the services, each once, in the form in which v1alpha2 sends it. A
// program calls its methods Set, Upsert and Delete, from any number of goroutines: that
// is the whole interface. Set and Upsert fail for a service that is not valid (see
// federation.Service.Validate), and change nothing then. SetEncoded and UpdateEncoded are
// for programs that remember what they have published. Package source joins several
// origins of services in one registry.
//
// A [Server] sends the registry to every consumer that subscribes: first the whole
// catalog, then its end marker, then every change. A catalog is one immutable version at a
// time, and a consumer is sent what differs between the version that it was told and the
// newest one. A slow consumer therefore gets each service that has changed once, in its
// latest version, and its backlog is never larger than the catalog. No update is dropped.
//
// A service that a version of the API cannot express, or only in a message larger than
// Config.MaxMessage, is withheld from the consumers of that version, reported in the log
// and counted. Consumers of a version that cannot express a service are not told the end
// of the catalog: one that has the whole catalog denies what it does not have.
package owner
