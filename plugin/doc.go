// Package federationplugin is the CoreDNS plugin "federation". It has what
// CoreDNS asks of a plugin and nothing else: lifecycle, [Federation] as the DNS handler, metrics,
// metadata, readiness, zone transfer and the status of the process. The zone that it answers from comes from
// package agent, and the addresses of hosts elsewhere in DNS from package hostname.
//
// The packages below it need CoreDNS, too: corefile reads the blocks, and loopback asks the server
// itself.
//
// The package is not named after its directory: in its files, plugin is
// CoreDNS's package of that name, and federation is the package of the domain
// nouns.
//
// Only packages of this module import it: it is not a stable API.
package federationplugin
