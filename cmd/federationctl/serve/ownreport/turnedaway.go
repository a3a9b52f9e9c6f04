package ownreport

import (
	"cmp"
	"strings"
	"sync"
	"time"

	"github.com/hamlet-federation/coredns-federation/federation/owner/gate"
	"github.com/hamlet-federation/coredns-federation/federation/status"
	"github.com/hamlet-federation/coredns-federation/federation/status/recent"
)

// turnedAway knows who was not let in lately. It is safe for concurrent use.
type turnedAway struct {
	mu       sync.Mutex // guards visitors
	visitors recent.Visitors
}

// maxIdentities is how many identities of a certificate are shown.
const maxIdentities = 8

// remedies are what to do about peers that are turned away for these reasons.
var remedies = map[gate.Reason]string{
	gate.NotAllowed: "name one of these identities in allow",
	gate.NoCatalog:  "have it correct its tls_servername, or add the catalog",
	gate.TooMany:    "find what opens so many connections there",
	gate.Later:      "wait; if it goes on, plan tiers of consumers",
}

func (d *turnedAway) turnedAway(p gate.TurnedAway, now time.Time) {
	var identities []string
	for i, id := range p.IDs {
		if i == maxIdentities {
			identities = append(identities, "...")
			break
		}
		identities = append(identities, id.String())
	}
	away := status.TurnedAway{At: now.UTC(), Role: p.Role, Identities: strings.Join(identities, ", "), Reason: string(p.Reason), Rule: p.Rule, Remedy: cmp.Or(p.Remedy, remedies[p.Reason])}
	if p.Address != nil {
		away.Address = p.Address.String()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.visitors.TurnedAway(away)
}

// read returns all of them, newest first.
func (d *turnedAway) read() []status.TurnedAway {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.visitors.All()
}
