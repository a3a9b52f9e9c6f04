package pattern

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
)

// NameFilter chooses services by their fqdn, as the owner publishes it: one of the names has to match
// it. Without names it chooses all. It is read-only and safe for concurrent use.
type NameFilter []Name

// Matches reports whether the filter chooses the services of that fqdn.
func (f NameFilter) Matches(fqdn federation.FQDN) bool {
	return len(f) == 0 || slices.ContainsFunc(f, func(p Name) bool { return p.Matches(fqdn) })
}

// Missed returns why the filter does not choose the services of that fqdn, or "".
func (f NameFilter) Missed(fqdn federation.FQDN) string {
	if f.Matches(fqdn) {
		return ""
	}
	return fmt.Sprintf("import_names %s does not match %s", strings.Trim(fmt.Sprint(f), "[]"), fqdn)
}
