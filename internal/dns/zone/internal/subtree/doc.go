// Package subtree compiles one service into the part of DNS at and below its
// fqdn: which names there are, and which endpoints and texts answer for each.
//
// [Subtree.Compile] does at once, when a service changes, what would cost every
// query time: nothing that an owner puts into a service can make a query
// expensive. [Subtree.MatchLabels] finds what the labels in front of the fqdn stand
// for. A Subtree knows no owner, no time and no other service: package zone says
// which of several services has a name, and for how long. It holds no records
// either: package reply makes them.
package subtree
