// Package directives holds the order in which a CoreDNS with this plugin asks its
// plugins. It is not part of the command because tests boot CoreDNS in that order
// without linking every plugin.
//
// Only packages of this module import it: it is not a stable API.
package directives

import (
	"fmt"
	"slices"
)

const (
	name = "federation"

	// predecessor is the directive that federation follows: names of the local
	// cluster win over those of a peer, and both over zone files and forwarding.
	predecessor = "kubernetes"
)

// Insert returns upstream, CoreDNS's own order, with federation right after
// kubernetes. It fails when upstream has no kubernetes or already has a federation.
func Insert(upstream []string) ([]string, error) {
	if slices.Contains(upstream, name) {
		return nil, fmt.Errorf("directive %q is there already", name)
	}
	i := slices.Index(upstream, predecessor)
	if i < 0 {
		return nil, fmt.Errorf("no directive %q to put %q after", predecessor, name)
	}
	return slices.Insert(slices.Clone(upstream), i+1, name), nil
}
