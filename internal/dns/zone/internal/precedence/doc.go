// Package precedence decides who has which name: it holds the offers of all
// owners, each a compiled service, in a tree of names.
//
// Of two offers of one fqdn, the owner that comes first in the Corefile has it;
// of one owner, the service whose name is smaller. The other offers are kept and
// take over when the first one expires or goes.
//
// An fqdn can also be a name that a service further up has beside its own: that
// of an instance, or an empty non-terminal above an instance or an address. Of
// one owner, the service has its fqdn, and the instance is left without a name of
// its own there. Of two owners, the first has the name. The service of the later
// owner is then published nowhere, as if its fqdn were the fqdn of the other:
// neither are the names derived from it. Services further down are services of
// their own.
//
// All of this depends on who is alive, and so on the time. A [Writer] marks the
// names that several want, and a query of a [Tree] finds out who has them; names
// that nobody else wants, as nearly all, cost a query nothing.
package precedence
