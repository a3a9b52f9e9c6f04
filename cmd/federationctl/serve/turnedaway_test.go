package serve

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/gate"
	"github.com/hamlet-federation/coredns-federation/test/kit/must"
)

// TestTurnedAway turns peers away, and floods of them.
func TestTurnedAway(t *testing.T) {
	var away turnedAway
	now := time.Unix(1_800_000_000, 0).UTC()
	come := func(reason gate.Reason, address string, identities ...string) {
		now = now.Add(time.Second)
		p := gate.TurnedAway{Role: "consumer", Reason: reason, Rule: "no"}
		if address != "" {
			p.Address = must.Get(net.ResolveTCPAddr("tcp", address))(t)
		}
		for _, id := range identities {
			p.IDs = append(p.IDs, must.Get(federation.ParseID(id))(t))
		}
		away.addPeer(p, now)
	}
	seen := func() (list []string) {
		for _, p := range away.newestFirst() {
			list = append(list, fmt.Sprintf("%s %s %s %d", p.Reason, p.Address, p.Identities, p.Times))
		}
		return list
	}
	if got := seen(); got != nil {
		t.Errorf("at first: %q", got)
	}
	come(gate.NotAllowed, "192.0.2.1:1000", "a.example")
	come(gate.NotAllowed, "192.0.2.1:1001", "b.example")
	come(gate.NotAllowed, "192.0.2.1:1002", "a.example") // again, from another port
	come(gate.BadCertificate, "192.0.2.1:1003", "a.example")
	come(gate.TooMany, "")
	if d := cmp.Diff([]string{"limit   1", "certificate 192.0.2.1:1003 a.example 1", "identity 192.0.2.1:1002 a.example 2", "identity 192.0.2.1:1001 b.example 1"}, seen()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	for i := range 3 * maxTurnedAway {
		come(gate.TooMany, fmt.Sprintf("192.0.2.%d:1", i))
	}
	got := seen()
	if n := len(got); n != maxTurnedAway+3 || got[0] != "limit 192.0.2.59:1  1" || got[n-1] != "identity 192.0.2.1:1001 b.example 1" {
		t.Errorf("after a flood of one kind, %d: %q", n, got)
	}
	long := strings.Repeat("x", 1<<20)
	away.addPeer(gate.TurnedAway{Reason: gate.TooMany, Rule: long}, now.Add(time.Second))
	if p := away.newestFirst()[0]; len(p.Rule) > 1024 {
		t.Errorf("%d octets of a rule are kept", len(p.Rule))
	}
}
