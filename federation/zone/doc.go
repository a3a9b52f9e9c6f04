// Package zone compiles what owners offer into DNS: which names exist, which
// RRsets they have, for how long.
//
// A [Builder] takes services in and publishes a [Zone], an immutable version of
// everything that one server block answers. Publishing costs time and memory
// in proportion to what changed, because versions share their structure.
// [Zone.Lookup] answers one question wholly from one version and takes no lock;
// the [Result] builds the records of the reply, fresh for every reply.
//
// Only fqdns of services and the names above them are stored. Everything below
// an fqdn (instances, _http._tcp, addresses) follows from its service and is
// found by reading the labels of the query, so an update touches one name. Where
// services want one name, [Builder.Put] marks its node, and a query for it finds
// out who has it: that depends on who is alive.
//
// The package is pure: no goroutine, lock, context, logger or clock. Time comes
// in as an argument. Response codes are the plugin's business.
package zone
