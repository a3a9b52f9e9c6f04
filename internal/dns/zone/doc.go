// Package zone turns what owners offer into DNS answers: which names exist, which
// RRsets they have, and for how long.
//
// It stands between the catalogs and the plugin. A [Builder] takes services in,
// from one goroutine, and publishes a [Zone]: an immutable version of everything
// that one server block answers. Publishing costs time and memory in proportion
// to what changed, because versions share their structure. [Zone.Lookup] answers
// one question wholly from one version and takes no lock, unless owners share the name. Its [Result] is
// what was found, and package reply makes records of that.
//
// The parts that can be read alone are packages below this one:
//
//	domain      the naming scheme: which names stand for what
//	record      DNS records made of plain values, and how large they are
//	trie        the index: a persistent map from names to values
//	subtree     one service, compiled: the names at and below its fqdn; or those of several owners together
//	precedence  who has which name, when several want it
//	reply       the records of replies and zone transfers
//
// Only fqdns of services and the names above them are stored. Everything below
// an fqdn (instances, _http._tcp, addresses) follows from its service and is
// found by reading the labels of the query, so an update touches one name.
//
// All of these packages are pure: they have no goroutine, lock, context, logger or clock. There is one
// exception: the first query for a name that several owners share joins their services, under a lock.
// Time comes in as an argument. Response codes are the plugin's business.
package zone
