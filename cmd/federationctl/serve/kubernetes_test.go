package serve

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/config"
	"github.com/hamlet-federation/coredns-federation/internal/source/kubernetes/export"
)

// TestEndpointKinds compares the kinds of endpoints that a configuration may name with
// those that there are.
func TestEndpointKinds(t *testing.T) {
	var names []string
	for kind := export.EndpointKind(1); kind.String() != ""; kind++ {
		names = append(names, kind.String())
	}
	if diff := cmp.Diff(names, config.EndpointKinds()); diff != "" {
		t.Errorf("kinds of the configuration (-want +got):\n%s", diff)
	}
}
