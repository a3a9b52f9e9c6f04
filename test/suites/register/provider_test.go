package register

import (
	"testing"
	"time"

	"github.com/hamlet-federation/coredns-federation/test/suites/register/fleet"
)

// resolvedTo waits until CoreDNS answers for a name as it should.
func resolvedTo(t testing.TB, w *world, name, want string) {
	t.Helper()
	resolved(t, w.dns, map[string]string{name: want})
}

// TestLife registers a node, and takes it away: that is at once, and neither the ttl nor linger
// is waited for.
func TestLife(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Minute
	w := start(t, options{linger: ttl})
	p := w.open(t, w.owners[0], "fleet")
	name := "web." + zone
	p.active(t, name, node(fleet.Address(1)), ttl)
	p.grants(t, node(fleet.Address(1)))
	resolvedTo(t, w, name, short([]string{fleet.Address(1).String()}))
	p.clear(t, name, node(fleet.Address(1)))
	resolvedTo(t, w, name, "NXDOMAIN")
}
