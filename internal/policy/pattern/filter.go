package pattern

import (
	"slices"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// NameFilter chooses services by their fqdn, as the owner publishes it: one of the names has to match
// it. Without names it chooses all. It is read-only and safe for concurrent use.
type NameFilter []Name

// Matches reports whether the filter chooses the services of that fqdn.
func (f NameFilter) Matches(fqdn federation.FQDN) bool {
	return len(f) == 0 || slices.ContainsFunc(f, func(p Name) bool { return p.Matches(fqdn) })
}
