// Package precedence decides which offer has which name. A [Writer] keeps the [Offer] values of all
// owners, each a compiled service, in a tree of names, and publishes a [Tree].
//
// Of two offers of one fqdn, that of the owner which comes first in the Corefile has the name;
// of one owner, the service whose name is smaller. The other offers are kept and
// take over when the first one expires or goes.
//
// An fqdn can also be a name that a service further up has beside its own: that
// of an instance, or an empty non-terminal above an instance or an address. Of
// one owner, the service has its fqdn, and the instance is left without a name of
// its own there. Of two owners, the first has the name. The service of the later
// owner is then published nowhere, as if its fqdn were the fqdn of the other:
// the names derived from it are not published either. Services further down are services of
// their own.
//
// All of this depends on which offers are alive, and so on the time. A Writer marks the
// names that several offers want, and a query of a Tree decides which of them has the name. Nearly all
// names have one offer, and cost a query nothing more.
package precedence
