package matrix

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hamlet-federation/coredns-federation/internal/dns/zone"
)

// sharing is what the oracle knows of the names that the owner shares with its neighbour,
// which is never lost. It is written from docs/shared.md.
type sharing struct {
	names        []string // fqdns; none: nothing is shared
	tier, others int      // of the owner, and of its neighbour
	min          int

	theirs  map[string]bool      // whether the neighbour has the name, by fqdn
	changed map[string]time.Time // when that came or went, by fqdn: what an owner says at that moment may be seen before or after
}

// neighbourAddress is the address that the neighbour has at shared names.
const neighbourAddress = "198.51.100.251"

// endpoint is one of a shared name, as it may be.
type endpoint struct {
	option

	tier int // + 10 if it is stale
}

func (s *sharing) String() string {
	if len(s.names) == 0 {
		return "no names are shared"
	}
	return fmt.Sprintf("tier %d and %d, min %d", s.tier, s.others, s.min)
}

// shares reports whether owners share the name.
func (s *sharing) shares(fqdn string) bool { return slices.Contains(s.names, fqdn) }

// outlooks returns which endpoints of a shared name there may be.
func (o *oracle) outlooks(fqdn string, now time.Time) (all [][]endpoint) {
	s := &o.sharing
	live := option{kind: zone.Success, address: neighbourAddress, live: true, from: o.liveTTL(), to: o.liveTTL()}
	neighbour := []endpoint{{live, s.others}}
	ours, sure := o.offers(fqdn, now)
	for _, theirs := range [][]endpoint{neighbour, nil} {
		if (len(theirs) > 0) != s.theirs[fqdn] && !s.changed[fqdn].Equal(now) {
			continue
		}
		if !sure {
			all = append(all, theirs)
		}
		for _, option := range ours {
			own := endpoint{option, s.tier}
			if option.stale {
				own.tier += 10
			}
			all = append(all, append(slices.Clip(theirs), own))
		}
	}
	return all
}

// allTiers is the tier up to which all endpoints are.
const allTiers = 20

// wanted returns up to which tier endpoints are enough.
func (s *sharing) wanted(endpoints []endpoint) int {
	for tier := range allTiers {
		live := 0
		for _, e := range endpoints {
			if e.live && e.tier <= tier {
				live++
			}
		}
		if live >= s.min {
			return tier
		}
	}
	return allTiers
}

// joined returns the allowed answers of a shared name from what owners have, and whether it
// certainly has one. The answer for SRV has all endpoints, each as "tier/address".
func (o *oracle) joined(fqdn string, srv bool, now time.Time) (options []option, sure bool) {
	s := &o.sharing
	sure = true
	for _, endpoints := range o.outlooks(fqdn, now) {
		if len(endpoints) == 0 {
			sure = false
			continue
		}
		tier := allTiers
		if !srv {
			tier = s.wanted(endpoints)
		}
		if answer := together(endpoints, tier, srv); !slices.Contains(options, answer) {
			options = append(options, answer)
		}
	}
	return options, sure
}

// together returns the answer with the endpoints up to a tier.
func together(endpoints []endpoint, tier int, srv bool) option {
	o := option{kind: zone.Success}
	var addresses []string
	for _, e := range endpoints {
		if e.tier > tier {
			continue
		}
		if len(addresses) == 0 {
			o.from, o.to = e.from, e.to
		}
		o.from, o.to, o.live = min(o.from, e.from), min(o.to, e.to), o.live || e.live
		address := e.address
		if srv {
			address = fmt.Sprintf("%d/%s", e.tier, e.address)
		}
		addresses = append(addresses, address)
	}
	slices.Sort(addresses)
	o.address, o.stale = strings.Join(addresses, " "), !o.live
	return o
}
