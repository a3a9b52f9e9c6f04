package realserver

import (
	"strings"
	"testing"
)

// TestPins checks that the modules of the tools pin what is looked for.
func TestPins(t *testing.T) {
	for _, p := range []program{etcd, apiServer, controllers, kubectl, spireServer, spireAgent} {
		if _, err := p.findHere(); err != nil && !strings.Contains(err.Error(), "run make "+p.target) {
			t.Error(err)
		}
	}
}
