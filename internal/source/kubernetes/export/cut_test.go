package export

import (
	"testing"

	"github.com/hamlet-federation/coredns-federation/internal/limits"
)

// TestGrowthIsNoOutage has more endpoints than a service may have: 334 nodes with three
// ports, and more pods with names of their own than there may be instances.
func TestGrowthIsNoOutage(t *testing.T) {
	nodes := func(n int) *testCase { return withNodes(n, "p0", "p1", "p2") }
	for _, test := range []struct {
		name            string
		of              *testCase
		endpoints, warn int
		last            string
	}{
		{"333 nodes", nodes(333), 999, 0, "10.0.1.82"},
		{"334 nodes", nodes(334), 999, 1, "10.0.1.82"},
		{"2000 nodes", nodes(2000), 999, 1, "10.0.1.82"},
		{"999 pods", withPods(999), 999, 0, "10.0.3.248"},
		{"1000 pods", withPods(1000), 999, 1, "10.0.3.248"},
	} {
		v := test.of.rules.Translate(test.of.input())
		if v.Refusal != nil {
			t.Errorf("%s: %s", test.name, v.Refusal.Message)
			continue
		}
		s := v.Service
		if last := s.Endpoints[len(s.Endpoints)-1].Address.String(); len(s.Endpoints) != test.endpoints || last != test.last || len(v.Warnings) != test.warn {
			t.Errorf("%s: %d endpoints to %s, warnings %v", test.name, len(s.Endpoints), last, v.Warnings)
		}
		if len(s.Endpoints) > limits.Endpoints {
			t.Errorf("%s: %d endpoints", test.name, len(s.Endpoints))
		}
	}
}
