package recent_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/status/recent"
)

// TestVisitors turns peers away, and floods of them.
func TestVisitors(t *testing.T) {
	var v recent.Visitors
	now := epoch
	come := func(reason, address, identities string) {
		now = now.Add(time.Second)
		v.TurnedAway(status.TurnedAway{At: now, Role: "consumer", Address: address, Identities: identities, Reason: reason, Rule: "no"})
	}
	seen := func() (list []string) {
		for _, p := range v.All() {
			list = append(list, fmt.Sprintf("%s %s %s %d", p.Reason, p.Address, p.Identities, p.Times))
		}
		return list
	}
	if got := seen(); got != nil {
		t.Errorf("at first: %q", got)
	}
	come("identity", "192.0.2.1:1000", "a")
	come("identity", "192.0.2.1:1001", "b")
	come("identity", "192.0.2.1:1002", "a") // again, from another port
	come("certificate", "192.0.2.1:1003", "a")
	come("limit", "pipe", "")
	if d := cmp.Diff([]string{"limit pipe  1", "certificate 192.0.2.1:1003 a 1", "identity 192.0.2.1:1002 a 2", "identity 192.0.2.1:1001 b 1"}, seen()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	for i := range 3 * recent.VisitorLimit {
		come("limit", fmt.Sprintf("192.0.2.%d:1", i), "")
	}
	got := seen()
	if n := len(got); n != recent.VisitorLimit+3 || got[0] != "limit 192.0.2.59:1  1" || got[n-1] != "identity 192.0.2.1:1001 b 1" {
		t.Errorf("after a flood of one kind, %d: %q", n, got)
	}
	long := strings.Repeat("x", 1<<20)
	v.TurnedAway(status.TurnedAway{At: now.Add(time.Second), Address: long, Identities: long, Rule: long})
	if p := v.All()[0]; len(p.Address)+len(p.Identities)+len(p.Rule) > 4096 {
		t.Errorf("%d octets of an address, %d of identities and %d of a rule are kept", len(p.Address), len(p.Identities), len(p.Rule))
	}
}
