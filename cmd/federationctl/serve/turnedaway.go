package serve

import (
	"cmp"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/cmd/federationctl/printable"
	"github.com/hamlet-federation/coredns-federation/federation"
	"github.com/hamlet-federation/coredns-federation/internal/gate"
	"github.com/hamlet-federation/coredns-federation/internal/safetext"
	"github.com/hamlet-federation/coredns-federation/internal/status"
)

// turnedAway knows who was not let in lately. It is safe for concurrent use. The zero value is
// empty.
type turnedAway struct {
	mu    sync.Mutex                          // guards peers
	peers map[gate.Reason][]status.TurnedAway // those that came last are at the end
}

// maxTurnedAway is how many peers are known that were turned away for the same reason. A flood of
// one kind does not hide the others.
const maxTurnedAway = 20

// maxIdentities is how many identities of a certificate are shown.
const maxIdentities = 8

// remedies are what to do about peers that are turned away for these reasons.
var remedies = map[gate.Reason]string{
	gate.NotAllowed: "name one of these identities in allow",
	gate.NoCatalog:  "have it correct its tls_servername, or add the catalog",
	gate.TooMany:    "find what opens so many connections there",
	gate.Later:      "wait; if it goes on, plan tiers of consumers",
}

// addPeer notes a peer that was turned away. It takes the place of an earlier time of the same peer,
// and counts both.
func (t *turnedAway) addPeer(p gate.TurnedAway, now time.Time) {
	identities := printable.JoinFew(p.IDs, maxIdentities, ", ", federation.ID.String)
	away := status.TurnedAway{
		At: now.UTC(), Times: 1, Role: p.Role, Identities: safetext.Printable(identities),
		Reason: string(p.Reason), Rule: safetext.Printable(p.Rule), Remedy: cmp.Or(p.Remedy, remedies[p.Reason]),
	}
	if p.Address != nil {
		away.Address = p.Address.String()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.peers == nil {
		t.peers = make(map[gate.Reason][]status.TurnedAway)
	}
	others := slices.DeleteFunc(t.peers[p.Reason], func(before status.TurnedAway) bool {
		same := before.Role == away.Role && before.Identities == away.Identities && withoutPort(before.Address) == withoutPort(away.Address)
		if same {
			away.Times += before.Times
		}
		return same
	})
	t.peers[p.Reason] = append(others[max(0, len(others)+1-maxTurnedAway):], away)
}

// withoutPort returns an address without its port, which is another one each time.
func withoutPort(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// newestFirst returns all of them, newest first.
func (t *turnedAway) newestFirst() (all []status.TurnedAway) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, peers := range t.peers {
		all = append(all, peers...)
	}
	slices.SortFunc(all, func(a, b status.TurnedAway) int { return b.At.Compare(a.At) })
	return all
}
