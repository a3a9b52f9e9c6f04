// Package federationplugin is the CoreDNS plugin "federation". It holds what
// CoreDNS asks of a plugin and nothing else: Corefile parsing, lifecycle, the
// DNS handler, metrics, readiness and zone transfer. What it answers from is
// the work of the packages below federation, of which agent is the last.
//
// The package is not named after its directory: in its files, plugin is
// CoreDNS's package of that name and federation is the package of the domain
// nouns, and either would be read for this one.
package federationplugin
