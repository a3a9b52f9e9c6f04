package zone

import (
	"strings"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/dns/zone/internal/subtree"
)

// HasName reports whether a zone with this service alone would have the name, which is in lower
// case and without the final dot. Such names are the fqdn and names below it.
func HasName(s *federation.Service, name string) bool {
	fqdn := strings.ToLower(strings.TrimSuffix(s.FQDN.String(), "."))
	labels, below := strings.CutSuffix(name, "."+fqdn)
	if !below {
		return name == fqdn
	}
	var names subtree.Subtree
	names.Compile(s, fqdn, func(string, string) Fault { return "" })
	return names.HasLabels(labels)
}
