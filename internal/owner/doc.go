// Package owner publishes services to any number of consumers, over mutual TLS, in both
// versions of the API.
//
// A program fills a registry.Registry with its services, and a [Server] sends the registry to every
// consumer that subscribes: first the whole catalog, then its end marker, then every change. A
// [Config] says who may subscribe and how, and [Stats] shows what became of it.
// A slow consumer gets each service that has changed once, in its latest version, and its
// backlog is never larger than the catalog. No update is dropped. Package registry says how.
//
// A service that a version of the API cannot express, or only in a message larger than
// Config.MaxMessage, is withheld from the consumers of that version, reported in the log
// and counted. Consumers of a version that cannot express a service are not told the end
// of the catalog: one that has the whole catalog denies what it does not have.
package owner
